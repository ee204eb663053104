"""Hand-computed numbers of a classifier."""

import math

import numpy as np
import pytest

from guerdon.ops import classification as measure
from tests.rounding import assert_close

SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
LABELS = np.array([True, False, True, True, False, False])


def test_the_average_precision():
    # At each positive: 1 of 1, 2 of 3, 3 of 4.
    assert measure.pr_auc(SCORES, LABELS) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    assert measure.pr_auc(LABELS.astype(float), LABELS) == 1.0


def test_scores_that_tie_pass_together_in_whatever_order_they_are():
    scores = np.array([0.5, 0.5, 0.5, 0.1])
    for labels in ([1, 0, 0, 1], [0, 0, 1, 1]):
        # One of three at the tie, then the other at 2 of 4.
        expected = 0.5 * (1 / 3) + 0.5 * (2 / 4)
        assert measure.pr_auc(scores, np.array(labels, bool)) == pytest.approx(expected)


def test_a_constant_score_is_worth_the_base_rate():
    assert measure.pr_auc(np.zeros(8), np.arange(8) < 2) == pytest.approx(0.25)


def test_without_positives_there_is_no_area():
    assert math.isnan(measure.pr_auc(np.ones(3), np.zeros(3, bool)))
    assert math.isnan(measure.pr_auc(np.ones(0), np.ones(0, bool)))


def test_rates_at_a_threshold_that_counts_as_passed():
    at = (SCORES, LABELS, 0.7)
    assert measure.precision(*at) == pytest.approx(2 / 3)
    assert measure.recall(*at) == pytest.approx(2 / 3)
    assert measure.false_positive_rate(*at) == pytest.approx(1 / 3)


def test_rates_of_nothing_are_not_a_number():
    none, everything = np.zeros(2, bool), np.ones(2, bool)
    scores = np.array([0.1, 0.2])
    assert math.isnan(measure.precision(scores, everything, 0.5))
    assert math.isnan(measure.recall(scores, none, 0.5))
    assert math.isnan(measure.false_positive_rate(scores, everything, 0.5))


def test_arrays_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match="same shape"):
        measure.pr_auc(SCORES, LABELS[:, None])


def test_the_calibration_error():
    probability = np.array([0.05, 0.05, 0.95, 0.95, 1.0])
    labels = np.array([False, True, True, True, True])
    # Two bins are used: |0.1 - 1| and |2.9 - 3|, over 5 frames.
    expected = (0.9 + 0.1) / 5
    assert measure.expected_calibration_error(probability, labels, 10) == pytest.approx(expected)
    assert math.isnan(measure.expected_calibration_error(np.ones(0), np.ones(0, bool)))


def test_the_members_of_an_ensemble_agree_on_the_mean_of_their_probabilities():
    logits = np.array([[0.0, 2.0], [math.log(3), 2.0]])
    assert_close(measure.ensemble_probability(logits), [(0.5 + 0.75) / 2, 1 / (1 + math.exp(-2))])
    assert_close(measure.ensemble_probability(logits[1], 2.0), 1 / (1 + np.exp(-logits[1] / 2)))
    assert measure.ensemble_probability(np.array([-1000.0, 1000.0])).tolist() == [0.0, 1.0]


def test_the_cross_entropy_of_an_ensemble():
    logits = np.array([[0.0, 0.0], [math.log(3), math.log(3)]])
    labels = np.array([True, False])
    expected = -(math.log(0.625) + math.log(0.375)) / 2
    assert measure.negative_log_likelihood(logits, labels) == pytest.approx(expected)
    assert measure.negative_log_likelihood(np.array([-800.0]), np.array([True])) == 800.0
    assert math.isnan(measure.negative_log_likelihood(np.zeros(0), np.zeros(0, bool)))


@pytest.mark.parametrize("true", [0.25, 1.0, 5.0])
def test_the_temperature_that_made_labels_is_found(true):
    generator = np.random.default_rng(0)
    clean = generator.normal(0, 2, 20_000)
    labels = generator.random(20_000) < 1 / (1 + np.exp(-clean))
    found = measure.fit_temperature(clean * true, labels)
    assert found == pytest.approx(true, rel=0.05)
    both = np.stack([clean, clean]) * true
    assert measure.fit_temperature(both, labels) == pytest.approx(found, rel=1e-3)


def test_classes_that_are_apart_are_not_told_apart_with_certainty():
    labels = np.arange(100) < 50
    logits = np.where(labels, 3.0, -3.0)
    # As if one more frame of the other label had been seen: 51 of 52.
    expected = 3.0 / math.log(51)
    assert measure.fit_temperature(logits, labels) == pytest.approx(expected, rel=1e-3)


def test_a_threshold_lets_no_more_negatives_pass_than_allowed():
    scores = np.array([0.95, 0.9, 0.8, 0.7, 0.6, 0.2])
    labels = np.array([True, False, True, False, False, False])
    assert measure.threshold_for(scores, labels, 0.0) == pytest.approx((0.9 + 0.95) / 2)
    assert measure.threshold_for(scores, labels, 0.24) == pytest.approx((0.9 + 0.95) / 2)
    assert measure.threshold_for(scores, labels, 0.25) == pytest.approx((0.7 + 0.8) / 2)
    assert measure.threshold_for(scores, labels, 0.5) == pytest.approx((0.6 + 0.7) / 2)
    assert measure.threshold_for(scores, labels, 0.75) == 0.5
    assert measure.threshold_for(scores, labels, 0.75, lowest=0.1) == pytest.approx(0.4)
    assert measure.threshold_for(scores, labels, 1.0) == 0.5


def test_a_threshold_holds_where_numbers_have_no_room_between_them():
    top = np.nextafter(np.float32(1), np.float32(0))
    labels = np.array([False, True])
    for scores in (np.array([top, 1.0], np.float32), np.array([1.0, 1.0], np.float32)):
        threshold = measure.threshold_for(scores, labels, 0.0)
        assert (scores >= threshold).tolist() == [False, bool(scores[0] < 1)]


def test_a_threshold_above_all_scores_is_halfway_to_certainty():
    assert measure.threshold_for(np.array([0.6]), np.array([False]), 0.0) == pytest.approx(0.8)


def test_the_share_of_episodes_in_which_success_is_wrongly_seen():
    episodes = np.repeat([0, 1, 2, 3], 4)
    labels = np.zeros(16, bool)
    labels[15] = True  # the last has a success, and does not count
    passed = np.array([0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1], bool)
    rates = [
        measure.episode_false_positive_rate(passed, labels, episodes, hold) for hold in (1, 2, 3)
    ]
    assert rates == pytest.approx([2 / 3, 1 / 3, 0.0])
    assert math.isnan(measure.episode_false_positive_rate(passed, labels | True, episodes))

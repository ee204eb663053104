import math

import pytest
import torch

from guerdon import ops
from tests.gradients import gradient_is_right
from tests.rounding import assert_close

T = torch.tensor


def test_the_logit_is_how_much_more_the_second_segment_earned():
    assert ops.preference_logit(T([1.0, 5.0]), T([3.0, 1.0])).tolist() == [2.0, -4.0]


def test_the_logit_is_clipped_on_both_sides():
    first, second = T([0.0, 9.0, 1.0]), T([9.0, 0.0, 2.0])
    assert ops.preference_logit(first, second, 3.0).tolist() == [3.0, -3.0, 1.0]


def test_the_probability_of_a_rater_who_never_errs():
    probability = ops.preference_probability(T([0.0, math.log(3), -math.log(3)]))
    assert_close(probability, [0.5, 0.75, 0.25])


def test_the_probability_of_a_rater_who_tosses_a_coin_now_and_then():
    # 0.8 * 0.75 + 0.1, and never outside of 0.1 to 0.9
    probability = ops.preference_probability(T([math.log(3), 100.0, -100.0]), noise=0.2)
    assert_close(probability, [0.7, 0.9, 0.1])


def test_the_loss_is_the_cross_entropy():
    logit = T([math.log(3)] * 3)
    loss = ops.preference_loss(logit, T([1.0, 0.0, 0.5]))
    both = [-math.log(0.75), -math.log(0.25)]
    assert_close(loss, [*both, sum(both) / 2])


def test_the_loss_with_a_noise_floor():
    loss = ops.preference_loss(T([math.log(3)] * 3), T([1.0, 0.0, 0.5]), noise=0.2)
    both = [-math.log(0.7), -math.log(0.3)]
    assert_close(loss, [*both, sum(both) / 2])


def test_the_noise_floor_bounds_what_one_wrong_label_can_cost():
    wrong = T([1000.0]), T([0.0])
    assert ops.preference_loss(*wrong).item() == pytest.approx(1000)
    assert ops.preference_loss(*wrong, noise=0.1).item() == pytest.approx(-math.log(0.05))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_gradient_of_the_loss(noise):
    label = T([1.0, 0.0, 0.5, 1.0], dtype=torch.float64)
    logit = T([0.3, -1.2, 2.0, -0.5], dtype=torch.float64)
    assert gradient_is_right(lambda x: ops.preference_loss(x, label, noise).sum(), logit)


def test_accuracy_counts_pairs_with_a_better_segment_alone():
    logit = T([2.0, -2.0, 2.0, 5.0])
    # right, wrong, wrong, and one that is equal
    assert ops.preference_accuracy(logit, T([1.0, 1.0, 0.0, 0.5])).item() == pytest.approx(1 / 3)


def test_accuracy_of_a_model_that_sees_no_difference_is_half():
    assert ops.preference_accuracy(torch.zeros(2), T([1.0, 0.0])).item() == 0.5


def test_shapes_have_to_agree():
    with pytest.raises(ValueError, match="same shape"):
        ops.preference_logit(torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="same shape"):
        ops.preference_loss(torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="same shape"):
        ops.preference_accuracy(torch.zeros(3), torch.zeros(3, 1))

"""Metrics, calibration and thresholds of a binary classifier.

Scores are probabilities, or increase with them; labels are true for success. A frame passes a
threshold if its score is not below it.
"""

import math

import numpy as np

from guerdon.ops.checks import same_shape

_GOLDEN = (math.sqrt(5) - 1) / 2
_LARGEST_LOG_TEMPERATURE = 4.0


def ensemble_probability(
    logits: np.ndarray, temperature: float = 1.0, pessimism: float = 0.0
) -> np.ndarray:
    """Return the mean probability of the members of an ensemble, [N].

    Args:
        logits: [members, N], or [N] of one classifier.
        temperature: Divides the logits.
        pessimism: Multiple of the members' standard deviation to subtract; never below 0.
    """
    scaled = np.atleast_2d(np.asarray(logits, np.float64)) / temperature
    members = np.exp(-np.logaddexp(0.0, -scaled))
    probability: np.ndarray = (members.mean(0) - pessimism * members.std(0)).clip(0)
    return probability


def pr_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Area under the precision-recall curve, as average precision; NaN without a positive.

    There is no interpolation between points. Frames with the same score pass together.

    Args:
        scores: [N].
        labels: [N].
    """
    found, passed = _passing(scores, labels)
    if not len(found) or found[-1] == 0:
        return math.nan
    return float(np.sum(np.diff(found, prepend=0) * (found / passed)) / found[-1])


def pr_curve(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision at every threshold, from the highest on; empty without a positive.

    Args:
        scores: [N].
        labels: [N].
    """
    found, passed = _passing(scores, labels)
    if not len(found) or found[-1] == 0:
        return np.zeros(0), np.zeros(0)
    return found / found[-1], found / passed


def _passing(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count positives and frames that pass each score, from the highest on."""
    same_shape(1, scores=scores, labels=labels)
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(labels[order].astype(bool))
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)[: len(hits)])  # of each tie
    return hits[last], last + 1


def false_positive_rate(scores: np.ndarray, labels: np.ndarray, threshold: float) -> float:
    """Return the fraction of negatives that pass; NaN without a negative.

    Args:
        scores: [N].
        labels: [N].
        threshold: Minimum score that passes.
    """
    same_shape(1, scores=scores, labels=labels)
    return _mean((scores >= threshold)[~labels.astype(bool)])


def recall(scores: np.ndarray, labels: np.ndarray, threshold: float) -> float:
    """Return the fraction of positives that pass; NaN without a positive.

    Arguments as in `false_positive_rate`.
    """
    same_shape(1, scores=scores, labels=labels)
    return _mean((scores >= threshold)[labels.astype(bool)])


def precision(scores: np.ndarray, labels: np.ndarray, threshold: float) -> float:
    """Return the fraction of positives among frames that pass; NaN if none does.

    Arguments as in `false_positive_rate`.
    """
    same_shape(1, scores=scores, labels=labels)
    return _mean(labels.astype(bool)[scores >= threshold])


def expected_calibration_error(
    probability: np.ndarray, labels: np.ndarray, n_bins: int = 15
) -> float:
    """Compute the expected calibration error: https://arxiv.org/abs/1706.04599.

    Mean absolute difference of probability and frequency over bins of equal width, weighted by the
    number of frames; NaN without frames.

    Args:
        probability: [N], of success.
        labels: [N].
        n_bins: Number of bins between 0 and 1.
    """
    same_shape(1, probability=probability, labels=labels)
    if not len(labels):
        return math.nan
    bins = _bins(probability, n_bins)
    gap = np.bincount(bins, weights=probability - labels.astype(np.float64), minlength=n_bins)
    return float(np.abs(gap).sum() / len(labels))


def calibration_curve(
    probability: np.ndarray, labels: np.ndarray, n_bins: int = 15
) -> tuple[np.ndarray, np.ndarray]:
    """Mean probability and share of positives in each bin that is not empty.

    Arguments as in `expected_calibration_error`.
    """
    same_shape(1, probability=probability, labels=labels)
    bins = _bins(probability, n_bins)
    number = np.bincount(bins, minlength=n_bins)
    mean, share = (
        np.bincount(bins, weights=values, minlength=n_bins)[number > 0] / number[number > 0]
        for values in (probability, labels.astype(np.float64))
    )
    return mean, share


def _bins(probability: np.ndarray, n_bins: int) -> np.ndarray:
    bins: np.ndarray = np.minimum((probability * n_bins).astype(np.int64), n_bins - 1)
    return bins


def negative_log_likelihood(
    logits: np.ndarray, labels: np.ndarray, temperature: float = 1.0
) -> float:
    """Return the mean cross entropy of an ensemble's probabilities; NaN without a frame.

    Args:
        logits: [members, N], or [N] of one classifier.
        labels: [N], or probabilities that they are true.
        temperature: Divides the logits.
    """
    scaled = np.atleast_2d(np.asarray(logits, np.float64)) / temperature
    same_shape(1, logits=scaled[0], labels=labels)
    if not len(labels):
        return math.nan
    log_yes, log_no = (
        np.logaddexp.reduce(-np.logaddexp(0.0, sign * scaled), axis=0) - math.log(len(scaled))
        for sign in (-1, 1)
    )
    yes = labels.astype(np.float64)
    return float(-(yes * log_yes + (1 - yes) * log_no).mean())


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature with the least cross entropy: https://arxiv.org/abs/1706.04599.

    Labels are smoothed as in Platt scaling; otherwise separable classes would give 0.

    Args:
        logits: [members, N], or [N] of one classifier.
        labels: [N].
    """
    positive = labels.astype(bool)
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    target = np.where(positive, (n_positive + 1) / (n_positive + 2), 1 / (n_negative + 2))
    low, high = -_LARGEST_LOG_TEMPERATURE, _LARGEST_LOG_TEMPERATURE

    def loss(log_temperature: float) -> float:
        return negative_log_likelihood(logits, target, math.exp(log_temperature))

    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > 1e-4:  # golden-section search
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


def threshold_for(
    scores: np.ndarray, labels: np.ndarray, target: float, lowest: float = 0.5
) -> float:
    """Return a threshold that at most the fraction `target` of the negatives pass.

    This is `lowest` if it suffices; otherwise the midpoint between the highest negative that must
    not pass and the next score above.

    Args:
        scores: Probabilities [N].
        labels: [N].
        target: Maximum false-positive rate, 0 to 1.
        lowest: Minimum of the threshold.
    """
    same_shape(1, scores=scores, labels=labels)
    negatives = np.sort(scores[~labels.astype(bool)])[::-1]
    allowed = math.floor(target * len(negatives) + 1e-9)
    if allowed >= len(negatives) or negatives[allowed] < lowest:
        return lowest
    first = negatives[allowed]
    higher = scores[scores > first]
    above = higher.min() if len(higher) else max(first, scores.dtype.type(1))
    halfway = (first + above) / 2
    if halfway <= first:  # adjacent floats, or no score is above
        halfway = above if above > first else np.nextafter(first, scores.dtype.type(2))
    return float(halfway)


def episode_false_positive_rate(
    passed: np.ndarray, labels: np.ndarray, episodes: np.ndarray, hold: int = 1
) -> float:
    """Return the fraction of episodes without success that pass; NaN without such episodes.

    Args:
        passed: [N], whether a frame passes; the frames of an episode are in order.
        labels: [N].
        episodes: [N], the episode of each frame.
        hold: Number of consecutive frames that have to pass.
    """
    same_shape(1, passed=passed, labels=labels, episodes=episodes)
    detected = [
        _longest_run(passed[episodes == episode]) >= hold
        for episode in np.unique(episodes)
        if not labels[episodes == episode].any()
    ]
    return _mean(np.asarray(detected))


def _longest_run(passed: np.ndarray) -> int:
    gaps = np.flatnonzero(np.concatenate([[True], ~passed.astype(bool), [True]]))
    return int(np.diff(gaps).max()) - 1


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan

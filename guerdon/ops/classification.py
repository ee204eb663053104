"""How good a classifier of two classes is, and how its scores become decisions.

Scores are probabilities, or anything else that is larger where success is likelier; labels are
true where there is success. A frame passes a threshold if its score is at least that.
"""

import math

import numpy as np

from guerdon.ops.checks import same_shape

_GOLDEN = (math.sqrt(5) - 1) / 2
_LARGEST_LOG_TEMPERATURE = 4.0


def ensemble_probability(
    logits: np.ndarray, temperature: float = 1.0, pessimism: float = 0.0
) -> np.ndarray:
    """What the members of an ensemble say together: the mean of their probabilities [N].

    Args:
        logits: [members, N], or [N] of one classifier.
        temperature: Divides the logits.
        pessimism: How many times the spread of the members is taken off; never below 0.
    """
    scaled = np.atleast_2d(np.asarray(logits, np.float64)) / temperature
    said = np.exp(-np.logaddexp(0.0, -scaled))
    joined: np.ndarray = (said.mean(0) - pessimism * said.std(0)).clip(0)
    return joined


def pr_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The area under precision over recall, as the average precision; NaN without a positive.

    Each recall counts with the precision that is reached there, not with a line between two.
    Frames with the same score pass together.

    Args:
        scores: [N].
        labels: [N].
    """
    same_shape(1, scores=scores, labels=labels)
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(labels[order].astype(bool))
    if not len(hits) or hits[-1] == 0:
        return math.nan
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # of those that tie
    found = hits[last]
    precision = found / (last + 1)
    return float(np.sum(np.diff(found, prepend=0) * precision) / hits[-1])


def false_positive_rate(scores: np.ndarray, labels: np.ndarray, threshold: float) -> float:
    """The share of negatives that pass; NaN without a negative.

    Args:
        scores: [N].
        labels: [N].
        threshold: The least score that passes.
    """
    same_shape(1, scores=scores, labels=labels)
    return _mean((scores >= threshold)[~labels.astype(bool)])


def recall(scores: np.ndarray, labels: np.ndarray, threshold: float) -> float:
    """The share of positives that pass; NaN without a positive.

    Args:
        scores: [N].
        labels: [N].
        threshold: The least score that passes.
    """
    same_shape(1, scores=scores, labels=labels)
    return _mean((scores >= threshold)[labels.astype(bool)])


def precision(scores: np.ndarray, labels: np.ndarray, threshold: float) -> float:
    """The share of positives among those that pass; NaN if none does.

    Args:
        scores: [N].
        labels: [N].
        threshold: The least score that passes.
    """
    same_shape(1, scores=scores, labels=labels)
    return _mean(labels.astype(bool)[scores >= threshold])


def expected_calibration_error(
    probability: np.ndarray, labels: np.ndarray, n_bins: int = 15
) -> float:
    """How far probabilities are from frequencies: https://arxiv.org/abs/1706.04599.

    The mean distance over bins of equal width, each with the weight of its frames; NaN without one.

    Args:
        probability: [N], of success.
        labels: [N].
        n_bins: How many bins there are between 0 and 1.
    """
    same_shape(1, probability=probability, labels=labels)
    if not len(labels):
        return math.nan
    bins = np.minimum((probability * n_bins).astype(np.int64), n_bins - 1)
    gap = np.bincount(bins, weights=probability - labels.astype(np.float64), minlength=n_bins)
    return float(np.abs(gap).sum() / len(labels))


def negative_log_likelihood(
    logits: np.ndarray, labels: np.ndarray, temperature: float = 1.0
) -> float:
    """The mean cross entropy of an ensemble's probabilities; NaN without a frame.

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
    """The temperature with the least cross entropy: https://arxiv.org/abs/1706.04599.

    As Platt has it, one more frame of either label is counted where it was not seen. Else two
    classes that are apart would be best told apart with certainty, at a temperature of 0.

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
    while high - low > 1e-4:  # golden section: every step keeps 0.62 of what is left
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
    """The threshold that no more than a share of the negatives pass.

    It is `lowest` if that does; else it lies halfway between the highest negative that must not
    pass and the next score above.

    Args:
        scores: Probabilities [N].
        labels: [N].
        target: The largest share of negatives that may pass, 0 to 1.
        lowest: No threshold is below this.
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
    if halfway <= first:  # neighbours in this dtype, or nothing is above
        halfway = above if above > first else np.nextafter(first, scores.dtype.type(2))
    return float(halfway)


def episode_false_positive_rate(
    passed: np.ndarray, labels: np.ndarray, episodes: np.ndarray, hold: int = 1
) -> float:
    """The share of episodes without success in which success is seen; NaN without such episodes.

    Args:
        passed: [N], whether a frame passes; the frames of an episode are in order.
        labels: [N].
        episodes: [N], which episode a frame belongs to.
        hold: How many frames in a row have to pass.
    """
    same_shape(1, passed=passed, labels=labels, episodes=episodes)
    seen = [
        _longest_run(passed[episodes == episode]) >= hold
        for episode in np.unique(episodes)
        if not labels[episodes == episode].any()
    ]
    return _mean(np.asarray(seen))


def _longest_run(passed: np.ndarray) -> int:
    gaps = np.flatnonzero(np.concatenate([[True], ~passed.astype(bool), [True]]))
    return int(np.diff(gaps).max()) - 1


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan

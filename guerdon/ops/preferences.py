"""The Bradley-Terry model of preferences between two segments."""

import torch
from torch.nn import functional

from guerdon.ops.checks import same_shape, weighted_mean


def preference_logit(
    return_first: torch.Tensor, return_second: torch.Tensor, limit: float | None = None
) -> torch.Tensor:
    """Return the logit that the second segment is preferred: https://arxiv.org/abs/1706.03741.

    Args:
        return_first: Sums of rewards, [...].
        return_second: Sums of rewards, [...], of segments of the same length.
        limit: Largest absolute logit; pairs beyond it have no gradient.
    """
    same_shape(return_first=return_first, return_second=return_second)
    difference = return_second - return_first
    return difference if limit is None else difference.clamp(-limit, limit)


def preference_probability(logit: torch.Tensor, noise: float = 0.0) -> torch.Tensor:
    """Return the probability that the second segment is preferred.

    Args:
        logit: [...].
        noise: Probability that the rater answers at random.
    """
    return (1 - noise) * torch.sigmoid(logit) + 0.5 * noise


def preference_loss(logit: torch.Tensor, label: torch.Tensor, noise: float = 0.0) -> torch.Tensor:
    """Return the cross entropy of each pair, [...].

    Args:
        logit: [...].
        label: 0 where the first segment is better, 1 where the second is, 0.5 for a tie.
        noise: See `preference_probability`; it bounds the loss of a pair at -log(noise / 2).
    """
    same_shape(logit=logit, label=label)
    if noise == 0.0:
        return functional.binary_cross_entropy_with_logits(logit, label, reduction="none")
    second = preference_probability(logit, noise).log()
    first = preference_probability(-logit, noise).log()
    return -(label * second + (1 - label) * first)


def preference_accuracy(logit: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Fraction of pairs ranked as labelled, 0-dim; ignores ties, a logit of 0 counts half."""
    same_shape(logit=logit, label=label)
    right = 0.5 * (1 + logit.sign() * (label - 0.5).sign())
    return weighted_mean(right, mask=label != 0.5)

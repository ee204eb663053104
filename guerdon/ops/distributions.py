"""Distributions as functions of tensors.

Building an object of `torch.distributions` in every step costs more than its mathematics.
"""

import math

import torch
from torch.nn import functional

from guerdon.ops.checks import rows_of, same_shape

_LOG_2PI = math.log(2 * math.pi)

# --- categorical, over the last axis of logits [..., N]


def categorical_sample(logit: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Draw from softmax(logit), int64 [...].

    The argmax of logits with Gumbel noise (https://arxiv.org/abs/1411.0030); minus the logarithm of
    an exponential variable is Gumbel.
    """
    noise = torch.empty_like(logit).exponential_(generator=generator).log_()
    return torch.argmax(logit - noise, -1)


def categorical_mode(logit: torch.Tensor) -> torch.Tensor:
    """Return the most likely action, int64 [...]."""
    return torch.argmax(logit, -1)


def categorical_log_prob(logit: torch.Tensor, act: torch.Tensor) -> torch.Tensor:
    """Log-probability of actions [...] under logits [..., N]."""
    rows_of(logit, act=act)
    return functional.log_softmax(logit, -1).gather(-1, act.unsqueeze(-1)).squeeze(-1)


def categorical_log_prob_entropy(
    logit: torch.Tensor, act: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy in nats, both [...], of actions [...] under logits [..., N]."""
    rows_of(logit, act=act)
    log_prob = functional.log_softmax(logit, -1)
    entropy = -(log_prob.exp() * log_prob).sum(-1)
    return log_prob.gather(-1, act.unsqueeze(-1)).squeeze(-1), entropy


# --- diagonal Gaussian; mu is [..., D], log_std the same, or [D] for all rows


def gaussian_sample(
    mu: torch.Tensor, log_std: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Draw actions [..., D]; gradients pass to both arguments."""
    _check_gaussian(mu, log_std)
    return torch.addcmul(mu, log_std.exp(), torch.empty_like(mu).normal_(generator=generator))


def gaussian_log_prob(mu: torch.Tensor, log_std: torch.Tensor, act: torch.Tensor) -> torch.Tensor:
    """Log-density of actions [..., D], summed over D: [...]."""
    _check_gaussian(mu, log_std)
    same_shape(mu=mu, act=act)
    return _log_density((act - mu) * torch.exp(-log_std), log_std)


def clipped_gaussian_log_prob(
    mu: torch.Tensor,
    log_std: torch.Tensor,
    act: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
) -> torch.Tensor:
    """Log-likelihood of actions [..., D] that were drawn and then clipped to bounds [D]: [...].

    In a dimension at a bound this is the probability of being clipped to it, else a density.
    """
    _check_gaussian(mu, log_std)
    same_shape(mu=mu, act=act)
    inverse = torch.exp(-log_std)
    inside = _log_densities((act - mu) * inverse, log_std)
    below = torch.special.log_ndtr((low - mu) * inverse)
    above = torch.special.log_ndtr((mu - high) * inverse)
    return torch.where(act <= low, below, torch.where(act >= high, above, inside)).sum(-1)


def gaussian_entropy(log_std: torch.Tensor) -> torch.Tensor:
    """Entropy in nats: [...], and 0-dim when all rows share log_std."""
    return log_std.sum(-1) + 0.5 * (1 + _LOG_2PI) * log_std.shape[-1]


# --- Gaussian squashed by tanh into (-1, 1): https://arxiv.org/abs/1801.01290, appendix C


def squashed_gaussian_sample(
    mu: torch.Tensor, log_std: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw actions [..., D] and their log-density [...]; gradients pass to both arguments."""
    _check_gaussian(mu, log_std)
    noise = torch.empty_like(mu).normal_(generator=generator)
    raw = torch.addcmul(mu, log_std.exp(), noise)
    return torch.tanh(raw), _log_density(noise, log_std) - _log_slope(raw).sum(-1)


def squashed_gaussian_log_prob(
    mu: torch.Tensor, log_std: torch.Tensor, act: torch.Tensor, edge: float = 0.0
) -> torch.Tensor:
    """Log-density of actions [..., D] in [-1, 1]: [...].

    An action rounded to a bound is replaced by the nearest one inside.

    Args:
        mu: Means before tanh.
        log_std: Log standard deviations before tanh.
        act: Actions.
        edge: Actions this close to a bound share their mean density. Without it, actions of another
            policy at the bounds have a density near 0.
    """
    _check_gaussian(mu, log_std)
    same_shape(mu=mu, act=act)
    bound = 1 - max(edge, torch.finfo(act.dtype).eps)
    raw, inverse = torch.atanh(act.clamp(-bound, bound)), torch.exp(-log_std)
    if not edge:
        return _log_density((raw - mu) * inverse, log_std) - _log_slope(raw).sum(-1)
    inside = _log_densities((raw - mu) * inverse, log_std) - _log_slope(raw)
    outward = torch.where(act < 0, -mu, mu) - math.atanh(bound)
    beyond = torch.special.log_ndtr(outward * inverse) - math.log(edge)
    return torch.where(act.abs() > bound, beyond, inside).sum(-1)


def _log_densities(standard: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Return the terms of `_log_density`, [..., D]."""
    return -0.5 * standard.square() - log_std - 0.5 * _LOG_2PI


def _log_density(standard: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    scale = -0.5 * _LOG_2PI * standard.shape[-1] - log_std.sum(-1)
    return torch.sub(scale, (standard * standard).sum(-1), alpha=0.5)


def _log_slope(raw: torch.Tensor) -> torch.Tensor:
    """Compute log(1 - tanh(raw)^2) without underflow to log(0)."""
    return 2 * (math.log(2) - raw - functional.softplus(-2 * raw))


def _check_gaussian(mu: torch.Tensor, log_std: torch.Tensor) -> None:
    if log_std.shape != mu.shape and log_std.shape != mu.shape[-1:]:
        raise ValueError(
            f"log_std must have the shape of mu {tuple(mu.shape)} or of its last axis, "
            f"and has {tuple(log_std.shape)}."
        )

"""Losses and metrics of policy gradients.

Targets (advantages, returns, old log-probabilities) get no gradient. For `weight` and `mask` see
`weighted_mean`. No function synchronises with the device.
"""

import torch
from torch.nn import functional

from guerdon.ops.checks import same_shape, weighted_mean


def ppo_policy_loss(
    log_prob: torch.Tensor,
    log_prob_old: torch.Tensor,
    advantage: torch.Tensor,
    clip_range: float,
    weight: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """Clipped surrogate loss of PPO: https://arxiv.org/abs/1707.06347.

    The minimum takes the clipped term, `clip(ratio, 1 - c, 1 + c) * advantage`, only at its bound,
    where it is the constant `advantage + c * |advantage|`; this saves its backward pass.

    Args:
        log_prob: Log-probability of the actions under the current policy, [...].
        log_prob_old: The same under the policy that collected them, [...].
        advantage: [...].
        clip_range: c; 0.1 to 0.3.
        weight: [...].
        mask: [...].
        dual_clip: A lower bound on the objective where the advantage is negative, as a multiple of
            it (https://arxiv.org/abs/1912.09729); above 1, usually 3.

    Returns:
        The loss, 0-dim.
    """
    same_shape(
        log_prob=log_prob, log_prob_old=log_prob_old, advantage=advantage, weight=weight, mask=mask
    )
    advantage = advantage.detach()
    ratio = torch.exp(log_prob - log_prob_old.detach())
    bound = torch.add(advantage, advantage.abs(), alpha=clip_range)
    objective = (ratio * advantage).clamp(max=bound)
    if dual_clip is not None:
        floor = torch.where(advantage < 0, advantage * dual_clip, -torch.inf)
        objective = torch.maximum(objective, floor)
    return -weighted_mean(objective, weight, mask)


def ppo_value_loss(
    value: torch.Tensor,
    returns: torch.Tensor,
    value_old: torch.Tensor | None = None,
    clip_range: float | None = None,
    weight: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Half the mean squared error of the critic, optionally clipped around its old value.

    Clipping is from the code of https://arxiv.org/abs/1707.06347; it rarely helps
    (https://arxiv.org/abs/2006.05990).

    Args:
        value: V(obs) of the current critic, [...].
        returns: Targets, [...].
        value_old: V(obs) before the update, [...]; needed with `clip_range`.
        clip_range: Largest unclipped change of the value; None disables clipping.
        weight: [...].
        mask: [...].

    Returns:
        The loss, 0-dim.
    """
    same_shape(value=value, returns=returns, value_old=value_old, weight=weight, mask=mask)
    returns = returns.detach()
    if clip_range is None:
        if weight is None and mask is None:
            return 0.5 * functional.mse_loss(value, returns)
        return 0.5 * weighted_mean((value - returns).square(), weight, mask)
    if value_old is None:
        raise ValueError("Clipping the value needs value_old; pass it, or clip_range=None.")
    value_old = value_old.detach()
    clipped = value_old + (value - value_old).clamp(-clip_range, clip_range)
    error = torch.maximum((value - returns).square(), (clipped - returns).square())
    return 0.5 * weighted_mean(error, weight, mask)


def a2c_policy_loss(
    log_prob: torch.Tensor,
    advantage: torch.Tensor,
    weight: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Policy-gradient loss with an advantage, as in A3C: https://arxiv.org/abs/1602.01783.

    Args:
        log_prob: Log-probability of the actions, [...].
        advantage: [...].
        weight: [...].
        mask: [...].

    Returns:
        The loss, 0-dim.
    """
    same_shape(log_prob=log_prob, advantage=advantage, weight=weight, mask=mask)
    return -weighted_mean(log_prob * advantage.detach(), weight, mask)


def a2c_value_loss(
    value: torch.Tensor,
    returns: torch.Tensor,
    weight: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Half the mean squared error of the critic, 0-dim; arguments as in `ppo_value_loss`."""
    return ppo_value_loss(value, returns, weight=weight, mask=mask)


@torch.no_grad()
def approx_kl(
    log_prob: torch.Tensor, log_prob_old: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """KL(old || new) estimated from the actions taken, 0-dim: http://joschu.net/blog/kl-approx.html.

    The estimator `(ratio - 1) - log ratio` is unbiased and never negative.
    """
    same_shape(log_prob=log_prob, log_prob_old=log_prob_old, mask=mask)
    log_ratio = log_prob - log_prob_old
    return weighted_mean(torch.expm1(log_ratio) - log_ratio, mask=mask)


@torch.no_grad()
def clip_fraction(
    log_prob: torch.Tensor,
    log_prob_old: torch.Tensor,
    clip_range: float,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the fraction of rows whose ratio is outside 1 +- clip_range, 0-dim."""
    same_shape(log_prob=log_prob, log_prob_old=log_prob_old, mask=mask)
    outside = torch.expm1(log_prob - log_prob_old).abs() > clip_range
    return weighted_mean(outside.to(log_prob.dtype), mask=mask)


@torch.no_grad()
def explained_variance(
    value: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """1 - Var(returns - value) / Var(returns), 0-dim: 1 is perfect, 0 no better than the mean.

    NaN if the returns are constant.
    """
    same_shape(value=value, returns=returns, mask=mask)
    if mask is not None:
        value, returns = value[mask], returns[mask]
    variance = returns.var(correction=0)
    ratio = (returns - value).var(correction=0) / variance
    return torch.where(variance > 0, 1 - ratio, torch.nan)

"""Q-values of actions, and losses of temporal-difference errors."""

import torch
from torch.nn import functional

from guerdon.ops.checks import same_shape, weighted_mean


def select_action(table: torch.Tensor, act: torch.Tensor) -> torch.Tensor:
    """Select the entries of actions.

    Args:
        table: One entry per action, [..., A] or [..., A, N] (atoms or quantiles).
        act: int64, [...].

    Returns:
        [...] or [..., N].
    """
    axis = act.ndim
    if table.ndim not in (axis + 1, axis + 2) or table.shape[:axis] != act.shape:
        raise ValueError(
            f"Actions of shape {tuple(act.shape)} cannot select from a table of shape "
            f"{tuple(table.shape)}; it needs their axes first, then one for the actions."
        )
    if table.ndim == axis + 1:
        return table.gather(axis, act.unsqueeze(-1)).squeeze(-1)
    return torch.take_along_dim(table, act[..., None, None], axis).squeeze(axis)


def double_q_value(q_t: torch.Tensor, q_t_selector: torch.Tensor) -> torch.Tensor:
    """Return the value of the next state in double Q-learning: https://arxiv.org/abs/1509.06461.

    Args:
        q_t: Q-values of the target network, [..., A].
        q_t_selector: Q-values of the online network, which selects the action, [..., A].

    Returns:
        [...], without a gradient.
    """
    same_shape(q_t=q_t, q_t_selector=q_t_selector)
    return select_action(q_t, q_t_selector.argmax(-1)).detach()


def soft_value(q_value: torch.Tensor, temperature: float | torch.Tensor) -> torch.Tensor:
    """Return the value of states in soft Q-learning: https://arxiv.org/abs/1702.08165.

    Args:
        q_value: Q-values [..., A].
        temperature: Entropy coefficient; near 0 the value is the maximum.

    Returns:
        temperature * log(sum(exp(q_value / temperature))), [...].
    """
    return temperature * torch.logsumexp(q_value / temperature, -1)


def squared_loss(
    error: torch.Tensor, weight: torch.Tensor | None = None, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Half the mean squared error, 0-dim; see `weighted_mean` for `weight` and `mask`."""
    return 0.5 * weighted_mean(error.square(), weight, mask)


def huber_loss(
    value: torch.Tensor,
    target: torch.Tensor,
    delta: float = 1.0,
    weight: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean Huber loss, 0-dim: https://doi.org/10.1214/aoms/1177703732.

    Args:
        value: Predictions, [...].
        target: [...].
        delta: Absolute error above which the loss is linear.
        weight: See `weighted_mean`.
        mask: See `weighted_mean`.
    """
    same_shape(value=value, target=target)
    if weight is None and mask is None:
        return functional.huber_loss(value, target, delta=delta)
    loss = functional.huber_loss(value, target, reduction="none", delta=delta)
    return weighted_mean(loss, weight, mask)

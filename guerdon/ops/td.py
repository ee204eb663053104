"""Q-values of actions, their distributions, and losses of temporal-difference errors."""

import torch
from torch.nn import functional

from guerdon.ops.checks import rows_of, same_shape, weighted_mean


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


@torch.no_grad()
def categorical_projection(
    prob_t: torch.Tensor, r_t: torch.Tensor, discount_t: torch.Tensor, support: torch.Tensor
) -> torch.Tensor:
    """Project the distribution of r + discount * z onto the evenly spaced atoms z [n_atom].

    Equation 7 of https://arxiv.org/abs/1707.06887.
    """
    same_shape(1, r_t=r_t, discount_t=discount_t)
    rows_of(prob_t, r_t=r_t)
    rows_of(prob_t.T, support=support)
    shifted = r_t[:, None] + discount_t[:, None] * support
    shifted = torch.minimum(torch.maximum(shifted, support[0]), support[-1])
    distance = (shifted[:, None, :] - support[:, None]).abs() / (support[1] - support[0])
    return ((1 - distance).clamp(min=0) @ prob_t[:, :, None]).squeeze(-1)


def quantile_td_error(
    quantile_tm1: torch.Tensor,
    tau_tm1: torch.Tensor,
    r_t: torch.Tensor,
    discount_t: torch.Tensor,
    quantile_t: torch.Tensor,
    kappa: float = 1.0,
) -> torch.Tensor:
    """Quantile Huber loss [B]: summed over predicted quantiles, averaged over target quantiles.

    Quantiles of the action taken and their fractions are [B, n], those of the next action [B, m],
    all else [B]. Errors above `kappa` count linearly; 0 gives the plain quantile loss.
    """
    same_shape(1, r_t=r_t, discount_t=discount_t)
    same_shape(2, quantile_tm1=quantile_tm1, tau_tm1=tau_tm1)
    rows_of(quantile_t, r_t=r_t)
    rows_of(quantile_tm1, r_t=r_t)
    target = (r_t[:, None] + discount_t[:, None] * quantile_t).detach()
    error = target[:, None, :] - quantile_tm1[:, :, None]  # [B, n, m]
    size = error.abs()
    if kappa > 0:
        size = torch.where(size <= kappa, 0.5 * error.square() / kappa, size - 0.5 * kappa)
    tilt = (tau_tm1.detach()[..., None] - (error.detach() < 0).to(error.dtype)).abs()
    return (tilt * size).mean(2).sum(1)


def value_transform(x: torch.Tensor, eps: float = 1e-2) -> torch.Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x: https://arxiv.org/abs/1805.11593."""
    return x / (torch.sqrt(x.abs() + 1) + 1) + eps * x


def value_inv_transform(x: torch.Tensor, eps: float = 1e-2) -> torch.Tensor:
    """Return the inverse of `value_transform`.

    With w = sqrt(|h^-1(x)| + 1) - 1, |x| = eps w^2 + (1 + 2 eps) w, which is solved for w.
    """
    linear = 1 + 2 * eps
    scale = 2 / (linear + torch.sqrt(linear**2 + 4 * eps * x.abs()))
    return x * scale * (x.abs() * scale + 2)

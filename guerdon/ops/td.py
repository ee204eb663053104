"""Temporal-difference errors, row by row, and their reduction to losses.

Names carry time: `_tm1` is where the action was taken, `_t` is one step later. `discount_t` is
gamma * (1 - terminated). Errors are target - prediction, and no gradient passes to the target. For
n steps, `multistep_return` gives the `r_t` and `discount_t` of every function here.
"""

import torch
from torch.nn import functional

from guerdon.ops.checks import rows_of, same_shape, weighted_mean
from guerdon.ops.returns import lambda_return, multistep_return


def select_action(table: torch.Tensor, act: torch.Tensor) -> torch.Tensor:
    """What a table holds for the actions taken.

    Args:
        table: One entry per action, [..., A] or [..., A, N] (atoms or quantiles).
        act: int64, [...].

    Returns:
        [...] or [..., N].
    """
    axis = act.ndim
    if table.ndim not in (axis + 1, axis + 2) or table.shape[:axis] != act.shape:
        raise ValueError(
            f"Actions of shape {tuple(act.shape)} do not select from a table of shape "
            f"{tuple(table.shape)}; it needs their axes first, then one for the actions."
        )
    if table.ndim == axis + 1:
        return table.gather(axis, act.unsqueeze(-1)).squeeze(-1)
    return torch.take_along_dim(table, act[..., None, None], axis).squeeze(axis)


def double_q_value(q_t: torch.Tensor, q_t_selector: torch.Tensor) -> torch.Tensor:
    """The value of the next state in double Q-learning: https://arxiv.org/abs/1509.06461.

    Args:
        q_t: Q-values of the target network, [..., A].
        q_t_selector: Q-values of the network that learns, which chooses, [..., A].

    Returns:
        [...], without a gradient.
    """
    same_shape(q_t=q_t, q_t_selector=q_t_selector)
    return select_action(q_t, q_t_selector.argmax(-1)).detach()


# --- values


def value_error(
    v_tm1: torch.Tensor, r_t: torch.Tensor, discount_t: torch.Tensor, v_t: torch.Tensor
) -> torch.Tensor:
    """The one-step error of TD learning: https://doi.org/10.1007/BF00115009.

    Args:
        v_tm1: V(obs), [...].
        r_t: Rewards, [...].
        discount_t: gamma * (1 - terminated), [...].
        v_t: V(obs_next), [...].

    Returns:
        The errors, [...].
    """
    same_shape(v_tm1=v_tm1, r_t=r_t, discount_t=discount_t, v_t=v_t)
    return torch.addcmul(r_t, discount_t, v_t).detach() - v_tm1


def multistep_value_error(
    v_tm1: torch.Tensor,
    rew: torch.Tensor,
    discount: torch.Tensor,
    v_last: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The n-step error of a value, [B].

    Args:
        v_tm1: V(obs) of the first row, [B].
        rew: Rewards, [n, B].
        discount: gamma * (1 - terminated), [n, B].
        v_last: V(obs_next) of the last real row, [B]; `multistep_return` says which row that is.
        mask: Bool, [n, B]: False for rows that are no data.
    """
    r_t, discount_t, _ = multistep_return(rew, discount, mask)
    return value_error(v_tm1, r_t, discount_t, v_last)


def lambda_error(
    value: torch.Tensor,
    rew: torch.Tensor,
    value_next: torch.Tensor,
    discount: torch.Tensor,
    cut: torch.Tensor,
    trace_lambda: float,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The error of TD(lambda): the lambda-return less the value, [T, B]; 0 in masked rows.

    Args:
        value: V(obs), [T, B].
        rew: Rewards, [T, B].
        value_next: V(obs_next), [T, B].
        discount: gamma * (1 - terminated), [T, B].
        cut: Bool, [T, B]: the trace ends after this row.
        trace_lambda: 0 gives the one-step error, 1 the Monte-Carlo error.
        mask: Bool, [T, B]: False for rows that are no data.
    """
    same_shape(2, value=value, rew=rew)
    target = lambda_return(rew, value_next.detach(), discount, cut, trace_lambda, mask)
    error = target.detach() - value
    return error if mask is None else torch.where(mask, error, 0.0)


# --- Q-values


def q_error(
    q_tm1: torch.Tensor,
    a_tm1: torch.Tensor,
    r_t: torch.Tensor,
    discount_t: torch.Tensor,
    v_t: torch.Tensor,
) -> torch.Tensor:
    """The one-step error of Q-learning, SARSA and their kin: https://doi.org/10.1007/BF00992698.

    Args:
        q_tm1: Q(obs, .), [..., A].
        a_tm1: Actions taken, int64 [...].
        r_t: Rewards, [...].
        discount_t: gamma * (1 - terminated), [...].
        v_t: The value of obs_next, [...]: the largest Q-value, or `double_q_value`, or the Q-value
            of the next action, or a soft value.

    Returns:
        The errors, [...].
    """
    return value_error(select_action(q_tm1, a_tm1), r_t, discount_t, v_t)


def multistep_q_error(
    q_tm1: torch.Tensor,
    a_tm1: torch.Tensor,
    rew: torch.Tensor,
    discount: torch.Tensor,
    v_last: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The n-step error of Q-learning, [B].

    Args:
        q_tm1: Q(obs, .) of the first row, [B, A].
        a_tm1: Actions taken in the first row, int64 [B].
        rew: Rewards, [n, B].
        discount: gamma * (1 - terminated), [n, B].
        v_last: The value of obs_next of the last real row, [B].
        mask: Bool, [n, B]: False for rows that are no data.
    """
    return multistep_value_error(select_action(q_tm1, a_tm1), rew, discount, v_last, mask)


# --- distributions of the return


def categorical_projection(
    prob_t: torch.Tensor, r_t: torch.Tensor, discount_t: torch.Tensor, support: torch.Tensor
) -> torch.Tensor:
    """Moves a distribution over atoms by r + discount * z, and puts it back on the atoms (C51).

    Equation 7 of https://arxiv.org/abs/1707.06887: every atom i takes the share
    `clip(1 - |z' - z_i| / dz, 0, 1)` of a moved atom z'. Written with all pairs of atoms, it has no
    special case for an atom that falls on another, and adds in a fixed order on a device.

    Args:
        prob_t: Probabilities, [B, N].
        r_t: Rewards, [B].
        discount_t: gamma * (1 - terminated), [B].
        support: The atoms, evenly spaced and increasing, [N].

    Returns:
        Probabilities, [B, N], without a gradient.
    """
    same_shape(1, r_t=r_t, discount_t=discount_t)
    rows_of(prob_t, r_t=r_t)
    rows_of(prob_t.T, support=support)
    with torch.no_grad():
        moved = r_t[:, None] + discount_t[:, None] * support
        moved = torch.minimum(torch.maximum(moved, support[0]), support[-1])
        distance = (moved[:, None, :] - support[:, None]).abs() / (support[1] - support[0])
        return ((1 - distance).clamp(min=0) @ prob_t[:, :, None]).squeeze(-1)


def categorical_td_error(
    log_prob_tm1: torch.Tensor,
    r_t: torch.Tensor,
    discount_t: torch.Tensor,
    prob_t: torch.Tensor,
    support: torch.Tensor,
) -> torch.Tensor:
    """The loss of C51: the cross-entropy to the projected target, [B].

    https://arxiv.org/abs/1707.06887.

    Args:
        log_prob_tm1: log_softmax over the atoms, for the action taken, [B, N].
        r_t: Rewards, [B].
        discount_t: gamma * (1 - terminated), [B].
        prob_t: Probabilities for the next action, [B, N].
        support: The atoms, evenly spaced and increasing, [N].
    """
    same_shape(2, log_prob_tm1=log_prob_tm1, prob_t=prob_t)
    return -(categorical_projection(prob_t, r_t, discount_t, support) * log_prob_tm1).sum(-1)


def quantile_midpoints(n_quantiles: int, like: torch.Tensor) -> torch.Tensor:
    """The fixed fractions of QR-DQN, [N]: the middles of N equal parts of [0, 1]."""
    steps = torch.arange(n_quantiles, dtype=like.dtype, device=like.device)
    return (steps + 0.5) / n_quantiles


def quantile_td_error(
    quantile_tm1: torch.Tensor,
    tau_tm1: torch.Tensor,
    r_t: torch.Tensor,
    discount_t: torch.Tensor,
    quantile_t: torch.Tensor,
    kappa: float = 1.0,
) -> torch.Tensor:
    """The quantile Huber loss of QR-DQN and IQN, [B].

    https://arxiv.org/abs/1710.10044 and https://arxiv.org/abs/1806.06923: summed over the predicted
    quantiles, averaged over those of the target.

    Args:
        quantile_tm1: Quantiles for the action taken, [B, N].
        tau_tm1: Their fractions: [N] (`quantile_midpoints`), or drawn for each row, [B, N].
        r_t: Rewards, [B].
        discount_t: gamma * (1 - terminated), [B].
        quantile_t: Quantiles for the next action, [B, M].
        kappa: Where the square turns into a line; 0 for the plain quantile loss.
    """
    same_shape(1, r_t=r_t, discount_t=discount_t)
    rows_of(quantile_t, r_t=r_t)
    rows_of(quantile_tm1, r_t=r_t)
    if tau_tm1.shape not in (quantile_tm1.shape, quantile_tm1.shape[-1:]):
        raise ValueError(
            f"tau_tm1 must have the shape of quantile_tm1 {tuple(quantile_tm1.shape)} or of its "
            f"last axis, and has {tuple(tau_tm1.shape)}."
        )
    target = (r_t[:, None] + discount_t[:, None] * quantile_t).detach()
    error = target[:, None, :] - quantile_tm1[:, :, None]  # [B, N, M]
    size = error.abs()
    if kappa > 0:
        size = torch.where(size <= kappa, 0.5 * error.square() / kappa, size - 0.5 * kappa)
    tilt = (tau_tm1.detach()[..., None] - (error.detach() < 0).to(error.dtype)).abs()
    return (tilt * size).mean(2).sum(1)


# --- from errors to a loss


def squared_loss(
    error: torch.Tensor, weight: torch.Tensor | None = None, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Half the mean of the squared errors, 0-dim."""
    return 0.5 * weighted_mean(error.square(), weight, mask)


def huber_loss(
    value: torch.Tensor,
    target: torch.Tensor,
    delta: float = 1.0,
    weight: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The mean Huber loss, 0-dim: half the squared error, and beyond `delta` a line of that slope.

    https://doi.org/10.1214/aoms/1177703732.
    """
    same_shape(value=value, target=target)
    if weight is None and mask is None:
        return functional.huber_loss(value, target, delta=delta)
    loss = functional.huber_loss(value, target, reduction="none", delta=delta)
    return weighted_mean(loss, weight, mask)

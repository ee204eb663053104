"""Corrections for data that another policy collected: importance weights, V-trace, UPGO."""

from typing import NamedTuple

import torch

from guerdon.ops.checks import same_shape
from guerdon.ops.returns import backward_scan


class VTrace(NamedTuple):
    """What `vtrace` returns."""

    target: torch.Tensor
    """What the value shall become, [T, B]."""
    advantage: torch.Tensor
    """What weighs the log-probabilities in the policy's loss, [T, B]."""


def importance_weights(log_prob: torch.Tensor, log_prob_behaviour: torch.Tensor) -> torch.Tensor:
    """The ratio of the probabilities of what was done, [...], without a gradient.

    Args:
        log_prob: Under the policy that learns, [...].
        log_prob_behaviour: Under the policy that acted, [...].
    """
    same_shape(log_prob=log_prob, log_prob_behaviour=log_prob_behaviour)
    return torch.exp(log_prob.detach() - log_prob_behaviour.detach())


@torch.no_grad()
def vtrace(
    rew: torch.Tensor,
    value: torch.Tensor,
    value_next: torch.Tensor,
    discount: torch.Tensor,
    cut: torch.Tensor,
    ratio: torch.Tensor,
    trace_lambda: float = 1.0,
    rho_clip: float = 1.0,
    trace_clip: float = 1.0,
    advantage_rho_clip: float = 1.0,
    mask: torch.Tensor | None = None,
) -> VTrace:
    """V-trace of IMPALA: https://arxiv.org/abs/1802.01561, section 4.1.

    Args:
        rew: Rewards, [T, B].
        value: V(obs), [T, B].
        value_next: V(obs_next), of the true next observation, [T, B].
        discount: gamma * (1 - terminated), [T, B].
        cut: Bool, [T, B]: the trace ends after this row. It does not stop the bootstrap.
        ratio: `importance_weights`, [T, B].
        trace_lambda: Weighs the traces down, as in TD(lambda).
        rho_clip: Bound on the weight of an error; it decides which policy's value is learned.
        trace_clip: Bound on the weight of a trace; it decides how fast.
        advantage_rho_clip: Bound on the weight of an advantage.
        mask: Bool, [T, B]: False for rows that are no data. They get their value and 0.

    Returns:
        Targets and advantages, without a gradient.
    """
    same_shape(
        2,
        rew=rew,
        value=value,
        value_next=value_next,
        discount=discount,
        cut=cut,
        ratio=ratio,
        mask=mask,
    )
    trace = torch.where(cut, 0.0, discount * trace_lambda * ratio.clamp(max=trace_clip))
    delta = ratio.clamp(max=rho_clip) * (rew + discount * value_next - value)
    if mask is not None:
        trace = torch.where(mask, trace, 0.0)
        delta = torch.where(mask, delta, 0.0)
    correction = backward_scan(delta, trace)
    later = torch.where(cut, 0.0, _next_row(correction))
    advantage = rew + discount * (value_next + later) - value
    advantage = ratio.clamp(max=advantage_rho_clip) * advantage
    if mask is not None:
        advantage = torch.where(mask, advantage, 0.0)
    return VTrace(value + correction, advantage)


@torch.no_grad()
def upgo_return(
    rew: torch.Tensor,
    value: torch.Tensor,
    value_next: torch.Tensor,
    discount: torch.Tensor,
    cut: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The upgoing return of AlphaStar: https://doi.org/10.1038/s41586-019-1724-z.

    The return follows what happened as long as it went at least as well as expected, and takes the
    value where the next action turned out badly.

    Args:
        rew: Rewards, [T, B].
        value: V(obs), [T, B].
        value_next: V(obs_next), of the true next observation, [T, B].
        discount: gamma * (1 - terminated), [T, B].
        cut: Bool, [T, B]: the trace ends after this row. The last row always ends it.
        mask: Bool, [T, B]: False for rows that are no data. They get 0 and cut the trace.

    Returns:
        The returns, [T, B], without a gradient.
    """
    same_shape(
        2, rew=rew, value=value, value_next=value_next, discount=discount, cut=cut, mask=mask
    )
    went_well = rew + discount * value_next >= value
    if mask is not None:
        went_well = went_well & mask
    follow = _next_row(went_well) & ~cut
    target = rew + torch.where(follow, 0.0, discount * value_next)
    trace = torch.where(follow, discount, 0.0)
    if mask is not None:
        target = torch.where(mask, target, 0.0)
        trace = torch.where(mask, trace, 0.0)
    return backward_scan(target, trace)


def _next_row(x: torch.Tensor) -> torch.Tensor:
    """The row that follows in time; 0 after the last."""
    return torch.cat((x[1:], torch.zeros_like(x[:1])))

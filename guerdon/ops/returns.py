"""Returns and advantages of rollouts [T, B].

The suffix `_tm1` is the time of the action, `_t` one step later. `discount_t` is
gamma * (1 - terminated). Every estimator is a linear recurrence, solved by `backward_scan`.
"""

import numpy as np
import torch

from guerdon.extras import compiled
from guerdon.ops.checks import same_shape


def generalized_advantage(
    r_t: torch.Tensor,
    v_tm1: torch.Tensor,
    v_t: torch.Tensor,
    discount_t: torch.Tensor,
    cut_t: torch.Tensor,
    gae_lambda: float,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Generalized advantage estimation, GAE(lambda): https://arxiv.org/abs/1506.02438.

    Args:
        r_t: Rewards, [T, B].
        v_tm1: V(obs), [T, B].
        v_t: V(obs_next) of the true next observation, [T, B].
        discount_t: gamma * (1 - terminated), [T, B].
        cut_t: Bool, [T, B]: whether the trace ends after this row: the episode terminated or was
            truncated, or the row is the newest one. Only `discount_t` stops the bootstrap.
        gae_lambda: 0 gives the one-step TD error, 1 the discounted return minus the value.
        mask: Bool, [T, B]: False for rows that are not transitions. They get 0 and cut the trace.

    Returns:
        Advantages, [T, B]. `advantage + v_tm1` are the targets of a critic.
    """
    same_shape(2, r_t=r_t, v_tm1=v_tm1, v_t=v_t, discount_t=discount_t, cut_t=cut_t, mask=mask)
    delta = r_t + discount_t * v_t - v_tm1
    trace = torch.where(cut_t, 0.0, discount_t * gae_lambda)
    if mask is not None:
        delta = torch.where(mask, delta, 0.0)
        trace = torch.where(mask, trace, 0.0)
    return backward_scan(delta, trace)


def vtrace(
    r_t: torch.Tensor,
    v_tm1: torch.Tensor,
    v_t: torch.Tensor,
    discount_t: torch.Tensor,
    cut_t: torch.Tensor,
    log_rho_tm1: torch.Tensor,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    trace_lambda: float = 1.0,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """V-trace, for rollouts of an older policy: https://arxiv.org/abs/1802.01561, section 4.1.

    Args:
        r_t: See `generalized_advantage`, also for the other arguments up to `cut_t`.
        v_tm1: V(obs), [T, B].
        v_t: V(obs_next), [T, B].
        discount_t: gamma * (1 - terminated), [T, B].
        cut_t: Whether the trace ends after this row, [T, B].
        log_rho_tm1: Log-probability of the action under the current policy minus that under the
            policy that acted, [T, B].
        rho_clip: Largest weight of a TD error.
        c_clip: Largest weight in a trace.
        trace_lambda: Factor of the weights in a trace.
        mask: False for rows that are not transitions, [T, B]. They get 0 and cut the trace.

    Returns:
        Targets of a critic, advantages of an actor, and the clipped weights rho by which its losses
        are multiplied, [T, B].
    """
    same_shape(
        2, r_t=r_t, v_tm1=v_tm1, v_t=v_t, discount_t=discount_t, cut_t=cut_t,
        log_rho_tm1=log_rho_tm1, mask=mask,
    )  # fmt: skip
    weight = log_rho_tm1.exp()
    rho = weight.clamp(max=rho_clip)
    delta = rho * (r_t + discount_t * v_t - v_tm1)
    trace = discount_t * trace_lambda * weight.clamp(max=c_clip)
    trace = torch.where(cut_t, 0.0, trace)
    if mask is not None:
        delta = torch.where(mask, delta, 0.0)
        trace = torch.where(mask, trace, 0.0)
    error = backward_scan(delta, trace)  # targets minus values
    target = v_tm1 + error
    after = torch.cat((target[1:], v_t[-1:]))
    target_t = torch.where(cut_t, v_t, after)
    advantage = r_t + discount_t * target_t - v_tm1
    if mask is None:
        return target, advantage, rho
    target, advantage, rho = (torch.where(mask, each, 0.0) for each in (target, advantage, rho))
    return target, advantage, rho


@torch.no_grad()
def lambda_returns(
    bootstrap_values: torch.Tensor,
    rewards: torch.Tensor,
    gammas: float | torch.Tensor,
    lambda_: float | torch.Tensor,
) -> torch.Tensor:
    """Lambda-returns [T, B] of values [T + 1, B]; all else is [T, B], or a number."""
    value, gamma = bootstrap_values[1:], torch.as_tensor(gammas).expand_as(rewards)
    decay = torch.as_tensor(lambda_, dtype=rewards.dtype).expand_as(rewards).clone()
    decay[-1] = 0  # nothing is known about later rewards
    return backward_scan(rewards + gamma * (1 - decay) * value, gamma * decay)


def multistep_return(
    r_t: torch.Tensor, discount_t: torch.Tensor, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the n-step return without its bootstrap.

    The target is `returns + discounts * V(obs_next of row last)`, as in section 7.1 of
    http://incompleteideas.net/book/RLbook2020.pdf.

    Args:
        r_t: Rewards of n consecutive rows, [n, B].
        discount_t: gamma * (1 - terminated), [n, B].
        mask: Bool, [n, B]: the return ends before the first row that is False.

    Returns:
        `returns` [B], `discounts` [B] (the product over the rows used) and `last` [B], the index of
        the last row used. All are 0 where the first row is masked.
    """
    same_shape(2, r_t=r_t, discount_t=discount_t, mask=mask)
    if mask is None:
        last = torch.full(r_t.shape[1:], len(r_t) - 1, device=r_t.device)
        products = discount_t.cumprod(0)
    else:
        mask = mask.cumprod(0).bool()
        last = (mask.sum(0) - 1).clamp(min=0)
        r_t = torch.where(mask, r_t, 0.0)
        products = torch.where(mask, discount_t, 1.0).cumprod(0)
    returns = r_t[0] + (r_t[1:] * products[:-1]).sum(0)
    discounts = products[-1] if mask is None else torch.where(mask[0], products[-1], 0.0)
    return returns, discounts, last


def backward_scan(x: torch.Tensor, coefficient: torch.Tensor) -> torch.Tensor:
    """Solve y[t] = x[t] + coefficient[t] * y[t + 1], with y[T] = 0.

    With rewards and discounts this is the discounted return of every row. CPU tensors use a
    compiled loop; other devices, where launches dominate, and autograd use a parallel scan of
    log2(T) rounds (https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf).

    Args:
        x: [T, B].
        coefficient: [T, B].
    """
    same_shape(2, x=x, coefficient=coefficient)
    compiled = x.is_cpu and x.dtype in (torch.float32, torch.float64)
    if compiled and not (x.requires_grad or coefficient.requires_grad):
        return torch.from_numpy(_scan_loop(x.numpy(), coefficient.numpy()))
    step = 1
    while step < len(x):  # each row is the sum of `step` rows, and the weight of the next one
        rows = len(x) - step
        x = torch.cat((torch.addcmul(x[:rows], coefficient[:rows], x[step:]), x[rows:]))
        coefficient = coefficient[:-step] * coefficient[step:]
        step *= 2
    return x


@compiled()
def _scan_loop(x: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
    y = x.copy()
    for t in range(len(x) - 2, -1, -1):
        for b in range(x.shape[1]):
            y[t, b] += coefficient[t, b] * y[t + 1, b]
    return y

"""Returns and advantages from rollouts [T, B]: numpy arrays or torch tensors, the same numbers.

Every estimator here is one linear recurrence backwards in time, `y[t] = x[t] + c[t] * y[t + 1]`.
In the main memory a compiled loop solves it. On a device, where each operation costs a launch, and
where autograd has to follow, log2(T) rounds of doubling do
(https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf).
"""

import numpy as np
import torch
from numba import njit

from guerdon.ops.checks import Array, same_shape

_COMPILED = (torch.float32, torch.float64)  # what the compiled loop can read


def discounted_sum(rew: Array, discount: Array, bootstrap: Array | None = None) -> Array:
    """The discounted sum of the rewards from each row on.

    `G[t] = rew[t] + discount[t] * G[t + 1]`, with `bootstrap` after the last row.

    Args:
        rew: Rewards, [T, B].
        discount: gamma * (1 - terminated), [T, B].
        bootstrap: Value after the last row, [B]; None for 0.

    Returns:
        The sums, [T, B].
    """
    same_shape(2, rew=rew, discount=discount)
    if bootstrap is not None:
        same_shape(1, **{"rew[0]": rew[0], "bootstrap": bootstrap})
        last = rew[-1:] + discount[-1:] * bootstrap
        rew = _concatenate(rew[:-1], last)
    return backward_scan(rew, discount)


def generalized_advantage(
    rew: Array,
    value: Array,
    value_next: Array,
    discount: Array,
    cut: Array,
    gae_lambda: float,
    mask: Array | None = None,
) -> Array:
    """Generalized advantage estimation, GAE(lambda): https://arxiv.org/abs/1506.02438.

    Args:
        rew: Rewards, [T, B].
        value: V(obs), [T, B].
        value_next: V(obs_next), of the true next observation, [T, B].
        discount: gamma * (1 - terminated), [T, B].
        cut: Bool, [T, B]: the trace ends after this row, because the episode ended or was broken
            off, or because it is the newest row. It does not stop the bootstrap; `discount` does.
        gae_lambda: 0 gives the one-step error, 1 the discounted sum less the value.
        mask: Bool, [T, B]: False for rows that are no data. They get 0 and cut the trace.

    Returns:
        Advantages, [T, B]. `advantage + value` are the returns a critic learns.
    """
    same_shape(
        2, rew=rew, value=value, value_next=value_next, discount=discount, cut=cut, mask=mask
    )
    delta = rew + discount * value_next - value
    trace = _where(cut, 0.0, discount * gae_lambda)
    if mask is not None:
        delta = _where(mask, delta, 0.0)
        trace = _where(mask, trace, 0.0)
    return backward_scan(delta, trace)


def lambda_return(
    rew: Array,
    value_next: Array,
    discount: Array,
    cut: Array,
    trace_lambda: float,
    mask: Array | None = None,
) -> Array:
    """The lambda-return of TD(lambda): http://incompleteideas.net/book/RLbook2020.pdf (12.1).

    `G[t] = rew[t] + discount[t] * ((1 - lambda) * value_next[t] + lambda * G[t + 1])`, and where
    the trace is cut `rew[t] + discount[t] * value_next[t]`.

    Args:
        rew: Rewards, [T, B].
        value_next: V(obs_next), [T, B].
        discount: gamma * (1 - terminated), [T, B].
        cut: Bool, [T, B]: the trace ends after this row. The last row always ends it.
        trace_lambda: 0 gives the one-step target, 1 the Monte-Carlo return.
        mask: Bool, [T, B]: False for rows that are no data. They get 0 and cut the trace.

    Returns:
        The returns, [T, B].
    """
    same_shape(2, rew=rew, value_next=value_next, discount=discount, cut=cut, mask=mask)
    ends = _concatenate(cut[:-1], cut[-1:] | True)
    if mask is not None:
        ends = ends | _concatenate(~mask[1:], ~mask[-1:])
    trace = _where(ends, 0.0, discount * trace_lambda)
    target = rew + (discount - trace) * value_next
    if mask is not None:
        target = _where(mask, target, 0.0)
        trace = _where(mask, trace, 0.0)
    return backward_scan(target, trace)


def multistep_return(
    rew: Array, discount: Array, mask: Array | None = None
) -> tuple[Array, Array, Array]:
    """The n-step return without its bootstrap.

    The target is `returns + discounts * V(obs_next of row last)`, as in section 7.1 of
    http://incompleteideas.net/book/RLbook2020.pdf.

    Args:
        rew: Rewards of n consecutive rows, [n, B].
        discount: gamma * (1 - terminated), [n, B].
        mask: Bool, [n, B]: False for rows that are no data; the return ends before the first.

    Returns:
        `returns` [B], `discounts` [B] (the product over the rows counted) and `last` [B], the index
        of the last row counted. Where the first row is no data they are 0, 0 and 0.
    """
    same_shape(2, rew=rew, discount=discount, mask=mask)
    if isinstance(rew, np.ndarray):
        real = np.ones(rew.shape, np.bool_) if mask is None else mask
        return _multistep(rew, discount, real)
    if mask is None:
        last = torch.full(rew.shape[1:], len(rew) - 1, device=rew.device)
        products = discount.cumprod(0)
    else:
        mask = mask.cumprod(0).bool()
        last = (mask.sum(0) - 1).clamp(min=0)
        rew = torch.where(mask, rew, 0.0)
        products = torch.where(mask, discount, 1.0).cumprod(0)
    returns = rew[0] + (rew[1:] * products[:-1]).sum(0)
    discounts = products[-1] if mask is None else torch.where(mask[0], products[-1], 0.0)
    return returns, discounts, last


def backward_scan(x: Array, coefficient: Array) -> Array:
    """Solves y[t] = x[t] + coefficient[t] * y[t + 1], with y[T] = 0."""
    if isinstance(x, np.ndarray):
        return _scan_loop(x, coefficient)
    if x.is_cpu and x.dtype in _COMPILED and not (x.requires_grad or coefficient.requires_grad):
        return torch.from_numpy(_scan_loop(x.numpy(), coefficient.numpy()))
    return _scan_doubling(x, coefficient)


@njit(cache=True)
def _scan_loop(x: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
    y = x.copy()
    for t in range(len(x) - 2, -1, -1):
        for b in range(x.shape[1]):
            y[t, b] += coefficient[t, b] * y[t + 1, b]
    return y


def _scan_doubling(x: torch.Tensor, coefficient: torch.Tensor) -> torch.Tensor:
    """After round k a row holds the sum of 2^k rows, and the weight of the row 2^k further on."""
    step = 1
    while step < len(x):
        rows = len(x) - step  # those with a row so far ahead
        x = torch.cat((torch.addcmul(x[:rows], coefficient[:rows], x[step:]), x[rows:]))
        coefficient = coefficient[:-step] * coefficient[step:]
        step *= 2
    return x


@njit(cache=True)
def _multistep(
    rew: np.ndarray, discount: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    returns = np.zeros(rew.shape[1], rew.dtype)
    discounts = np.zeros(rew.shape[1], discount.dtype)
    last = np.zeros(rew.shape[1], np.int64)
    for b in range(rew.shape[1]):
        product = 1.0
        for k in range(len(rew)):
            if not mask[k, b]:
                break
            returns[b] += product * rew[k, b]
            product *= discount[k, b]
            discounts[b] = product
            last[b] = k
    return returns, discounts, last


def _where(condition: Array, x: Array | float, y: Array | float) -> Array:
    if isinstance(condition, np.ndarray):
        return np.where(condition, x, y)
    return torch.where(condition, x, y)


def _concatenate(*arrays: Array) -> Array:
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    return torch.cat(arrays)

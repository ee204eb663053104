"""Distances of reward functions: EPIC, https://arxiv.org/abs/2006.13900."""

import torch

from guerdon.ops.checks import same_shape


def canonical_reward(
    r_t: torch.Tensor,
    mean_t: torch.Tensor,
    mean_tp1: torch.Tensor,
    mean: torch.Tensor | float,
    gamma: float,
) -> torch.Tensor:
    """Return rewards of transitions, without what potential shaping can add.

    With A and S' drawn independently of the transitions:

    Args:
        r_t: Rewards of transitions (s, a, s') [N].
        mean_t: Mean of the rewards of (s, A, S') [N].
        mean_tp1: Mean of the rewards of (s', A, S') [N].
        mean: Mean of the rewards of (S, A, S').
        gamma: Discount factor.
    """
    same_shape(1, r_t=r_t, mean_t=mean_t, mean_tp1=mean_tp1)
    return r_t + gamma * mean_tp1 - mean_t - gamma * mean


def pearson_distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return sqrt((1 - correlation) / 2) of two vectors [N], 0-dim.

    0 for vectors that differ by a positive scale and a constant, 1 for opposite ones, sqrt(1/2)
    for uncorrelated ones, and not a number if one is constant.
    """
    same_shape(1, x=x, y=y)
    x, y = x - x.mean(), y - y.mean()
    correlation = (x * y).sum() / (x.square().sum() * y.square().sum()).sqrt()
    return ((1 - correlation).clamp(0, 2) / 2).sqrt()

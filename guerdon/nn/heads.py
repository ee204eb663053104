"""Output layers; every head returns a dictionary.

Their arguments are the number of input features, the number or shape of actions, and the gain of
the orthogonal initialisation; None for PyTorch's default.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from guerdon.nn.init import apply_linear, linear

LOG_STD_BOUNDS = (-20.0, 2.0)
"""Bounds of a log standard deviation that depends on the state."""

Output = dict[str, Tensor]


class DiscreteHead(nn.Module):
    """One output per action: ``logit`` [..., n_actions]."""

    def __init__(self, size: int, n_actions: int, gain: float | None = None) -> None:
        super().__init__()
        self.linear = linear(size, n_actions, gain)

    def forward(self, features: Tensor) -> Output:
        """Return ``logit`` for features [..., size]."""
        return {"logit": apply_linear(self.linear, features)}


class DuelingHead(nn.Module):
    """State value plus advantages minus their mean: ``logit`` [..., n_actions].

    https://arxiv.org/abs/1511.06581
    """

    def __init__(self, size: int, n_actions: int, gain: float | None = None) -> None:
        super().__init__()
        self.value = linear(size, 1, gain)
        self.advantage = linear(size, n_actions, gain)

    def forward(self, features: Tensor) -> Output:
        """Return ``logit`` for features [..., size]."""
        advantage = self.advantage(features)
        return {"logit": self.value(features) + advantage - advantage.mean(-1, keepdim=True)}


class ContinuousHead(nn.Module):
    """A Gaussian over actions: ``mu`` and ``log_std``, both [..., *shape].

    With `state_dependent`, the standard deviation depends on the state and is bounded (SAC);
    otherwise it is one learned vector, of ones at first (PPO).
    """

    def __init__(
        self,
        size: int,
        shape: Sequence[int],
        gain: float | None = None,
        state_dependent: bool = False,
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.state_dependent = state_dependent
        self.linear = linear(size, math.prod(self.shape) * (1 + state_dependent), gain)
        if not state_dependent:
            self.log_std = nn.Parameter(torch.zeros(self.shape))

    def forward(self, features: Tensor) -> Output:
        """Return ``mu`` and ``log_std`` for features [..., size]."""
        output = apply_linear(self.linear, features)
        if not self.state_dependent:
            mu = _reshaped(output, self.shape)
            return {"mu": mu, "log_std": self.log_std.expand_as(mu)}
        mu, log_std = (_reshaped(part, self.shape) for part in output.chunk(2, -1))
        return {"mu": mu, "log_std": log_std.clamp(*LOG_STD_BOUNDS)}


class DeterministicHead(nn.Module):
    """One action, squashed by tanh: ``action`` [..., *shape] in [-1, 1]."""

    def __init__(self, size: int, shape: Sequence[int], gain: float | None = None) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.linear = linear(size, math.prod(self.shape), gain)

    def forward(self, features: Tensor) -> Output:
        """Return ``action`` for features [..., size]."""
        return {"action": _reshaped(apply_linear(self.linear, features).tanh_(), self.shape)}


def _reshaped(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    return flat if len(shape) == 1 else flat.reshape(*flat.shape[:-1], *shape)

"""Output layers; every head returns a dictionary."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from guerdon.nn.init import apply_linear, linear

Output = dict[str, Tensor]
Bounds = tuple[float, float]


class DiscreteHead(nn.Module):
    """One number per action: ``logit`` [..., n_actions].

    Args:
        size: Number of input features.
        n_actions: Number of actions.
        gain: Gain of the orthogonal initialisation; None for PyTorch's default.
    """

    def __init__(self, size: int, n_actions: int, gain: float | None = None) -> None:
        super().__init__()
        self.linear = linear(size, n_actions, gain)

    def forward(self, features: Tensor) -> Output:
        """``logit`` of features [..., size]."""
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
        """``logit`` of features [..., size]."""
        advantage = self.advantage(features)
        return {"logit": self.value(features) + advantage - advantage.mean(-1, keepdim=True)}


class ContinuousHead(nn.Module):
    """A Gaussian over actions: ``mu`` and ``log_std``, both [..., *shape].

    Args:
        size: Number of input features.
        shape: Shape of an action.
        state_dependent: Whether the standard deviation depends on the state (SAC) or is one
            learned vector (PPO).
        log_std: Initial value of a `log_std` that does not depend on the state.
        bounds: What `log_std` is clamped to, or None.
        gain: Gain of the orthogonal initialisation; None for PyTorch's default.
    """

    def __init__(
        self,
        size: int,
        shape: Sequence[int],
        *,
        state_dependent: bool = False,
        log_std: float = 0.0,
        bounds: Bounds | None = None,
        gain: float | None = None,
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        n_actions = math.prod(self.shape)
        self.state_dependent = state_dependent
        self.bounds = bounds
        self.linear = linear(size, n_actions * (1 + state_dependent), gain)
        if not state_dependent:
            self.log_std = nn.Parameter(torch.full(self.shape, log_std))

    def forward(self, features: Tensor) -> Output:
        """``mu`` and ``log_std`` of features [..., size]."""
        mu = apply_linear(self.linear, features)
        if self.state_dependent:
            mu, log_std = mu.chunk(2, -1)
        if len(self.shape) != 1:
            mu = mu.reshape(*mu.shape[:-1], *self.shape)
        log_std = log_std.reshape(mu.shape) if self.state_dependent else self.log_std.expand_as(mu)
        if self.bounds is not None:
            log_std = log_std.clamp(*self.bounds)
        return {"mu": mu, "log_std": log_std}


class DeterministicHead(nn.Module):
    """One action, squashed by tanh: ``action`` [..., *shape] in [-1, 1]."""

    def __init__(self, size: int, shape: Sequence[int], gain: float | None = None) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.linear = linear(size, math.prod(self.shape), gain)

    def forward(self, features: Tensor) -> Output:
        """``action`` of features [..., size]."""
        action = apply_linear(self.linear, features).tanh_()
        if len(self.shape) != 1:
            action = action.reshape(*action.shape[:-1], *self.shape)
        return {"action": action}

"""From features to what a network is asked for. Every head gives a dictionary."""

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
        size: Features of the input.
        n_actions: How many actions there are.
        gain: Of orthogonal weights; None for torch's own.
    """

    def __init__(self, size: int, n_actions: int, gain: float | None = None) -> None:
        super().__init__()
        self.linear = linear(size, n_actions, gain)

    def forward(self, features: Tensor) -> Output:
        """``logit`` of features [..., size]."""
        return {"logit": apply_linear(self._modules["linear"], features)}


class DuelingHead(nn.Module):
    """The state's value plus each action's advantage less their mean: ``logit`` [..., n_actions].

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


class DistributionalHead(nn.Module):
    """Chances of fixed returns (C51, https://arxiv.org/abs/1707.06887).

    Gives ``distribution`` [..., n_actions, n_atoms], and its mean as ``logit`` [..., n_actions].

    Args:
        size: Features of the input.
        n_actions: How many actions there are.
        n_atoms: How many returns are told apart.
        bounds: The smallest and the largest of them.
        gain: Of orthogonal weights; None for torch's own.
    """

    def __init__(
        self,
        size: int,
        n_actions: int,
        n_atoms: int = 51,
        bounds: Bounds = (-10.0, 10.0),
        gain: float | None = None,
    ) -> None:
        super().__init__()
        self.linear = linear(size, n_actions * n_atoms, gain)
        self.shape = (n_actions, n_atoms)
        self.register_buffer("support", torch.linspace(*bounds, n_atoms), persistent=False)
        self.support: Tensor

    def forward(self, features: Tensor) -> Output:
        """``logit`` and ``distribution`` of features [..., size]."""
        distribution = self.linear(features).unflatten(-1, self.shape).softmax(-1)
        return {"logit": distribution @ self.support, "distribution": distribution}


class QuantileHead(nn.Module):
    """Quantiles of the return (QR-DQN, https://arxiv.org/abs/1710.10044).

    Gives ``quantile`` [..., n_actions, n_quantiles], and its mean as ``logit`` [..., n_actions].
    """

    def __init__(
        self, size: int, n_actions: int, n_quantiles: int = 32, gain: float | None = None
    ) -> None:
        super().__init__()
        self.linear = linear(size, n_actions * n_quantiles, gain)
        self.shape = (n_actions, n_quantiles)

    def forward(self, features: Tensor) -> Output:
        """``logit`` and ``quantile`` of features [..., size]."""
        quantile = self.linear(features).unflatten(-1, self.shape)
        return {"logit": quantile.mean(-1), "quantile": quantile}


class ContinuousHead(nn.Module):
    """A Gaussian over actions: ``mu`` and ``log_std``, both [..., *shape].

    Args:
        size: Features of the input.
        shape: The shape of an action.
        state_dependent: Whether the spread depends on the state (SAC) or is learned as one vector
            (PPO).
        log_std: Where a spread that does not depend on the state begins.
        bounds: What `log_std` is clamped to, or None.
        gain: Of orthogonal weights; None for torch's own.
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
        mu = apply_linear(self._modules["linear"], features)
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
        action = apply_linear(self._modules["linear"], features).tanh_()
        if len(self.shape) != 1:
            action = action.reshape(*action.shape[:-1], *self.shape)
        return {"action": action}

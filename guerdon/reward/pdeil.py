"""PDEIL: a reward from the densities of states and actions, estimated outright.

https://arxiv.org/abs/2112.06746.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from guerdon.nn.encoders import MLP
from guerdon.nn.init import linear
from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.inputs import TransitionInput, refuse_images, tensors
from guerdon.reward.trained import ImitationConfig, ImitationReward

if TYPE_CHECKING:
    from guerdon.data.batch import Batch


class PDEILConfig(ImitationConfig):
    """Options of `pdeil`."""

    alpha: float = Field(default=0.5, gt=0, le=1)
    """How much the experts' states count against the policy's: near 0, it is worth most to go where
    the policy seldom is and experts are; with 1, the policy does not matter. The largest reward
    is 1 / alpha."""
    regularization: float = Field(default=1e-2, gt=0)
    """Added to all variances, in units of the experts' own: keeps densities finite where numbers
    hardly vary, or follow from each other; 1e-3 to 0.1."""
    hidden_size: PositiveInt | list[PositiveInt] = Field(default=[64])
    """Sizes of the hidden layers of the classifier of discrete actions."""
    update_per_collect: int = Field(default=1000, ge=1)
    """Gradient steps of that classifier; it is trained once, with all of them; 100 to 10,000."""
    train_every: int | None = Field(default=256, ge=1)
    """New transitions after which the density of the policy's states is estimated anew."""
    buffer_size: int = Field(default=10_000, ge=1)
    """States of the policy, the newest ones, that this is done with at most."""


class Gaussian(nn.Module):
    """A normal distribution that is fitted to rows.

    Args:
        size: Numbers of a row.
        regularization: Added to the variances.
    """

    def __init__(self, size: int, regularization: float) -> None:
        super().__init__()
        self.regularization = regularization
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("whiten", torch.eye(size, dtype=torch.float64))
        self.register_buffer("log_peak", torch.tensor(-0.5 * size * math.log(2 * math.pi)).double())
        self.mean: Tensor
        self.whiten: Tensor
        self.log_peak: Tensor

    def fit(self, rows: Tensor) -> None:
        """Takes mean and covariance of rows [N, size]."""
        mean = rows.mean(0)
        centred = rows - mean
        covariance = centred.T @ centred / len(rows)
        covariance.diagonal().add_(self.regularization)
        factor = torch.linalg.cholesky(covariance)
        unit = torch.eye(len(mean), dtype=factor.dtype, device=factor.device)
        self.mean.copy_(mean)
        self.whiten.copy_(torch.linalg.solve_triangular(factor, unit, upper=False))
        self.log_peak.fill_(-0.5 * len(mean) * math.log(2 * math.pi))
        self.log_peak.sub_(factor.diagonal().log().sum())

    def forward(self, rows: Tensor) -> Tensor:
        """Log-densities [...] of rows [..., size]."""
        return self.log_peak + self.relative(rows)

    def relative(self, rows: Tensor) -> Tensor:
        """Log-densities [...] less the largest that there is: 0 at the mean."""
        whitened: Tensor = (rows - self.mean) @ self.whiten.T
        return -0.5 * whitened.square().sum(-1)


class ContinuousActions(nn.Module):
    """How likely actions are in a state, where both together are normally distributed.

    Args:
        setting: Knows the spaces.
        size: Numbers of a state.
        regularization: Added to the variances.
    """

    def __init__(self, setting: Setting, size: int, regularization: float) -> None:
        super().__init__()
        self.input = TransitionInput(setting, ["act"])
        self.regularization = regularization
        self.register_buffer("slope", torch.zeros(size, self.input.size, dtype=torch.float64))
        self.slope: Tensor
        self.rest = Gaussian(self.input.size, regularization)

    def fit(self, state: Tensor, act: Tensor) -> None:
        """Regresses actions on states [N, size]."""
        self.input.update({"act": act})
        action = self._action(act)
        centred = state - state.mean(0)
        square = centred.T @ centred / len(state)
        square.diagonal().add_(self.regularization)
        self.slope.copy_(torch.linalg.solve(square, centred.T @ action / len(state)))
        self.rest.fit(action - state @ self.slope)

    def forward(self, state: Tensor, act: Tensor) -> Tensor:
        """Log-densities [...], relative to that of the likeliest action."""
        return self.rest.relative(self._action(act) - state @ self.slope)

    def _action(self, act: Tensor) -> Tensor:
        action: Tensor = self.input({"act": act})
        return action.double()


class DiscreteActions(nn.Module):
    """How likely actions are in a state, by a classifier.

    Args:
        space: That of actions.
        size: Numbers of a state.
        hidden: Sizes of the hidden layers.
    """

    def __init__(self, space: spaces.Discrete, size: int, hidden: list[int]) -> None:
        super().__init__()
        self.start = int(space.start)
        body = MLP(size, hidden)
        self.layers = nn.Sequential(body, linear(body.size, int(space.n), 0.01))

    def forward(self, state: Tensor, act: Tensor) -> Tensor:
        """Log-probabilities [...]."""
        logits: Tensor = self.layers(state.float())
        index = act.long()[..., None] - self.start
        return logits.log_softmax(-1).gather(-1, index).squeeze(-1)


class Densities(nn.Module):
    """All that is estimated; rewards follow from it.

    Args:
        setting: Knows the spaces.
        config: Its options.
    """

    def __init__(self, setting: Setting, config: PDEILConfig) -> None:
        super().__init__()
        self.alpha = config.alpha
        self.input = TransitionInput(setting, ["obs"])
        size, space = self.input.size, setting.action_space
        self.expert = Gaussian(size, config.regularization)
        self.policy = Gaussian(size, config.regularization)
        self.actions: ContinuousActions | DiscreteActions
        if isinstance(space, spaces.Discrete):
            self.actions = DiscreteActions(space, size, config.hidden)
        else:
            self.actions = ContinuousActions(setting, size, config.regularization)

    def state(self, obs: Any) -> Tensor:
        """Observations as rows [..., size], in units of the experts' spread."""
        state: Tensor = self.input({"obs": obs})
        return state.double()

    def forward(self, data: Any) -> Tensor:
        """Rewards [...] of transitions."""
        state = self.state(data["obs"])
        # All in logarithms: of both densities of states only the ratio matters, which exists where
        # they themselves are 0 in any precision.
        ratio = math.log1p(-self.alpha) if self.alpha < 1 else -math.inf
        log_ratio = self.policy(state) - self.expert(state) + ratio
        below = torch.logaddexp(log_ratio, torch.full_like(log_ratio, math.log(self.alpha)))
        log_action: Tensor = self.actions(state, data["act"])
        return (log_action - below).exp()

    def learn(self, data: Any) -> Tensor:
        """The loss of a classifier of actions on transitions."""
        log_action: Tensor = self.actions(self.state(data["obs"]), data["act"])
        return -log_action.mean()


@register_reward_model("pdeil")
class PDEIL(ImitationReward):
    """Rewards what experts do in states where they are, and the more the less the policy is there.

    The reward is ``e(s) e(a|s) / (alpha e(s) + (1 - alpha) p(s))`` with the densities ``e`` of the
    experts and ``p`` of the policy. States are normally distributed, and so are continuous actions
    in a state; ``e(a|s)`` then is relative to its largest value, which scales all rewards alike.
    Before the policy has done anything, its states are taken to be the experts'.
    """

    Config = PDEILConfig
    fields = ("obs", "act")
    network: Densities

    def build(self, setting: Setting) -> None:
        """Makes the densities."""
        refuse_images("pdeil", setting)
        space = setting.action_space
        if not isinstance(space, spaces.Discrete | spaces.Box):
            raise ValueError(f"pdeil needs actions of a Discrete or Box space, not of {space}")
        self.network = Densities(setting, self.config).to(self.device)
        if isinstance(space, spaces.Discrete):
            self.optimizers["network"] = Optimizer(
                self.network.parameters(), self.config.learning_rate, alone=True
            )

    @torch.no_grad()
    def take_experts(self, rows: Batch) -> None:  # noqa: ARG002 - it has them as tensors
        """Estimates the experts' densities."""
        network, expert = self.network, self.expert
        network.input.settle(expert)
        state = network.state(expert["obs"])
        network.expert.fit(state)
        network.policy.fit(state)
        if isinstance(network.actions, ContinuousActions):
            network.actions.fit(state, expert["act"])

    def pretrain(self) -> Metrics | None:
        """Fits the classifier of discrete actions, if that was not done before."""
        if self.trained:
            return None
        self.need_experts()
        if not self.optimizers:
            self.trained = 1  # there is no more to it than their densities
            return None
        return self.fit(self.config.update_per_collect)

    def train(self) -> Metrics | None:
        """Estimates the density of the policy's states, if there is enough that is new."""
        metrics = self.pretrain() or {}
        if self._new >= self.waits_for:
            self._new = 0
            metrics |= self._follow()
        return metrics or None

    @torch.no_grad()
    def _follow(self) -> Metrics:
        network = self.network
        state = network.state(tensors(self.memory.rows().obs, self.device))
        network.policy.fit(state)
        return {"divergence": (network.policy(state) - network.expert(state)).mean()}

    def step(self) -> Metrics:
        """One step of telling which action an expert took."""
        loss = self.network.learn(self.sample_expert(self.config.batch_size))
        self.optimizers["network"].step(loss)
        return {"loss": loss.detach()}

    @torch.no_grad()
    def score(self, data: Batch) -> Tensor:
        """See the class."""
        self.prepare(data)
        rewards: Tensor = self.network(self.tensors(data))
        return rewards

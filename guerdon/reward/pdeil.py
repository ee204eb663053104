"""PDEIL: a reward from estimated densities of states and actions.

https://arxiv.org/abs/2112.06746.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from guerdon.config.validation import refuse
from guerdon.data.batch import Batch
from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.inputs import TransitionInput, layers
from guerdon.reward.trained import (
    ImitationConfig,
    PretrainedReward,
    TrainedConfig,
    TrainedReward,
)


class PDEILConfig(ImitationConfig, TrainedConfig):
    """Options of `pdeil`."""

    alpha: float = Field(default=0.5, gt=0, le=1)
    """Weight of the expert's state density against the policy's. Near 0, demonstrated states that
    the policy rarely visits get the largest rewards, up to 1 / alpha; usually 0.1 to 1."""
    regularization: float = Field(default=1e-2, gt=0)
    """Added to all variances, relative to those of the demonstrations; usually 1e-3 to 0.1."""
    hidden_size: PositiveInt | list[PositiveInt] = Field(default=[64])
    """Sizes of the hidden layers of the classifier for discrete actions."""
    update_per_collect: int = Field(default=1000, ge=1)
    """Gradient steps of that classifier, which is trained once; usually 100 to 10,000."""
    train_every: int | None = Field(default=256, ge=1)
    """New transitions after which the density of the policy's states is estimated again."""
    buffer_size: int = Field(default=10_000, ge=1)
    """Maximum number of the policy's newest states for this estimate."""


class Gaussian(nn.Module):
    """Multivariate normal density; standard normal before `fit`."""

    __call__: Callable[..., Tensor]

    def __init__(self, size: int, regularization: float) -> None:
        super().__init__()
        self.regularization = regularization
        self.mean = nn.Buffer(torch.zeros(size).double())
        self.scale_tril = nn.Buffer(torch.eye(size).double())
        self.fitted = nn.Buffer(torch.tensor(False))

    def fit(self, rows: Tensor) -> None:
        """Estimate mean and covariance from rows [N, size]."""
        self.mean.copy_(rows.mean(0))
        self.scale_tril.copy_(torch.linalg.cholesky(_covariance(rows, self.regularization)))
        self.fitted.fill_(True)

    def forward(self, rows: Tensor) -> Tensor:
        """Return log-densities [...] of rows [..., size]."""
        density = MultivariateNormal(self.mean, scale_tril=self.scale_tril, validate_args=False)
        log_prob: Tensor = density.log_prob(rows)  # type: ignore[no-untyped-call]
        return log_prob


def _covariance(rows: Tensor, regularization: float) -> Tensor:
    """Return the covariance [size, size] of rows [N, size], plus a multiple of the identity."""
    centred = rows - rows.mean(0)
    covariance: Tensor = centred.T @ centred / len(rows)
    covariance.diagonal().add_(regularization)
    return covariance


class ContinuousActions(nn.Module):
    """Log-density of actions given states, minus its maximum: linear regression."""

    def __init__(self, setting: Setting, size: int, regularization: float) -> None:
        super().__init__()
        self.input = TransitionInput(setting, ["act"])
        self.slope = nn.Buffer(torch.zeros(size, self.input.size).double())
        self.residual = Gaussian(self.input.size, regularization)

    def fit(self, state: Tensor, act: Tensor) -> None:
        """Regress actions on states [N, size]."""
        square = _covariance(state, self.residual.regularization)
        cross = (state - state.mean(0)).T @ self._action(act) / len(state)
        self.slope.copy_(torch.linalg.solve(square, cross))
        self.residual.fit(self._action(act) - state @ self.slope)

    def forward(self, state: Tensor, act: Tensor) -> Tensor:
        """Return log-densities [...]."""
        residual = self._action(act) - state @ self.slope
        return self.residual(residual) - self.residual(self.residual.mean)

    def _action(self, act: Tensor) -> Tensor:
        return self.input({"act": act}).double()


class DiscreteActions(nn.Module):
    """Log-probability of actions given states: a classifier."""

    def __init__(self, space: spaces.Discrete, size: int, hidden: list[int]) -> None:
        super().__init__()
        self.start = int(space.start)
        self.layers = layers(size, hidden, int(space.n), gain=0.01)

    def forward(self, state: Tensor, act: Tensor) -> Tensor:
        """Return log-probabilities [...]."""
        logits: Tensor = self.layers(state.float())
        index = act.long()[..., None] - self.start
        return logits.log_softmax(-1).gather(-1, index).squeeze(-1)


class Densities(nn.Module):
    """Estimated densities, and the reward computed from them."""

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
        elif isinstance(space, spaces.Box):
            network = ("hidden_size", "update_per_collect", "learning_rate", "batch_size")
            refuse(config, network, "for actions of a Box pdeil has no network", "reward")
            self.actions = ContinuousActions(setting, size, config.regularization)
        else:
            raise ValueError(f"pdeil needs actions of a Discrete or Box space, not of {space}")

    def state(self, obs: Any) -> Tensor:
        """Return observations as rows [..., size], normalised by the demonstrations."""
        return self.input({"obs": obs}).double()

    def log_action(self, rows: Any) -> Tensor:
        """Return log-densities [...] of the actions of transitions."""
        log_action: Tensor = self.actions(self.state(rows["obs"]), rows["act"])
        return log_action

    def forward(self, rows: Any) -> Tensor:
        """Return rewards [...] of transitions."""
        state = self.state(rows["obs"])
        # In logarithms, since both densities may underflow.
        weight = math.log1p(-self.alpha) if self.alpha < 1 else -math.inf
        log_ratio = self.policy(state) - self.expert(state) + weight
        log_mixture = torch.logaddexp(log_ratio, log_ratio.new_tensor(math.log(self.alpha)))
        return (self.log_action(rows) - log_mixture).exp()


@register_reward_model("pdeil")
class PDEIL(PretrainedReward, TrainedReward):
    """Probability-density-estimation imitation learning.

    The reward is ``e(s) e(a|s) / (alpha e(s) + (1 - alpha) p(s))`` with the densities ``e`` of the
    demonstrations and ``p`` of the policy. States are modelled as normal, and so are continuous
    actions given a state; ``e(a|s)`` is then relative to its maximum, which scales all rewards
    equally. Until it is trained on the policy's states, ``p`` equals ``e``.
    """

    Config = PDEILConfig
    fields = ("obs", "act")
    collects = ("obs",)
    requires = frozenset({"demonstrations", "vectors"})
    Network = Densities
    network: Densities

    def make_optimizer(self) -> Optimizer | None:
        """Make the optimizer of the classifier for discrete actions, if there is one."""
        discrete = isinstance(self.network.actions, DiscreteActions)
        return super().make_optimizer() if discrete else None

    @property
    def fitted(self) -> bool:
        """See `RewardModel`."""
        return bool(self.network.expert.fitted) and (not self.optimizer or self.trained > 0)

    @torch.no_grad()
    def take_demonstrations(self, rows: Batch) -> None:
        """See `ImitationReward`; estimates the densities of the demonstrations."""
        super().take_demonstrations(rows)
        network, expert = self.network, self.expert
        state = network.state(expert["obs"])
        network.expert.fit(state)
        network.policy.fit(state)
        if isinstance(network.actions, ContinuousActions):
            network.actions.fit(state, expert["act"])

    def fit(self, steps: int) -> Metrics:
        """Train the classifier for discrete actions, if there is one."""
        return super().fit(steps) if self.optimizer else {}

    def train(self) -> Metrics | None:
        """Estimate the density of the policy's states, if there is enough new data."""
        metrics = self.pretrain() or {}
        if self.new >= self.train_every:
            self.new = 0
            with torch.no_grad():
                state = self.network.state(self.memory.rows().to_device(self.device).obs)
                self.network.policy.fit(state)
                log_ratio = self.network.policy(state) - self.network.expert(state)
            metrics |= {"divergence": log_ratio.mean()}
        return metrics or None

    def loss(self) -> tuple[Tensor, Metrics]:
        """Return the loss of the classifier."""
        return -self.network.log_action(self.sample_expert(self.config.batch_size)).mean(), {}

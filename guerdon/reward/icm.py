"""`icm`, the intrinsic curiosity module: https://arxiv.org/abs/1705.05363."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.curiosity import Curiosity, CuriosityConfig, InverseModel, layers

if TYPE_CHECKING:
    from collections.abc import Sequence


class ICMConfig(CuriosityConfig):
    """Options of `icm`."""

    feature_size: int = Field(default=64, ge=1)
    """Features of an observation; 16 to 512."""
    beta: float = Field(default=0.2, ge=0, le=1)
    """Weight of the forward model's loss; the inverse model's has the rest."""
    eta: float = Field(default=1.0, gt=0)
    """What half the squared error is multiplied with. Only of use with ``normalize_bonus: false``:
    otherwise the bonus is divided by its spread."""


class Dynamics(nn.Module):
    """Features of what the agent controls, and a model of how actions change them.

    Args:
        setting: Knows the spaces.
        hidden: Sizes of the hidden layers, of each network.
        size: Features of an observation.
    """

    def __init__(self, setting: Setting, hidden: Sequence[int], size: int) -> None:
        super().__init__()
        self.inverse = InverseModel(setting, hidden, size)
        self.predictor = layers(size + self.inverse.action.size, hidden, size)

    def forward(self, data: Any) -> Tensor:
        """Half the squared error [...] of the predicted features, for transitions."""
        return self._error(*self._encode(data), data)

    def learn(self, data: Any, beta: float) -> tuple[Tensor, Metrics]:
        """The loss of both models, and what can be said about it."""
        before, after = self._encode(data)
        error = self._error(before, after, data).mean()
        inverse, metrics = self.inverse.learn(before, after, data["act"])
        loss = (1 - beta) * inverse + beta * error
        return loss, {"loss": loss.detach(), "forward_loss": error.detach(), **metrics}

    def _encode(self, data: Any) -> tuple[Tensor, Tensor]:
        return self.inverse.encode(data["obs"]), self.inverse.encode(data["obs_next"])

    def _error(self, before: Tensor, after: Tensor, data: Any) -> Tensor:
        predicted = self.predictor(torch.cat([before, self.inverse.action(data)], -1))
        error: Tensor = 0.5 * (predicted - after).square().sum(-1)
        return error


@register_reward_model("icm")
class ICM(Curiosity):
    """A bonus for transitions whose outcome it could not foresee."""

    Config = ICMConfig
    fields = ("obs", "act", "obs_next")
    network: Dynamics

    def build(self, setting: Setting) -> None:
        """Makes the networks."""
        config = self.config
        self.network = Dynamics(setting, config.hidden, config.feature_size).to(self.device)
        self.optimizers["network"] = Optimizer(
            self.network.parameters(), config.learning_rate, alone=True
        )

    def observe(self, rows: dict[str, Any]) -> None:
        """See `Curiosity`."""
        self.network.inverse.update(rows)

    def surprise(self, rows: dict[str, Any]) -> Tensor:
        """Half the squared error of the forward model, times ``eta``."""
        error: Tensor = self.config.eta * self.network(rows)
        return error

    def step(self) -> Metrics:
        """One step of both models."""
        loss, metrics = self.network.learn(self.sample(self.rows), self.config.beta)
        self.optimizers["network"].step(loss)
        return metrics

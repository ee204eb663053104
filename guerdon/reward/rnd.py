"""`rnd`, random network distillation: https://arxiv.org/abs/1810.12894."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.curiosity import Curiosity, CuriosityConfig, Features

if TYPE_CHECKING:
    from collections.abc import Sequence


class RNDConfig(CuriosityConfig):
    """Options of `rnd`."""

    embedding_size: int = Field(default=64, ge=1)
    """Numbers that are to be predicted; 32 to 512."""


class Distillation(nn.Module):
    """A network learns what another one, random and frozen, says of next observations.

    Args:
        setting: Knows the spaces.
        hidden: Sizes of the hidden layers; the one that learns has the last of them twice.
        size: Numbers that are to be predicted.
    """

    def __init__(self, setting: Setting, hidden: Sequence[int], size: int) -> None:
        super().__init__()
        if not hidden:
            raise ValueError(
                "rnd and ngu need a hidden layer, or there is nothing that would be hard to learn: "
                "give 'hidden_size' one number or more"
            )
        self.target = Features(setting, ["obs_next"], hidden, size).requires_grad_(False)
        self.predictor = Features(setting, ["obs_next"], [*hidden, hidden[-1]], size)
        self.predictor.input.normalizers = self.target.input.normalizers  # one set of statistics

    def forward(self, data: Any) -> Tensor:
        """The squared error [...] for transitions."""
        with torch.no_grad():
            target = self.target(data)
        error: Tensor = (self.predictor(data) - target).square().mean(-1)
        return error

    def update(self, data: Any) -> None:
        """Lets the statistics see transitions [N, ...]."""
        self.target.input.update(data)


@register_reward_model("rnd")
class RND(Curiosity):
    """A bonus for next observations unlike those it was trained on."""

    Config = RNDConfig
    fields = ("obs_next",)
    network: Distillation

    def build(self, setting: Setting) -> None:
        """Makes both networks."""
        config = self.config
        self.network = Distillation(setting, config.hidden, config.embedding_size).to(self.device)
        self.optimizers["network"] = Optimizer(
            self.network.predictor.parameters(), config.learning_rate, alone=True
        )

    def observe(self, rows: dict[str, Any]) -> None:
        """See `Curiosity`."""
        self.network.update(rows)

    def surprise(self, rows: dict[str, Any]) -> Tensor:
        """The error of the network that learns."""
        return self.network(rows)  # type: ignore[no-any-return]

    def step(self) -> Metrics:
        """One step towards what the other network says."""
        loss = self.network(self.sample(self.rows)).mean()
        self.optimizers["network"].step(loss)
        return {"loss": loss.detach()}

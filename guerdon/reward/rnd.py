"""`rnd`, random network distillation: https://arxiv.org/abs/1810.12894."""

from typing import Any

from pydantic import Field
from torch import Tensor

from guerdon.data.batch import Batch
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.novelty import NoveltyConfig, NoveltyNetwork, NoveltyReward, embed


class RNDConfig(NoveltyConfig):
    """Options of `rnd`."""

    embedding_size: int = Field(default=64, ge=1)
    """Size of the predicted embedding; usually 32 to 512."""


class Distillation(NoveltyNetwork):
    """Predicts the output of a frozen, randomly initialised network for next observations."""

    def __init__(self, setting: Setting, config: Any) -> None:
        super().__init__()
        hidden, size = config.hidden, config.embedding_size
        if not hidden:
            raise ValueError(
                "rnd and ngu need a hidden layer, since a linear target is too easy to predict: "
                "set 'hidden_size' to one number or more"
            )
        self.target = embed(setting, "obs_next", hidden, size).requires_grad_(False)
        self.predictor = embed(setting, "obs_next", [*hidden, hidden[-1]], size)
        self.predictor.input.normalizers = self.target.input.normalizers  # shared statistics

    def forward(self, rows: Any) -> Tensor:
        """Return mean squared errors [...] of the prediction."""
        return (self.predictor(rows) - self.target(rows)).square().mean(-1)

    def loss(self, rows: Batch) -> tuple[Tensor, Metrics]:
        """See `NoveltyNetwork`."""
        return self(rows).mean(), {}


@register_reward_model("rnd")
class RND(NoveltyReward):
    """Bonus for next observations that differ from those of training."""

    Config = RNDConfig
    Network = Distillation
    fields = collects = ("obs_next",)

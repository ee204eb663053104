"""`icm`, the intrinsic curiosity module: https://arxiv.org/abs/1705.05363."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from guerdon.config.validation import ReadIf
from guerdon.data.batch import Batch
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.inputs import TransitionInput, layers
from guerdon.reward.novelty import CLIP, NoveltyConfig, NoveltyNetwork, NoveltyReward, embed


class ICMConfig(NoveltyConfig):
    """Options of `icm`."""

    feature_size: int = Field(default=64, ge=1)
    """Number of features of an observation; usually 16 to 512."""
    beta: float = Field(default=0.2, ge=0, le=1)
    """Weight of the forward loss, usually 0.1 to 0.5; the inverse loss has weight 1 - beta."""
    eta: float = Field(default=1.0, gt=0)
    """Factor of half the squared error; used only with ``normalize_bonus: false``."""
    read_if: ClassVar[ReadIf] = (*NoveltyConfig.read_if, ("eta", "normalize_bonus", False))


class InverseModel(nn.Module):
    """Embeds observations such that actions can be predicted from consecutive ones."""

    __call__: Callable[..., Tensor]

    def __init__(self, setting: Setting, hidden: Sequence[int], size: int) -> None:
        super().__init__()
        space = setting.action_space
        if not isinstance(space, spaces.Discrete | spaces.Box):
            raise ValueError(
                f"icm and ngu need Discrete or Box actions, but these are {space}: use "
                "rnd, which does not read actions"
            )
        self.features = embed(setting, "obs", hidden, size)
        self.action = TransitionInput(setting, ["act"], clip=CLIP)
        self.head = layers(2 * size, hidden, self.action.size, "relu")
        self.start = int(space.start) if isinstance(space, spaces.Discrete) else None

    def forward(self, obs: Any) -> Tensor:
        """Return features [..., size] of observations."""
        return self.features({"obs": obs})

    def loss(self, before: Tensor, after: Tensor, act: Tensor) -> tuple[Tensor, Metrics]:
        """Return the loss of predicting actions [N, ...] from features, and metrics."""
        predicted = self.head(torch.cat([before, after], -1))
        if self.start is None:
            loss = functional.mse_loss(predicted, self.action({"act": act}))
            return loss, {"inverse_loss": loss.detach()}
        label = act.long() - self.start
        loss = functional.cross_entropy(predicted, label)
        accuracy = (predicted.argmax(-1) == label).float().mean()
        return loss, {"inverse_loss": loss.detach(), "accuracy": accuracy}


class Dynamics(NoveltyNetwork):
    """An inverse model, and a forward model of its features."""

    def __init__(self, setting: Setting, config: ICMConfig) -> None:
        super().__init__()
        self.beta, self.eta = config.beta, config.eta
        size = config.feature_size
        self.inverse = InverseModel(setting, config.hidden, size)
        self.predictor = layers(size + self.inverse.action.size, config.hidden, size, "relu")

    def forward(self, rows: Any) -> Tensor:
        """Return half the squared errors [...] of the predicted features, times eta."""
        return self.eta * self._predict(rows)[0]

    def _predict(self, rows: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the errors, and the features of observations and next observations."""
        before, after = self.inverse(rows["obs"]), self.inverse(rows["obs_next"])
        predicted = self.predictor(torch.cat([before, self.inverse.action(rows)], -1))
        return 0.5 * (predicted - after).square().sum(-1), before, after

    def loss(self, rows: Batch) -> tuple[Tensor, Metrics]:
        """See `NoveltyNetwork`."""
        error, before, after = self._predict(rows)
        forward = error.mean()
        inverse, metrics = self.inverse.loss(before, after, rows["act"])
        metrics["forward_loss"] = forward.detach()
        return (1 - self.beta) * inverse + self.beta * forward, metrics


@register_reward_model("icm")
class ICM(NoveltyReward):
    """Bonus for transitions whose next observation is hard to predict."""

    Config = ICMConfig
    Network = Dynamics
    fields = collects = ("obs", "act", "obs_next")

"""Base of novelty rewards: prediction errors, scaled by the standard deviation of their return."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from guerdon.config.validation import ReadIf
from guerdon.data.batch import Batch
from guerdon.reward.base import Metrics, Setting
from guerdon.reward.inputs import TransitionInput, TransitionNetwork
from guerdon.reward.scaling import ReturnScaler
from guerdon.reward.trained import TrainedConfig, TrainedReward

CLIP = 5.0
"""Largest absolute value of normalised observations, as in the paper of RND."""


class NoveltyConfig(TrainedConfig):
    """Options of every novelty reward."""

    update_proportion: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the new transitions to train on; usually 0.25 to 1. With less, novelty lasts
    longer."""
    update_per_collect: int | None = Field(default=None, ge=1)  # type: ignore[assignment]
    """Gradient steps per call of `train`, instead of `update_proportion`."""
    max_updates: int = Field(default=16, ge=1)
    """Maximum number of gradient steps per call; beyond it, minibatches are larger."""
    train_every: int | None = Field(default=128, ge=1)
    """Minimum number of new transitions for training."""
    warmup: int = Field(default=1000, ge=0)
    """Number of initial transitions that only update statistics, without bonus; usually 1,000 to
    10,000."""
    normalize_bonus: bool = True
    """Whether to divide the bonus by the standard deviation of its discounted return."""
    gamma: float = Field(default=0.99, ge=0, lt=1)
    """Discount factor of that return, which continues across episodes; usually 0.9 to 0.999."""
    read_if: ClassVar[ReadIf] = (
        ("update_proportion", "update_per_collect", None),
        ("max_updates", "update_per_collect", None),
        ("gamma", "normalize_bonus", True),
    )

    @classmethod
    def env_weight(cls, options: Mapping[str, Any]) -> float:  # noqa: ARG003 - see `RewardConfig`
        """See `RewardConfig`."""
        return 1.0


def embed(setting: Setting, part: str, hidden: Sequence[int], size: int) -> TransitionNetwork:
    """Make a network that embeds a field of transitions."""
    # A frozen, randomly initialised network cannot adapt to the scale of its input.
    return TransitionNetwork(setting, [part], hidden, size, "relu", clip=CLIP, images=True)


class NoveltyNetwork(nn.Module):
    """Networks with a prediction error; calling them returns it [...] for transitions."""

    __call__: Callable[..., Tensor]

    def loss(self, rows: Batch) -> tuple[Tensor, Metrics]:
        """Return the training loss of transitions [N, ...] and metrics."""
        raise NotImplementedError

    def update(self, rows: Batch) -> None:
        """Update the input statistics with transitions [N, ...]; shared statistics once."""
        inputs = [module for module in self.modules() if isinstance(module, TransitionInput)]
        for each in {each.normalizers: each for each in reversed(inputs)}.values():
            each.update(rows)


class NoveltyReward(TrainedReward):
    """Bonus for transitions with a large prediction error, which are new to the networks.

    Attributes:
        scaler: Tracks the discounted return of the bonus.
        collected: Number of transitions so far.
        minibatch_size: Size of the next minibatch.
    """

    Config = NoveltyConfig
    saved = (*TrainedReward.saved, "scaler", "collected")
    network: NoveltyNetwork

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        self.scaler = ReturnScaler(self.config.gamma)
        self.collected = 0
        self.minibatch_size = self.config.batch_size

    def bonus(self, error: Tensor, batch: Batch, scale: float = 1.0) -> Tensor:  # noqa: ARG002
        """Return the bonus [...] of transitions with prediction errors [...], times a scale."""
        return error * scale

    def update_statistics(self, error: Tensor, batch: Batch) -> None:
        """Update the statistics of `bonus` with new transitions [N, ...]."""

    @property
    def warm(self) -> bool:
        """Whether the warm-up is over."""
        return self.collected > 0 and self.collected >= int(self.config.warmup)

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        """Return the scaled bonus; 0 during the warm-up."""
        if not self.warm:
            return torch.zeros_like(batch.rew)
        scale = self.scaler.scale if self.config.normalize_bonus else 1.0
        return self.bonus(self.network(self.tensors(batch)), batch, scale)

    @torch.no_grad()
    def collect_data(self, batch: Batch) -> None:
        """Store the transitions of a rollout, and update all statistics."""
        super().collect_data(batch)
        mask = np.asarray(batch.mask)
        real = batch[mask]
        if not len(real.rew):
            return
        self.collected += len(real.rew)
        rows = Batch({name: real[name] for name in self.collects}).to_device(self.device)
        self.network.update(rows)
        if self.warm:
            error = self.network(rows)
            self.update_statistics(error, real)
            bonus = np.zeros(mask.shape)
            bonus[mask] = self.bonus(error, real).numpy(force=True)
            self.scaler.collect(bonus, mask)

    def train(self) -> Metrics | None:
        """Train on a fraction of the new transitions, if there are enough."""
        config, new = self.config, min(self.new, len(self.memory))
        if new < self.train_every or not self.warm:
            return None
        steps, self.minibatch_size = config.update_per_collect, config.batch_size
        if steps is None:
            share = max(1, round(config.update_proportion * new))
            steps = min(math.ceil(share / config.batch_size), config.max_updates)
            self.minibatch_size = math.ceil(share / steps)
        self.new = 0
        return self.fit(steps)

    def loss(self) -> tuple[Tensor, Metrics]:
        """Return the loss of the networks."""
        return self.network.loss(self.sample(self.minibatch_size))

"""Refitting a success classifier beside the policy, so that false successes stop paying.

The fitted classifier and its threshold stay. A copy of it, the discriminator, is trained to tell
collected successes from frames that the policy gets success for (as in VICE,
https://arxiv.org/abs/1805.11686). A false success resembles no collected one, so the discriminator
becomes certain and the frame is rejected. A true success resembles many, so that its probability
only falls to how much more often the policy shows it; hence only frames with a very low probability
are rejected.

The policy's frames are a uniform sample of the whole run, so that old false successes stay known.
Where a success ends an episode, only the first rejected frames of each episode are collected: a
policy that stays where it is rejected would otherwise fill the sample.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch.nn import functional

from guerdon.data.batch import Batch
from guerdon.data.frames import Frames, load_frames
from guerdon.nn.augment import augment
from guerdon.nn.init import seeded
from guerdon.nn.optimizer import Optimizer
from guerdon.reward.trained import TrainedReward

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.nn.classifier import BinaryRewardClassifier
    from guerdon.reward.base import Metrics, Setting


class RefitConfig(BaseModel):
    """Options of refitting, which ``reward.cotrain`` turns on."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    train_every: int = Field(default=2_000, ge=1)
    """New transitions between two refits; 1,000 to 20,000."""
    update_per_collect: int = Field(default=50, ge=1)
    """Gradient steps of a refit; 20 to 200."""
    batch_size: int = Field(default=64, ge=4)
    """Frames of a gradient step: half collected successes, half successes of the policy."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of AdamW; 1e-4 to 1e-3."""
    min_likeness: float = Field(default=0.05, gt=0, lt=0.5)
    """Minimum probability of being a collected success; frames below it are rejected. 0.01 to 0.1.
    At 0.05 the policy may show a kind of success 19 times as often as it was collected."""
    forget: float = Field(default=0.1, ge=0, le=1)
    """Step of the discriminator's weights back to the fitted ones before each refit; 0.05 to 0.3.
    Differences that are learned slowly then never reject a frame."""
    buffer_size: int = Field(default=4_000, ge=1)
    """Maximum number of the policy's frames that are kept, a uniform sample of all."""
    keep_per_collect: int = Field(default=500, ge=1)
    """Maximum number of frames that are taken from each rollout, drawn at random."""
    positive_dir: str | None = None
    """Folder of positive trajectories; by default that of the fit."""
    negative_dir: str | None = None
    """Folder of negative trajectories; by default that of the fit."""


class Refit(TrainedReward):
    """A discriminator between collected successes and those of the policy.

    Args:
        config: Has the options of `RefitConfig`.
        setting: The run.
        classifier: The fitted classifier.
        meta: Metadata of its fit.
        hold: Number of frames after which a success ends the policy's episodes; None if it does
            not.
    """

    network: BinaryRewardClassifier

    def __init__(
        self,
        config: Any,
        setting: Setting,
        classifier: BinaryRewardClassifier,
        meta: Mapping[str, Any],
        hold: int | None = None,
    ) -> None:
        self._classifier, self._meta, self._hold = classifier, meta, hold
        self._successes: dict[str, np.ndarray] = {}
        self._ends = np.zeros(0, np.int64)  # those like the ones at which episodes end
        super().__init__(config, setting)

    def build(self) -> BinaryRewardClassifier:
        """Copy the fitted classifier."""
        return copy.deepcopy(self._classifier)

    def make_optimizer(self) -> Optimizer:
        """See `TrainedReward`."""
        rate = self.config.learning_rate
        parameters = self.network.parameters()
        return Optimizer(parameters, rate, max_grad_norm=1.0, weight_decay=0.01)

    @torch.no_grad()
    def rejects(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return which frames [B] resemble no collected success."""
        return self._is_low(self.network(images))

    def _is_low(self, logits: torch.Tensor) -> torch.Tensor:
        low: torch.Tensor = torch.sigmoid(logits) < self.config.min_likeness
        return low

    def collect_frames(self, images: Mapping[str, np.ndarray], n_new: int) -> None:
        """Take successes of the policy.

        Args:
            images: By camera [N, ...].
            n_new: Number of transitions that they come from.
        """
        self._new += n_new
        found = len(next(iter(images.values())))
        number = min(self.config.keep_per_collect, found)
        if number:
            chosen = self.generator.choice(found, number, replace=False)
            rows = Batch({key: part[chosen] for key, part in images.items()})
            self.memory.mix_in(rows, self.generator)

    def load_successes(self) -> None:
        """Read the successes that the classifier was fitted with, unless that was done."""
        if self._successes:
            return
        data, model = self._meta["data"], self._meta["model"]
        positive = self.config.positive_dir or data["positive_dir"]
        negative = self.config.negative_dir or data["negative_dir"]
        frames = load_frames(positive, negative, model["image_keys"], model["image_size"])
        fitted = np.isin(frames.digests, data["digests"])  # others may have been added since
        if missing := len(data["digests"]) - fitted.sum():
            raise ValueError(
                f"{missing} of the {len(data['digests'])} trajectories that the classifier was "
                f"fitted with are not in {positive} and {negative}: name their folders in "
                "'reward.positive_dir' and 'reward.negative_dir', or fit it again"
            )
        rows = frames.labels & fitted[frames.episodes]
        self._successes = {key: part[rows] for key, part in frames.images.items()}
        self._ends = np.flatnonzero(_first_successes(frames, self._hold)[rows])

    def train(self) -> Metrics | None:
        """Refit, if there are enough new transitions, and enough successes among them."""
        enough = min(self.config.batch_size // 2, self.config.buffer_size)
        return super().train() if len(self.memory) >= enough else None

    def fit(self, steps: int) -> Metrics:
        """See `TrainedReward`."""
        self.load_successes()
        with torch.no_grad():
            fitted = self._classifier.parameters()
            for own, target in zip(self.network.parameters(), fitted, strict=True):
                own.lerp_(target, self.config.forget)
        with seeded(self.generator, self.setting.device):  # dropout
            return super().fit(steps)

    def step(self) -> Metrics:
        """Take one gradient step."""
        half = self.config.batch_size // 2
        n_successes = len(next(iter(self._successes.values())))
        rows = self.generator.integers(n_successes, size=half)
        rows[: half // 2] = self.generator.choice(self._ends, half // 2)
        policy = self.sample(self.config.batch_size - half)
        generator = torch.Generator().manual_seed(int(self.generator.integers(2**62)))
        images = {}
        for key, part in self._successes.items():
            expert, shown = torch.from_numpy(part[rows]).to(self.device), policy[key]
            if shown.shape[1:] != expert.shape[1:]:  # channels last
                shown = shown.movedim(-1, 1)
            images[key] = augment(torch.cat([expert, shown]), generator)
        labels = torch.zeros(self.config.batch_size, device=self.device)
        labels[:half] = 1.0
        logits = self.network(images)
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        self.descend(loss)
        rejected = self._is_low(logits[half:].detach())
        return {"loss": loss.detach(), "doubted": rejected.float().mean()}


def _first_successes(frames: Frames, number: int | None) -> np.ndarray:
    """Which frames [N] are among the first so many of a run of successes; None: all successes."""
    if number is None:
        return frames.labels
    follows = np.zeros(len(frames), bool)
    follows[1:] = frames.labels[:-1] & (frames.episodes[1:] == frames.episodes[:-1])
    rows = np.arange(len(frames))
    start = np.maximum.accumulate(np.where(follows, 0, rows))
    first: np.ndarray = frames.labels & (rows - start < number)
    return first

"""Refitting a classifier beside the policy: what the policy gets success for are failures to it.

The classifier itself stays as it was fitted, with its threshold. A copy of it, the second opinion,
learns to tell the successes that were collected from the frames that the policy shows for them
(https://arxiv.org/abs/1805.11686). A false success is like nothing that was collected: the second
opinion comes to be sure of that, and the frame is not paid for any longer. A true success is like
much of it, and the most that the second opinion can say is how much oftener the policy shows it;
so only a frame that it gives very little chance is doubted.

What is remembered of the policy is a fair sample of the whole run, so that a false success of long
ago stays known. Where a success ends an episode, that one is remembered, and of those that were
doubted before the first alone: a policy that stays where it is doubted would otherwise show that
ever oftener.
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
from guerdon.reward.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.nn.classifier import BinaryRewardClassifier

_DECAY = 0.01  # of AdamW


class RefitConfig(BaseModel):
    """Options of refitting, which ``reward.cotrain`` turns on."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    train_every: int = Field(default=2_000, ge=1)
    """New transitions between two refits; 1,000 to 20,000."""
    update_per_collect: int = Field(default=50, ge=1)
    """Gradient steps of a refit; 20 to 200."""
    batch_size: int = Field(default=64, ge=4)
    """Frames of a gradient step: half collected successes, half what the policy shows for them."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Step size of AdamW; 1e-4 to 1e-3."""
    min_likeness: float = Field(default=0.05, gt=0, lt=0.5)
    """The least chance of being one of the collected successes, and not one of the policy's, that
    a frame is paid with; 0.01 to 0.1. At 0.05 the policy may show a kind of success 19 times as
    often as it was collected."""
    forget: float = Field(default=0.1, ge=0, le=1)
    """How far the second opinion goes back to the first before each refit; 0.05 to 0.3. What is
    easy to tell it learns again at once; what takes long it never comes to be sure of."""
    buffer_size: int = Field(default=4_000, ge=1)
    """Frames of the policy that are remembered: a fair sample of all that were offered."""
    keep_per_collect: int = Field(default=500, ge=1)
    """Frames of each round of collecting that are offered at most, drawn at random."""
    positive_dir: str | None = None
    """Where the successes are; the folder that the classifier was fitted with by default."""
    negative_dir: str | None = None
    """Where the failures are; likewise."""


class Refit:
    """Remembers what the policy shows for successes, and has a second opinion of such frames.

    Args:
        config: The options.
        shown: How many frames in a row of a success the policy shows before it ends the episode;
            None where it does not.

    Attributes:
        second: The second opinion; None until something is refitted.
    """

    def __init__(self, config: RefitConfig, shown: int | None = None) -> None:
        self.config = config
        self.second: BinaryRewardClassifier | None = None
        self.generator = np.random.default_rng(0)
        self._shown = shown
        self._memory = Memory(config.buffer_size)
        self._new = 0
        self._successes: dict[str, np.ndarray] = {}
        self._moments = np.zeros(0, np.int64)  # rows of them at which the policy's episodes end
        self._optimizer: Optimizer | None = None

    @property
    def due(self) -> bool:
        """Whether there is enough that is new, and anything to doubt."""
        enough = len(self._memory) >= min(self.config.batch_size // 2, self.config.buffer_size)
        return enough and self._new >= self.config.train_every

    def remember(self, pictures: Mapping[str, np.ndarray], n_new: int) -> None:
        """Takes what the policy has shown for successes.

        Args:
            pictures: By camera [N, ...].
            n_new: Transitions that these are from.
        """
        self._new += n_new
        found = len(next(iter(pictures.values())))
        number = min(self.config.keep_per_collect, found)
        if number:
            chosen = self.generator.choice(found, number, replace=False)
            rows = Batch({key: part[chosen] for key, part in pictures.items()})
            self._memory.mix_in(rows, self.generator)

    @torch.no_grad()
    def doubts(self, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Which frames [B] that are taken for successes are like none that was collected."""
        assert self.second is not None
        return self._unlike(self.second(images))

    def _unlike(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(logits) < self.config.min_likeness

    def load(self, meta: Mapping[str, Any]) -> None:
        """Reads the successes that the classifier was fitted with.

        Args:
            meta: What the fit says of the classifier.
        """
        if self._successes:
            return
        data, model = meta["data"], meta["model"]
        positive = self.config.positive_dir or data["positive_dir"]
        negative = self.config.negative_dir or data["negative_dir"]
        frames = load_frames(positive, negative, model["image_keys"], model["image_size"])
        fitted = np.isin(frames.digests, data["digests"])  # others may have come since
        if missing := len(data["digests"]) - fitted.sum():
            raise ValueError(
                f"{missing} of the {len(data['digests'])} trajectories that the classifier was "
                f"fitted with are not in {positive} and {negative}, so a success may be like none "
                "that is: name their folders in 'reward.positive_dir' and 'reward.negative_dir', "
                "or fit it again to refit it"
            )
        rows = frames.labels & fitted[frames.episodes]
        self._successes = {key: part[rows] for key, part in frames.images.items()}
        self._moments = np.flatnonzero(_first(frames, self._shown)[rows])

    def fit(
        self, first: BinaryRewardClassifier, meta: Mapping[str, Any], device: str
    ) -> dict[str, Any]:
        """Refits the second opinion, which begins as a copy of the first."""
        self.load(meta)
        self._new = 0
        second = self.second or self._begin(first)
        with torch.no_grad():
            for own, fitted in zip(second.parameters(), first.parameters(), strict=True):
                own.lerp_(fitted, self.config.forget)
        second.train()
        with seeded(self.generator, device):  # of dropout
            found = [self._step(device) for _ in range(self.config.update_per_collect)]
        second.eval()
        losses, doubted = zip(*found, strict=True)
        return {"loss": torch.stack(losses).mean(), "doubted": torch.stack(doubted).mean()}

    def _begin(
        self, first: BinaryRewardClassifier, saved: Mapping[str, Any] | None = None
    ) -> BinaryRewardClassifier:
        """Makes the second opinion a copy of the first, or what it was when it was saved."""
        second, rate = copy.deepcopy(first), self.config.learning_rate
        optimizer = Optimizer(
            second.parameters(), rate, max_grad_norm=1.0, weight_decay=_DECAY, alone=True
        )
        if saved is not None:
            second.load_state_dict(saved["second"])
            optimizer.load_state_dict(saved["optimizer"])
        self.second, self._optimizer = second, optimizer
        return second

    def _step(self, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and the share of the policy's frames that are doubted."""
        assert self.second is not None
        assert self._optimizer is not None
        half = self.config.batch_size // 2
        n_successes = len(next(iter(self._successes.values())))
        rows = self.generator.integers(n_successes, size=half)
        rows[: half // 2] = self.generator.choice(self._moments, half // 2)
        successes = {key: part[rows] for key, part in self._successes.items()}
        remembered = self._memory.sample(self.config.batch_size - half, self.generator)
        claimed = _channels_first(remembered, successes)
        generator = torch.Generator().manual_seed(int(self.generator.integers(2**62)))
        images = {
            key: augment(
                torch.from_numpy(np.concatenate([part, claimed[key]])).to(device), generator
            )
            for key, part in successes.items()
        }
        labels = torch.zeros(self.config.batch_size, device=device)
        labels[:half] = 1.0
        logits = self.second(images)
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        self._optimizer.step(loss)
        return loss.detach(), self._unlike(logits[half:].detach()).float().mean()

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        state = {
            "memory": self._memory.state_dict(),
            "generator": self.generator.bit_generator.state,
            "new": self._new,
        }
        if self.second is None or self._optimizer is None:
            return state
        weights = {name: value.clone() for name, value in self.second.state_dict().items()}
        return {**state, "second": weights, "optimizer": self._optimizer.state_dict()}

    def portable(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The second opinion of a state, without where its run was and what it remembered."""
        kept = {key: part for key, part in state.items() if key not in ("generator", "new")}
        return kept | {"memory": Memory(1).state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], first: BinaryRewardClassifier) -> None:
        """Goes on where `state_dict` was taken.

        Args:
            state: What it gave.
            first: The classifier that the second opinion is a copy of.
        """
        self._memory.load_state_dict(state["memory"])
        if "generator" in state:  # not of another run
            self.generator.bit_generator.state, self._new = state["generator"], state["new"]
        self.second, self._optimizer = None, None
        if "second" in state:
            self._begin(first, state)


def _first(frames: Frames, number: int | None) -> np.ndarray:
    """Which frames [N] are among the first so many of a success; all of them if None."""
    if number is None:
        return frames.labels
    follows = np.zeros(len(frames), bool)
    follows[1:] = frames.labels[:-1] & (frames.episodes[1:] == frames.episodes[:-1])
    rows = np.arange(len(frames))
    begun = np.maximum.accumulate(np.where(follows, 0, rows))
    first: np.ndarray = frames.labels & (rows - begun < number)
    return first


def _channels_first(pictures: Batch, like: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Pictures [N, ...] of environments in the layout of files."""
    return {
        key: part if part.shape[1:] == like[key].shape[1:] else np.moveaxis(part, -1, 1)
        for key, part in pictures.items()
    }

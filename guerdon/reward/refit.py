"""Refitting a classifier beside the policy: what the policy sees are examples of failure.

Where the policy is as good as the successes that were collected, both look alike. A batch is half
successes, though, and only a quarter what the policy sees, so that a true success keeps at least
even odds in a batch, while a false one, of which there is none among the successes, does not. What
probabilities mean is lost by that, and the threshold is chosen anew after each refit, wherever it
then is, on the episodes that the fit held out.
"""

from __future__ import annotations

import math
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
from guerdon.ops import classification
from guerdon.reward.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.nn.classifier import BinaryRewardClassifier

_HELD_OUT = 2_000  # frames that a threshold is chosen on, at most
_CALL = 500  # frames of one call of the network
_DECAY = 0.01  # of AdamW


class RefitConfig(BaseModel):
    """Options of refitting, which ``reward.cotrain`` turns on."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    train_every: int = Field(default=4_000, ge=1)
    """New transitions between two refits; 2,000 to 20,000."""
    update_per_collect: int = Field(default=50, ge=1)
    """Gradient steps of a refit; 20 to 200."""
    batch_size: int = Field(default=64, ge=4)
    """Frames of a gradient step: half successes, a quarter old failures, a quarter the policy's."""
    learning_rate: float = Field(default=3e-4, gt=0)
    """Step size of AdamW; 1e-4 to 1e-3."""
    buffer_size: int = Field(default=4_000, ge=1)
    """Frames of the policy that are remembered."""
    keep_per_collect: int = Field(default=500, ge=1)
    """Frames of each round of collecting that are remembered, drawn at random."""
    positive_dir: str | None = None
    """Where the successes are; the folder that the classifier was fitted with by default."""
    negative_dir: str | None = None
    """Where the failures are; likewise."""


class Refit:
    """Remembers what the policy sees, and refits classifiers.

    Args:
        config: The options.
    """

    def __init__(self, config: RefitConfig) -> None:
        self.config = config
        self.generator = np.random.default_rng(0)
        self.steps = 0
        """Gradient steps so far."""
        self._memory = Memory(config.buffer_size)
        self._new = 0
        self._frames: Frames | None = None
        self._rows: dict[str, np.ndarray] = {}  # rows of the frames by what they are for
        self._log_odds = 0.0
        self._optimizers: list[Optimizer] = []

    @property
    def due(self) -> bool:
        """Whether there is enough that is new."""
        return self._new >= self.config.train_every

    def remember(
        self, pictures: Mapping[str, np.ndarray], mask: np.ndarray, n_new: int | None = None
    ) -> None:
        """Takes what the policy has seen.

        Args:
            pictures: By camera [T, n_envs, ...].
            mask: Which of them are frames to learn from [T, n_envs].
            n_new: Transitions that these count as; as many as there are frames by default.
        """
        real = np.flatnonzero(mask)
        self._new += len(real) if n_new is None else n_new
        number = min(self.config.keep_per_collect, len(real))
        if number:
            chosen = np.unravel_index(
                self.generator.choice(real, number, replace=False), mask.shape
            )
            self._memory.add(Batch({key: part[chosen] for key, part in pictures.items()}))

    def load(self, meta: Mapping[str, Any]) -> None:
        """Reads the frames of the first fit, and parts them as that did.

        Args:
            meta: What the fit says of the classifier.
        """
        if self._frames is not None:
            return
        data, model = meta["data"], meta["model"]
        frames = load_frames(
            self.config.positive_dir or data["positive_dir"],
            self.config.negative_dir or data["negative_dir"],
            model["image_keys"],
            model["image_size"],
        )
        if frames.hash != data["hash"]:
            raise ValueError(
                f"the trajectories in {self.config.positive_dir or data['positive_dir']} and "
                f"{self.config.negative_dir or data['negative_dir']} are not those that the "
                "classifier was fitted with, so nobody knows which it was not shown: fit it again "
                "to refit it, or name the old ones in 'reward.positive_dir' and "
                "'reward.negative_dir'"
            )
        seed = np.random.default_rng(meta["seed"])
        training, held_out = frames.split(meta["split"], seed)
        held_out = seed.permutation(held_out)[:_HELD_OUT]
        labels = frames.labels
        for rows in (training, held_out):
            if labels[rows].all() or not labels[rows].any():
                raise ValueError(
                    f"{len(frames.from_positive)} trajectories are too few to refit the "
                    "classifier with some and choose its threshold with others: name folders with "
                    "more in 'reward.positive_dir' and 'reward.negative_dir'"
                )
        self._frames = frames
        self._rows = {
            "successes": training[labels[training]],
            "failures": training[~labels[training]],
            "held out": held_out,
        }
        n_successes, n_failures = (len(self._rows[name]) for name in ("successes", "failures"))
        self._log_odds = math.log(n_successes / n_failures)

    def fit(
        self, members: list[BinaryRewardClassifier], meta: dict[str, Any], device: str
    ) -> dict[str, Any]:
        """Refits classifiers; `meta` gets the new temperature and threshold."""
        self.load(meta)
        self._new = 0
        if not self._optimizers:
            self._optimizers = [_optimizer(member, self.config) for member in members]
        losses = []
        for member, optimizer in zip(members, self._optimizers, strict=True):
            member.train()
            with seeded(self.generator):  # of dropout
                steps = range(self.config.update_per_collect)
                losses += [self._step(member, optimizer, device) for _ in steps]
            member.eval()
        self.steps += self.config.update_per_collect
        return {"loss": torch.stack(losses).mean(), **self._calibrate(members, meta, device)}

    def _step(
        self, member: BinaryRewardClassifier, optimizer: Optimizer, device: str
    ) -> torch.Tensor:
        half = self.config.batch_size // 2
        quarter = self.config.batch_size - half - half // 2
        assert self._frames is not None
        parts = [
            self._drawn("successes", half),
            self._drawn("failures", half // 2),
            _channels_first(self._memory.sample(quarter, self.generator), self._frames),
        ]
        keys = parts[0].keys()
        images = {
            key: torch.from_numpy(np.concatenate([part[key] for part in parts])).to(device)
            for key in keys
        }
        generator = torch.Generator().manual_seed(int(self.generator.integers(2**62)))
        images = {key: augment(batch, generator) for key, batch in images.items()}
        labels = torch.zeros(self.config.batch_size, device=device)
        labels[:half] = 1.0
        # As in the fit: batches are balanced, probabilities are meant at the data's own base rate.
        logits = member(images) - self._log_odds
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        optimizer.step(loss)
        return loss.detach()

    def _drawn(self, name: str, number: int) -> dict[str, np.ndarray]:
        assert self._frames is not None
        rows = self.generator.choice(self._rows[name], number)
        return {key: part[rows] for key, part in self._frames.images.items()}

    def _calibrate(
        self, members: list[BinaryRewardClassifier], meta: dict[str, Any], device: str
    ) -> dict[str, Any]:
        """Chooses temperature and threshold as the fit did; precision and recall with them."""
        assert self._frames is not None
        rows = self._rows["held out"]
        logits = np.stack([self._logits(member, rows, device) for member in members])
        labels = self._frames.labels[rows]
        meta["temperature"] = classification.fit_temperature(logits, labels)
        probability = classification.ensemble_probability(logits, meta["temperature"])
        probability = probability.astype(np.float32)  # as frames will be scored
        threshold = classification.threshold_for(probability, labels, meta["target_fpr"], 0.0)
        found = {
            "threshold": max(threshold, float(np.finfo(np.float32).tiny)),
            "precision": classification.precision(probability, labels, threshold),
            "recall": classification.recall(probability, labels, threshold),
        }
        meta["threshold"] = found["threshold"]
        meta["validation"] = {**meta["validation"], **found}
        return found

    @torch.no_grad()
    def _logits(self, member: BinaryRewardClassifier, rows: np.ndarray, device: str) -> np.ndarray:
        assert self._frames is not None
        parts = []
        for start in range(0, len(rows), _CALL):
            now = rows[start : start + _CALL]
            images = {
                key: torch.from_numpy(part[now]).to(device)
                for key, part in self._frames.images.items()
            }
            parts.append(member(images).numpy(force=True))
        return np.concatenate(parts)

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        return {
            "memory": self._memory.state_dict(),
            "generator": self.generator.bit_generator.state,
            "steps": self.steps,
            "new": self._new,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }

    def load_state_dict(
        self, state: Mapping[str, Any], members: list[BinaryRewardClassifier]
    ) -> None:
        """Goes on where `state_dict` was taken."""
        self._memory.load_state_dict(state["memory"])
        self.generator.bit_generator.state = state["generator"]
        self.steps, self._new = state["steps"], state["new"]
        self._optimizers = []
        for member, saved in zip(members, state["optimizers"], strict=False):  # none at first
            optimizer = _optimizer(member, self.config)
            optimizer.load_state_dict({**saved, "learning_rate": self.config.learning_rate})
            self._optimizers.append(optimizer)


def _optimizer(member: BinaryRewardClassifier, config: RefitConfig) -> Optimizer:
    return Optimizer(
        member.parameters(), config.learning_rate, max_grad_norm=1.0, weight_decay=_DECAY,
        alone=True,
    )  # fmt: skip


def _channels_first(pictures: Batch, like: Frames) -> dict[str, np.ndarray]:
    """Pictures [N, ...] of environments in the layout of files."""
    return {
        key: part if part.shape[1:] == like.images[key].shape[1:] else np.moveaxis(part, -1, 1)
        for key, part in pictures.items()
    }

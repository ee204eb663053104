"""What a fit reads: frames in memory, and balanced batches of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from guerdon.nn.augment import augment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from guerdon.data.frames import Frames
    from guerdon.nn.classifier import BinaryRewardClassifier

_CHUNK = 256  # frames of one call of a network that does not learn


class Source(Protocol):
    """Where the logits of rows come from."""

    def logits(
        self, member: BinaryRewardClassifier, rows: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """The logits [B] of rows; where there is a generator, of rows that may be changed."""
        ...


class FrameSource:
    """Frames as they are, or augmented.

    Args:
        frames: All of them; not copied on the CPU.
        device: Where they are kept.
        augment: Whether rows are changed where a generator is given.
    """

    def __init__(self, frames: Frames, device: str, augment: bool) -> None:
        self.images = {
            key: torch.from_numpy(array).to(device) for key, array in frames.images.items()
        }
        self.augment = augment

    def take(self, rows: Tensor) -> dict[str, Tensor]:
        """The frames of rows [B, C, H, W], by camera."""
        return _taken(self.images, rows)

    def logits(
        self, member: BinaryRewardClassifier, rows: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """See `Source`."""
        chosen = self.take(rows)
        if self.augment and generator is not None:
            chosen = {key: augment(images, generator) for key, images in chosen.items()}
        logits: Tensor = member(chosen)
        return logits


class FeatureSource:
    """What a frozen encoder makes of each frame, computed once.

    Args:
        frames: All of them.
        member: Has the encoder; all members have the same.
        rows: Which of them will be asked for, in order.
    """

    @torch.no_grad()
    def __init__(
        self, frames: FrameSource, member: BinaryRewardClassifier, rows: np.ndarray
    ) -> None:
        self.rows = torch.from_numpy(rows)
        self.maps: dict[str, Tensor] = {}
        for number, chunk in enumerate(_chunks(self.rows)):
            for key, part in member.encode(frames.take(chunk)).items():
                if number == 0:  # all at once: maps are large, and joining them would double that
                    self.maps[key] = part.new_empty((len(rows), *part.shape[1:]))
                self.maps[key][number * _CHUNK :][: len(part)] = part

    def logits(
        self,
        member: BinaryRewardClassifier,
        rows: Tensor,
        generator: torch.Generator | None = None,  # noqa: ARG002 - features cannot be augmented
    ) -> Tensor:
        """See `Source`."""
        return member.decide(_taken(self.maps, torch.searchsorted(self.rows, rows)))


@torch.no_grad()
def all_logits(
    members: list[BinaryRewardClassifier], source: Source, rows: np.ndarray
) -> np.ndarray:
    """The logits [members, N] of rows, without dropout or augmentation.

    Args:
        members: The classifiers.
        source: Where logits come from.
        rows: [N].
    """
    found = []
    for member in members:
        member.eval()
        parts = [source.logits(member, chunk) for chunk in _chunks(torch.from_numpy(rows))]
        found.append(torch.cat(parts))
        member.train()
    return torch.stack(found).numpy(force=True).astype(np.float64)


def _taken(parts: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    # Measured six times as fast as indexing with brackets.
    return {key: part.index_select(0, rows.to(part.device)) for key, part in parts.items()}


def _chunks(rows: Tensor) -> Iterator[Tensor]:
    return (rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK))


# --- batches


def capped(
    rows: np.ndarray, labels: np.ndarray, most: int | None, generator: np.random.Generator
) -> np.ndarray:
    """No more than so many rows, half of them positive if there are enough of both; in order.

    Args:
        rows: [N].
        labels: bool [N], of these rows.
        most: How many; None for all.
        generator: Which ones.
    """
    if most is None or len(rows) <= most:
        return rows
    positive, negative = rows[labels], rows[~labels]
    n_negative = min(len(negative), most - min(len(positive), most // 2))
    n_positive = most - n_negative
    chosen = [
        generator.choice(part, number, replace=False)
        for part, number in ((positive, n_positive), (negative, n_negative))
    ]
    return np.sort(np.concatenate(chosen))


def steps_per_epoch(labels: np.ndarray, batch_size: int) -> int:
    """Batches in which every row of the rarer label comes once, with as many of the other.

    Args:
        labels: bool [N].
        batch_size: Rows of a batch.
    """
    rarer = min(int(labels.sum()), int((~labels).sum()))
    return max(1, math.ceil(2 * rarer / batch_size))


def balanced_batches(
    rows: np.ndarray, labels: np.ndarray, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end: rows and labels, the first half positive; each row in its turn.

    Args:
        rows: [N].
        labels: bool [N], of these rows.
        batch_size: Rows of a batch; of an odd one, one more is positive.
        generator: Of the order.
    """
    n_negative = batch_size // 2
    n_positive = batch_size - n_negative
    positives = _in_turn(torch.from_numpy(rows[labels]), n_positive, generator)
    negatives = _in_turn(torch.from_numpy(rows[~labels]), n_negative, generator)
    said = torch.cat([torch.ones(n_positive), torch.zeros(n_negative)])
    while True:
        yield torch.cat([next(positives), next(negatives)]), said


def _in_turn(rows: Tensor, number: int, generator: torch.Generator) -> Iterator[Tensor]:
    """So many rows at a time; none comes again before all others have come."""
    waiting = rows[:0]
    while True:
        while len(waiting) < number:
            waiting = torch.cat([waiting, rows[torch.randperm(len(rows), generator=generator)]])
        yield waiting[:number]
        waiting = waiting[number:]

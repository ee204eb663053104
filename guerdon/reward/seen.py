"""What a model of success says of frames, and of an episode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Seen(NamedTuple):
    """What a classifier says of frames [...]."""

    probability: np.ndarray
    claimed: np.ndarray
    """Which are successes to it, whether or not that is doubted."""

    @classmethod
    def nothing(cls, shape: tuple[int, ...]) -> Seen:
        """Frames that nobody has looked at."""
        return cls(np.zeros(shape, np.float32), np.zeros(shape, bool))

    def reshape(self, shape: tuple[int, ...]) -> Seen:
        """The same of frames in another order."""
        return Seen(*(part.reshape(shape) for part in self))


class Judged(NamedTuple):
    """What a classifier says of the frames of an episode [T]."""

    probability: np.ndarray
    passes: np.ndarray
    """Whether a frame is a success."""
    held: np.ndarray
    """Whether one is held there."""
    end: int
    """The frame by which the episode is judged: its first success, where that ends it, or the
    last."""


def together(parts: list[Seen]) -> Seen:
    """One after the other, along the first axis."""
    return Seen(*map(np.concatenate, zip(*parts, strict=True)))

"""When a model of success ends an episode: at its first success that was held for some frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass
class Standing:
    """How the running episodes of environments stand."""

    run: np.ndarray
    """Frames in a row, up to the newest, that were a success [n_envs]."""
    decided: np.ndarray
    """Whether a success was held already in this episode [n_envs]."""

    @classmethod
    def fresh(cls, n_envs: int) -> Self:
        """At the start of episodes."""
        return cls(np.zeros(n_envs, np.int64), np.zeros(n_envs, bool))

    def begin(self, env_ids: np.ndarray | slice | None = None) -> None:
        """The next rows of some environments (None: all) begin episodes."""
        index = slice(None) if env_ids is None else env_ids
        self.run[index], self.decided[index] = 0, False


def first_claims(
    counts: np.ndarray, claimed: np.ndarray, over: np.ndarray, number: int
) -> np.ndarray:
    """Which claims of success [T, n_envs] are among the first so many of their episode.

    Args:
        counts: Claims of the running episodes before [n_envs]; changed.
        claimed: All of them [T, n_envs].
        over: Where episodes end [T, n_envs].
        number: How many.
    """
    first = np.zeros_like(claimed)
    for t, now in enumerate(claimed):
        first[t] = now & (counts < number)
        counts += now
        counts[over[t]] = 0
    return first


def follow(
    standing: Standing,
    passes: np.ndarray,
    mask: np.ndarray,
    over: np.ndarray,
    hold: int = 1,
    is_end: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Finds where successes are held, and what comes after the first.

    Args:
        standing: How things stood before; changed.
        passes: Which frames are a success [T, n_envs].
        mask: Which rows are frames at all [T, n_envs].
        over: Where episodes end [T, n_envs].
        hold: Frames in a row that make a success held.
        is_end: Whether a held success is the end of its episode.

    Returns:
        Where a success is held, and where one was held earlier in the same episode; [T, n_envs].
    """
    held, past = np.zeros(mask.shape, bool), np.zeros(mask.shape, bool)
    for t, real in enumerate(mask):
        standing.run = np.where(real, np.where(passes[t], standing.run + 1, 0), standing.run)
        held[t] = real & (standing.run >= hold)
        past[t] = real & standing.decided
        standing.decided = standing.decided | held[t]
        standing.begin(np.flatnonzero(real & (over[t] | (held[t] & is_end))))
    return held, past


def still_open(standing: Standing, mask: np.ndarray, over: np.ndarray) -> np.ndarray:
    """The rows [T, n_envs] that are not known beforehand to come after a held success."""
    ended = (np.cumsum(over & mask, axis=0) - (over & mask)) > 0
    open_rows: np.ndarray = mask & (ended | ~standing.decided)
    return open_rows

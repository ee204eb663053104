"""Segments of episodes, and which pairs of them to hold out."""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.batch import Batch
from guerdon.data.leaves import to_numpy
from guerdon.data.tree import flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SegmentPairs = list[tuple[Batch, Batch]]
"""Pairs of segments [T, ...] of the same fields and the same length."""


class Cutter:
    """Cuts fresh episodes into segments of one length; the last of an episode may be shorter.

    Args:
        length: Rows of a segment.
        shortest: Minimum rows of a segment whose episode was broken off; fewer are dropped.
    """

    def __init__(self, length: int, shortest: int = 1) -> None:
        self.length = length
        self.shortest = shortest
        self._open: dict[tuple[str, ...], np.ndarray] = {}  # [n_envs, length, ...]
        self._filled = np.zeros(0, np.int64)

    def add(self, batch: Batch, fields: Sequence[str]) -> Batch | None:
        """Take fresh transitions.

        Args:
            batch: See `RewardModel.collect_data`. An episode that begins where the one before has
                not ended means that the latter was broken off.
            fields: Fields to keep.

        Returns:
            The segments that are complete now [N, length, ...], with ``length``: how many rows of
            each are valid. None if there are none.
        """
        leaves = dict(flatten({name: batch[name] for name in fields}))
        mask, first, done = batch.mask, batch.first, batch.terminated | batch.truncated
        n_steps, n_envs = mask.shape
        if len(self._filled) != n_envs:
            self._filled = np.zeros(n_envs, np.int64)
            self._open = {
                path: np.zeros((n_envs, self.length, *leaf.shape[2:]), leaf.dtype)
                for path, leaf in leaves.items()
            }
        closed = []
        for time in range(n_steps):
            envs = np.flatnonzero(mask[time])
            broken = envs[first[time, envs]]
            if len(broken):
                closed.append(self._close(broken[self._filled[broken] >= self.shortest]))
                self._filled[broken] = 0
            filled = self._filled[envs]
            for path, leaf in leaves.items():
                self._open[path][envs, filled] = leaf[time, envs]
            self._filled[envs] = filled + 1
            ends = envs[(filled + 1 == self.length) | done[time, envs]]
            if len(ends):
                closed.append(self._close(ends))
        segments = Batch.cat(closed)
        return segments if len(segments) else None

    def _close(self, envs: np.ndarray) -> Batch:
        segments = unflatten({path: column[envs] for path, column in self._open.items()})
        segments.length = self._filled[envs]
        self._filled[envs] = 0
        return segments

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume."""
        return copy.deepcopy({"open": unflatten(self._open).to_dict(), "filled": self._filled})

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`."""
        self._open = dict(flatten(copy.deepcopy(state["open"])))
        self._filled = np.array(state["filled"])


def number_to_hold_out(held_out: np.ndarray, number: int, share: float) -> int:
    """How many of so many further pairs to hold out for a share of all; one is left to fit."""
    total = len(held_out) + number
    wanted = min(round(share * total), total - 1) - int(held_out.sum())
    return min(max(wanted, 0), number)


def hold_out(pairs: SegmentPairs, number: int, generator: np.random.Generator) -> np.ndarray:
    """Draw pairs to hold out that share no segment with any other pair.

    Segments count as the same if their first rows are: as many as the shortest has, since a pair
    may hold the first part of a segment that is whole in another.

    Args:
        pairs: The pairs.
        number: How many, at most.
        generator: Source of randomness.

    Returns:
        Whether each is held out.
    """
    shortest = min(len(first) for first, _ in pairs)
    ids: dict[bytes, int] = {}
    segments = np.array(
        [[ids.setdefault(_digest(each[:shortest]), len(ids)) for each in pair] for pair in pairs]
    )
    group = np.arange(len(ids))  # of each segment: the lowest id that pairs connect it with
    while np.ptp(group[segments], 1).any():
        np.minimum.at(group, segments, group[segments].min(1, keepdims=True))
    names, groups = np.unique(group[segments[:, 0]], return_inverse=True)
    held_out = np.zeros(len(pairs), bool)
    for each in generator.permutation(len(names)):
        if (held_out | (groups == each)).sum() <= number:
            held_out |= groups == each
    return held_out


def _digest(segment: Batch) -> bytes:
    return hashlib.sha256(
        b"".join(to_numpy(leaf).tobytes() for _, leaf in flatten(segment))
    ).digest()

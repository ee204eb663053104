"""Segments of episodes, and comparisons of them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.batch import Batch
from guerdon.data.leaves import to_numpy
from guerdon.data.tree import flatten, unflatten
from guerdon.reward.inputs import tensors
from guerdon.reward.ranking import Pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Cutter:
    """Cuts rollouts into segments of one length; the last of an episode may be shorter.

    Args:
        length: Rows of a segment.
        shortest: Rows that one needs whose episode was broken off; fewer are dropped.
    """

    def __init__(self, length: int, shortest: int = 1) -> None:
        self.length = length
        self.shortest = shortest
        self._open: dict[tuple[str, ...], np.ndarray] = {}  # [env, length, ...]
        self._filled = np.zeros(0, np.int64)

    def add(self, rows: Batch, mask: np.ndarray, over: np.ndarray) -> Batch | None:
        """Takes a rollout [T, n_envs, ...] in time order.

        Args:
            rows: What to keep of it.
            mask: Which rows are real [T, n_envs].
            over: Where episodes are over [T, n_envs].

        Returns:
            The segments that are complete now [N, length, ...], with ``length``: how many rows of
            each are real. None if there are none.
        """
        leaves = {path: to_numpy(leaf) for path, leaf in flatten(rows)}
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
            for path, leaf in leaves.items():
                self._open[path][envs, self._filled[envs]] = leaf[time, envs]
            self._filled[envs] += 1
            ends = envs[(self._filled[envs] == self.length) | over[time, envs]]
            if len(ends):
                closed.append(self._close(ends))
        return Batch.cat(closed) if closed else None

    def break_off(self, env_ids: np.ndarray | None = None) -> Batch | None:
        """Closes the open segments of some environments (None: all); see `add`."""
        if not len(self._filled):
            return None
        envs = np.arange(len(self._filled)) if env_ids is None else np.asarray(env_ids)
        long = self._filled[envs] >= self.shortest
        segments = self._close(envs[long]) if long.any() else None
        self._filled[envs] = 0
        return segments

    def _close(self, envs: np.ndarray) -> Batch:
        segments = unflatten({path: column[envs] for path, column in self._open.items()})
        segments.length = self._filled[envs]
        self._filled[envs] = 0
        return segments

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        return {
            "paths": [list(path) for path in self._open],
            "columns": [column.copy() for column in self._open.values()],
            "filled": self._filled.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self._open = _table(state)
        self._filled = np.array(state["filled"])


class Comparisons:
    """Labelled pairs of segments, as one table of rows; some are held out."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], np.ndarray] = {}
        self.length = np.zeros(0, np.int64)
        self.label = np.zeros(0)
        self.held_out = np.zeros(0, bool)

    def __len__(self) -> int:
        return len(self.label)

    def add(
        self,
        segments: Sequence[tuple[Batch, Batch]],
        label: np.ndarray,
        held_out: np.ndarray,
    ) -> Batch:
        """Takes pairs of equally long segments.

        Args:
            segments: The pairs.
            label: 0, 0.5 or 1 for each.
            held_out: Whether each is held out; no segment shall be in one that is and one that is
                not.

        Returns:
            The rows of all segments, one after the other.
        """
        rows = Batch.cat([segment for pair in segments for segment in pair])
        for path, leaf in flatten(rows):
            before = self._rows.get(path)
            self._rows[path] = leaf if before is None else np.concatenate([before, leaf])
        self.length = np.append(self.length, [len(first) for first, _ in segments])
        self.label = np.append(self.label, label)
        self.held_out = np.append(self.held_out, held_out)
        return rows

    def still_to_hold_out(self, number: int, share: float) -> int:
        """How many of so many further comparisons to hold out, for a share of all.

        One is left to learn from.
        """
        total = len(self) + number
        wanted = min(round(share * total), total - 1) - int(self.held_out.sum())
        return min(max(wanted, 0), number)

    def pairs(self, held_out: bool, device: str) -> Pairs:
        """Those that are held out, or the others."""
        which = self.held_out == held_out
        first = 2 * (np.cumsum(self.length) - self.length)
        rows = tensors(unflatten(self._rows), device)
        length = self.length[which]
        return Pairs(rows, first[which], first[which] + length, length, self.label[which])

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        return {
            "paths": [list(path) for path in self._rows],
            "columns": list(self._rows.values()),
            "length": self.length,
            "label": self.label,
            "held_out": self.held_out,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self._rows = _table(state)
        self.length, self.label = np.array(state["length"]), np.array(state["label"])
        self.held_out = np.array(state["held_out"])


def _table(state: Mapping[str, Any]) -> dict[tuple[str, ...], np.ndarray]:
    """The columns of a saved state by their paths, whose keys may hold dots."""
    found = zip(state["paths"], state["columns"], strict=True)
    return {tuple(path): np.array(column) for path, column in found}


def hold_out(
    segments: Sequence[tuple[Batch, Batch]], number: int, generator: np.random.Generator
) -> np.ndarray:
    """Draws pairs to hold out that share no segment with any other pair.

    Two segments are taken for one if their first rows are the same: as many as the shortest has,
    since a pair may hold the first part of a segment that is whole in another.

    Args:
        segments: The pairs.
        number: How many, at most.
        generator: Draws which ones.

    Returns:
        Whether each is held out.
    """
    shortest = min(len(first) for first, _ in segments)
    names = [tuple(_name(segment, shortest) for segment in pair) for pair in segments]
    held_out = np.zeros(len(segments), bool)
    groups = _connected(names)
    for each in generator.permutation(len(groups)):
        if held_out.sum() + len(groups[each]) <= number:
            held_out[groups[each]] = True
    return held_out


def _name(segment: Batch, number: int) -> bytes:
    """The same for segments whose first rows are the same, so many of them."""
    name = hashlib.sha256()
    for _, leaf in flatten(segment):
        name.update(to_numpy(leaf)[:number].tobytes())
    return name.digest()


def _connected(pairs: Sequence[tuple[bytes, ...]]) -> list[list[int]]:
    """The numbers of pairs, in groups that have nothing in common."""
    towards: dict[bytes, bytes] = {}

    def root(name: bytes) -> bytes:
        while towards.setdefault(name, name) != name:
            name = towards[name]
        return name

    for first, second in pairs:
        towards[root(first)] = root(second)
    groups: dict[bytes, list[int]] = {}
    for number, (first, _) in enumerate(pairs):
        groups.setdefault(root(first), []).append(number)
    return list(groups.values())

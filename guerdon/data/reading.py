"""From rows of a ring to batches: nesting, stacking, next observations."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from guerdon.data import kernels
from guerdon.data.batch import Batch, from_leaves
from guerdon.data.columns import Column, put, take
from guerdon.data.kernels import TERMINATED, TRUNCATED, VALID
from guerdon.data.ring import Ring
from guerdon.data.storage import TorchStorage
from guerdon.data.tree import unflatten

FIELDS = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next", "info", "policy")
ENDS = {
    "terminated": np.uint8(TERMINATED),
    "truncated": np.uint8(TRUNCATED),
    "done": np.uint8(TERMINATED | TRUNCATED),
}


class Reader:
    """Reads the fields of a ring.

    Args:
        ring: What is read.
        stack_num: How many frames an observation is read as.
    """

    def __init__(self, ring: Ring, stack_num: int) -> None:
        self._ring = ring
        self._stack_num = stack_num
        self._groups: dict[str, list[Column]] = {}
        self._names = list(FIELDS)
        self._on_device = isinstance(ring.storage, TorchStorage)
        self._version = 0
        self._shares_frames = ring.keeps_next and not self._on_device

    def groups(self) -> dict[str, list[Column]]:
        """The columns by field."""
        if self._version != self._ring.version:
            self._version = self._ring.version
            self._groups = {}
            for column in self._ring.columns:
                self._groups.setdefault(column.path[0], []).append(column)
            self._names = [*FIELDS, *(name for name in self._groups if name not in FIELDS)]
        return self._groups

    def names(self) -> list[str]:
        """Every field there is to read: the well-known ones, then the others."""
        self.groups()
        return self._names

    def stored(self) -> list[str]:
        """The fields of a transition as `add` takes them, without what is derived from others."""
        return [*self.groups(), "terminated", "truncated", "obs_next"]

    def read(
        self, rows: np.ndarray, fields: Iterable[str] | None = None, stack_num: int | None = None
    ) -> Batch:
        """The fields at some rows.

        Args:
            rows: Row numbers, known to be good.
            fields: Their names; all by default.
            stack_num: Frames a stack, for every field; by default for observations alone.
        """
        groups = self.groups()
        if not groups:
            raise ValueError("the buffer is empty: nothing was ever added")
        names = self._names if fields is None else tuple(fields)
        read: dict[str, Any] = {}
        frames = stack_num or self._stack_num
        if frames > 1 and self._shares_frames and "obs" in names and "obs_next" in names:
            read = self._both(rows, frames)
        flags = None
        for name in names:
            columns = groups.get(name)
            if name in read:
                continue
            if columns is not None:
                frames = stack_num or (self._stack_num if name == "obs" else 1)
                at = rows if frames == 1 else self._stacks(rows, frames)
                if len(columns) == 1 and len(columns[0].path) == 1:
                    read[name] = take(columns[0].rows, at)
                else:
                    read[name] = _nested([(c, take(c.rows, at)) for c in columns])
            elif name in ENDS:
                if flags is None:
                    at = rows if stack_num in (None, 1) else self._stacks(rows, stack_num)
                    flags = self._ring.flags.take(at)
                ends = (flags & ENDS[name]).astype(bool)
                read[name] = self._ring.storage.convert(ends) if self._on_device else ends
            elif name == "obs_next":
                read[name] = self._obs_next(rows, stack_num or self._stack_num)
            elif name in FIELDS:
                read[name] = Batch()
            else:
                raise KeyError(
                    f"this buffer has no field {name!r}; it has: {', '.join(self.names())}"
                )
        return from_leaves(read)

    def rollout(
        self, rows: np.ndarray, held: np.ndarray, fields: Iterable[str] | None
    ) -> tuple[Batch, np.ndarray]:
        """Rows [T, env] in time order, with ``mask`` and ``cut``; not copied where they lie so.

        Args:
            rows: Row numbers.
            held: Which of them belong to the rollout; the others only fill up the array.
            fields: The fields to read; all by default.
        """
        ring = self._ring
        flat = rows.reshape(-1)
        groups = self.groups()
        names = self._names if fields is None else tuple(fields)
        batch = Batch()
        if (
            ring.aligned
            and np.array_equal(rows[:1], ring.envs[None])
            and rows[-1, -1] == rows.size - 1
        ):
            plain = [n for n in names if n in groups and (n != "obs" or self._stack_num == 1)]
            for name in plain:
                leaves = [(c, c.rows[: flat.size]) for c in groups[name]]
                batch[name] = _nested(
                    [(c, leaf.reshape(*rows.shape, *leaf.shape[1:])) for c, leaf in leaves]
                )
            names = [name for name in names if name not in plain]
        if names:
            batch.update(self.read(rows, names))
        flags = ring.flags.take(flat)
        valid = (flags & VALID).astype(bool) & held.reshape(-1)
        follows = kernels.next_rows(flat, ring.written, ring.flags) != flat
        convert = ring.storage.convert if self._on_device else np.asarray
        batch.mask = convert(valid.reshape(rows.shape))
        batch.cut = convert((~follows | ~valid).reshape(rows.shape))
        return batch, rows

    def whole(self, name: str) -> Any:
        """A field at every slot: [slot, env, ...], or [slot, ...] with one environment."""
        ring = self._ring
        columns = self.groups().get(name)
        if columns is None:
            read = self.read(np.arange(ring.n_rows), (name,), 1)
            if name == "obs_next":
                empty = np.flatnonzero(ring.flags & VALID == 0)
                read.apply(lambda leaf: put(leaf, empty, None if leaf.dtype == object else 0))
            return read.apply(self._by_slot)[name]
        return _nested([(column, self._by_slot(column.rows)) for column in columns])

    def _by_slot(self, rows: Any) -> Any:
        ring = self._ring
        return rows if ring.n_envs == 1 else rows.reshape(ring.slots, ring.n_envs, *rows.shape[1:])

    def _stacks(self, rows: np.ndarray, frames: int) -> np.ndarray:
        stacks = kernels.stacks(rows.reshape(-1), frames, self._ring.written, self._ring.flags)
        return stacks.reshape((*rows.shape, frames))

    def _obs_next(self, rows: np.ndarray, frames: int) -> Any:
        ring = self._ring
        flat = rows.reshape(-1)
        if not ring.keeps_next:
            after = kernels.next_rows(flat, ring.written, ring.flags).reshape(rows.shape)
            return self.read(after, ("obs",), frames)["obs"]
        before = None if frames == 1 else self._stacks(flat, frames)[:, 1:]
        leaves = []
        for i, column in enumerate(self.groups()["obs"]):
            values = ring.next_values(i, flat, before)
            if rows.ndim != 1:
                values = values.reshape((*rows.shape, *values.shape[1:]))
            leaves.append((column, values))
        return _nested(leaves)

    def _both(self, rows: np.ndarray, frames: int) -> dict[str, Any]:
        """Stacked observations and next observations, which have all but one frame in common.

        They share the memory of these frames, so that half of the copying is saved, and cannot be
        written to.
        """
        ring = self._ring
        now = self._stacks(rows.reshape(-1), frames)
        after, linked, kept = ring.followers(now[:, -1])
        at = np.concatenate([now, after[:, None]], axis=1)
        leaves = []
        for column, table in zip(self.groups()["obs"], ring.table, strict=True):
            values = take(column.rows, at)
            values[linked, -1] = take(table.rows, kept)
            values.flags.writeable = False
            leaves.append((column, values.reshape(*rows.shape, *values.shape[1:])))
        until = (slice(None),) * rows.ndim
        return {
            "obs": _nested([(c, values[*until, :-1]) for c, values in leaves]),
            "obs_next": _nested([(c, values[*until, 1:]) for c, values in leaves]),
        }


def _nested(leaves: list[tuple[Column, Any]]) -> Any:
    """The values of one field: itself a leaf, or a batch."""
    column, value = leaves[0]
    if len(column.path) == 1:
        return value
    return unflatten({column.path[1:]: value for column, value in leaves})

"""The rows before a transition, for reward models that look at more than one step.

Whoever gives them: ``[..., k, ...]``, oldest first, with a ``mask`` that tells which of them there
are in the same episode.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from guerdon.data.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from guerdon.data import ReplayBuffer


class Reader(Protocol):
    """What a reward model says of its needs."""

    @property
    def fields(self) -> Sequence[str]:
        """What it reads of a transition."""

    @property
    def history(self) -> int:
        """How many rows before a transition it reads."""


def over(data: Batch) -> np.ndarray:
    """Where episodes are over: one that is cut at its newest row goes on in the next rollout."""
    ended: np.ndarray = np.zeros(data.rew.shape, bool)
    for name in ("terminated", "truncated"):
        if name in data:  # lists of dictionaries do not tell both
            ended = ended | np.asarray(data[name])
    if "cut" in data:
        mask = np.asarray(data.mask)
        newest = mask & (np.cumsum(mask[::-1], axis=0)[::-1] == 1)
        ended = ended | (np.asarray(data.cut) & ~newest)
    return ended


class Past:
    """The newest rows of every environment, from which the next rollout goes on."""

    def __init__(self) -> None:
        self._now: Batch | None = None  # [k, n_envs, ...], before the newest rollout
        self._next: Batch | None = None  # the same, after it

    def before(self, data: Batch, reader: Reader) -> Batch:
        """The rows before those of the newest rollout [T, n_envs, ...]."""
        rows, first = _joined(self._now, data, reader)
        n_before, n_rows = reader.history, len(rows.mask)
        at = np.arange(n_before, n_rows)[:, None, None] - np.arange(n_before, 0, -1)
        first = first[n_before:, :, None]
        there = (at >= first) & rows.mask[n_before:, :, None]
        envs = np.arange(there.shape[1])[:, None]
        return _take(rows, reader, np.maximum(at, first), envs).replace(mask=there)

    def follow(self, data: Batch, reader: Reader) -> None:
        """Takes a new rollout."""
        self._now = self._next
        rows, first = _joined(self._now, data, reader)
        envs = np.arange(rows.mask.shape[1])
        newest = np.where(rows.mask, np.arange(len(rows.mask))[:, None], -1).max(0)
        at = newest - np.arange(reader.history - 1, -1, -1)[:, None]
        goes_on = (newest >= 0) & ~rows.over[newest, envs]
        there = goes_on & (at >= first[newest, envs])
        self._next = _take(rows, reader, np.maximum(at, 0), envs).replace(mask=there)

    def break_off(self, env_ids: np.ndarray | None = None) -> None:
        """The next rows of some environments (None: all) begin episodes."""
        if self._next is not None:
            self._next.mask[:, slice(None) if env_ids is None else env_ids] = False


def before_in(buffer: ReplayBuffer, rows: np.ndarray, mask: Any, reader: Reader) -> Batch:
    """The rows before some of a buffer's.

    Args:
        buffer: Where they are.
        rows: Row numbers [...].
        mask: Which of them are transitions [...]; None if all are.
        reader: What is read.
    """
    real = np.ones(rows.shape, bool) if mask is None else np.asarray(mask)
    at = np.where(real, rows, rows[real][0])
    there, numbers, masks = real, [], []
    for _ in range(reader.history):
        earlier = buffer.prev(at)
        there, at = there & (earlier != at), earlier
        numbers.append(at)
        masks.append(there)
    index = np.stack(numbers[::-1], -1)
    found = {name: buffer.get(index, name) for name in reader.fields}
    return Batch({**found, "mask": np.stack(masks[::-1], -1)})


def alone(data: Batch, reader: Reader) -> Batch:
    """The rows before those of transitions [T, ...] in time order, the first of which begin."""
    shape = data.rew.shape
    before = Past().before(in_columns(data, reader.fields), reader)
    return before.apply(lambda leaf: leaf.reshape(*shape, *leaf.shape[2:]))


def in_columns(data: Batch, fields: Iterable[str]) -> Batch:
    """Transitions [T, ...] in time order as a rollout [T, B, ...]; a single one as one of one row.

    Args:
        data: The transitions.
        fields: What is kept of them, beside ``rew``, ``mask`` and where episodes are over.
    """
    shape = data.rew.shape
    lead = (*shape[:1], 1)[0], math.prod(shape[1:])
    kept = dict.fromkeys((*fields, "rew", "mask", "terminated", "truncated", "cut"))
    columns = Batch({name: data[name] for name in kept if name in data}).apply(
        lambda leaf: leaf.reshape(*lead, *leaf.shape[len(shape) :])
    )
    mask = columns.mask if "mask" in data else np.ones(columns.rew.shape, bool)
    return columns.replace(mask=np.asarray(mask))


def _joined(past: Batch | None, data: Batch, reader: Reader) -> tuple[Batch, np.ndarray]:
    """The past and a rollout in one, and for each row the oldest one of its episode that is known.

    Args:
        past: Rows [k, n_envs, ...]; None if nothing was before.
        data: A rollout [T, n_envs, ...].
        reader: What is read.

    Returns:
        Rows [k + T, n_envs, ...] with ``mask`` and ``over``, and row numbers [k + T, n_envs].
    """
    mask = np.asarray(data.mask) if "mask" in data else np.ones(data.rew.shape, bool)
    new = Batch({**{name: data[name] for name in reader.fields}, "mask": mask})
    if past is None:
        past = new[np.zeros(reader.history, int)]
        past = past.replace(mask=np.zeros_like(past.mask))
    rows = Batch.cat([past, new])
    ends = np.concatenate([np.zeros_like(past.mask), over(data)])
    begins = np.ones_like(rows.mask)
    begins[1:] = ends[:-1] | ~rows.mask[:-1]
    numbers = np.where(begins, np.arange(len(begins))[:, None], 0)
    return rows.replace(over=ends), np.maximum.accumulate(numbers, axis=0)


def _take(rows: Batch, reader: Reader, at: np.ndarray, envs: np.ndarray) -> Batch:
    return Batch({name: rows[name][at, envs] for name in reader.fields})

"""Transitions of no run as rollouts, and the rows before them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from guerdon.data.batch import Batch
from guerdon.data.leaves import to_numpy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def as_rollout(batch: Batch, fields: Iterable[str]) -> Batch:
    """Return transitions [T, ...] in time order as a rollout [T, B, ...].

    Args:
        batch: The transitions; a single one is a rollout of one row.
        fields: Fields to keep, beside ``rew`` and the ends.

    Returns:
        The fields, with ``mask`` and ``first``.
    """
    shape = batch.rew.shape
    lead = (*shape[:1], 1)[0], math.prod(shape[1:])
    kept = dict.fromkeys((*fields, "rew", "mask", "terminated", "truncated"))
    rollout = Batch({name: batch[name] for name in kept if name in batch}).apply(
        lambda leaf: leaf.reshape(*lead, *leaf.shape[len(shape) :])
    )
    for name, value in (("mask", True), ("terminated", False), ("truncated", False)):
        if name not in rollout:
            rollout[name] = np.full(lead, value)
    done = to_numpy(rollout.terminated) | to_numpy(rollout.truncated)
    first = np.ones(lead, bool)
    first[1:] = done[:-1] | ~to_numpy(rollout.mask)[:-1]
    return rollout.replace(first=first)


def rows_before(rollout: Batch, history: int, fields: Sequence[str]) -> Batch:
    """Return the rows before each row of a rollout: [T, B, history, ...], oldest first.

    Args:
        rollout: Rows [T, B, ...] with ``mask`` and ``first``.
        history: How many rows.
        fields: Fields to read.

    Returns:
        The fields, with ``mask``: which of the rows are of the same episode.
    """
    mask, times = to_numpy(rollout.mask), np.arange(len(rollout.mask))[:, None]
    start = np.maximum.accumulate(np.where(rollout.first, times, 0), axis=0)
    at = times[..., None] - np.arange(history, 0, -1)
    there = (at >= start[..., None]) & mask[..., None]
    at, envs = np.maximum(at, 0), np.arange(mask.shape[1])[:, None]
    return Batch({name: rollout[name][at, envs] for name in fields}).replace(mask=there)

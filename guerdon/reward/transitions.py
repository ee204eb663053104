"""Transitions outside a run: lists of dictionaries, rollouts, and previous rows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete

from guerdon.data.batch import Batch, flatten
from guerdon.data.leaves import Array, describe, shape, to_numpy
from guerdon.data.loading import flat_actions
from guerdon.data.spaces import fitting

NAMES = {
    "obs": "obs",
    "act": "action",
    "rew": "reward",
    "obs_next": "next_obs",
    "terminated": "done",
}
"""Fields of a `Batch`, and their names in lists of dictionaries."""
_FLAGS = ("terminated", "truncated")


def checked(data: Any, fields: Iterable[str], spaces: tuple[Any, Any]) -> Batch:
    """Return transitions [...] in the dtypes of the spaces; raise an error if they do not fit.

    Args:
        data: A `Batch`, or a dictionary of fields; the shape of ``rew`` is that of the rows.
        fields: Names of the fields that are read; others are not checked.
        spaces: Observation and action space; None where unknown.
    """
    if not isinstance(data, Batch | Mapping):
        raise TypeError(
            "transitions are a Batch or a dictionary of fields such as obs and act, not "
            f"{describe(data)}"
        )
    batch = Batch(data)
    fields = [name for name in fields if name not in _FLAGS]  # no end is marked by default
    if missing := [name for name in (*fields, "rew") if name not in batch]:
        hint = ": add the environment's rewards, or zeros" if missing[0] == "rew" else ""
        present = ", ".join(batch.keys()) or "nothing"
        raise ValueError(f"the transitions have no {missing[0]!r}, only {present}{hint}")
    by_name = {"obs": spaces[0], "act": spaces[1], "obs_next": spaces[0]}
    by_name |= {name: Discrete(2) for name in _FLAGS}
    names = [name for name in by_name if name in batch and name in (*fields, *_FLAGS)]
    read = Batch({name: batch[name] for name in (*names, "rew")})
    read = read.apply(lambda leaf: leaf if isinstance(leaf, Array) else np.asarray(leaf))
    lead = shape(read.rew)
    if 0 in lead:
        raise ValueError(f"there are no transitions: 'rew' has the shape {lead}")
    for path, leaf in flatten(read):
        if shape(leaf)[: len(lead)] != lead:
            raise ValueError(
                f"{'.'.join(path)} is {describe(leaf)}, but 'rew' has the shape {lead}: the first "
                "axes have to be the same"
            )
    flat = read.apply(lambda leaf: leaf.reshape((-1, *leaf.shape[len(lead) :])))
    found = {name: fitting(by_name[name], flat[name], name) for name in names}
    shaped = Batch(found).apply(lambda leaf: leaf.reshape((*lead, *leaf.shape[1:])))
    ends = {name: shaped[name] != 0 if name in names else np.zeros(lead, bool) for name in _FLAGS}
    return batch.replace(**{**dict(shaped.items()), "rew": read.rew, **ends})


def from_items(data: list[dict[str, Any]]) -> Batch:
    """Stack dictionaries to one batch, one row each."""
    if not data:
        raise ValueError("there are no transitions: the list is empty")
    missing = {"obs", "action"} - data[0].keys()
    if missing:
        raise ValueError(f"a transition needs 'obs' and 'action', but has no {missing.pop()!r}")
    names = {name: key for name, key in NAMES.items() if key in data[0]}
    batch = Batch([{name: item[key] for name, key in names.items()} for item in data]).to_numpy()
    for name, dtype in (("rew", np.float32), ("terminated", bool)):
        flat = batch[name].reshape(len(data)) if name in batch else np.zeros(len(data))
        batch[name] = flat.astype(dtype)
    batch.act = flat_actions(batch.act)
    return batch


def with_rewards(data: list[dict[str, Any]], rew: Any) -> list[dict[str, Any]]:
    """Return copies of the dictionaries with other rewards; tensors stay tensors."""
    rewarded = [{**item, "reward": float(value)} for item, value in zip(data, rew, strict=True)]
    for item, old in zip(rewarded, data, strict=True):
        if isinstance(before := old.get("reward"), torch.Tensor):
            item["reward"] = before.new_full(before.shape, item["reward"], dtype=torch.float32)
    return rewarded


def as_rollout(batch: Batch, fields: Iterable[str]) -> Batch:
    """Return fields of transitions [T, ...] or [] in time order as a rollout [T, B, ...].

    It also has ``rew``, ``terminated``, ``truncated``, ``mask`` and ``first``.
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
    """Return the rows before each row of a rollout: fields [T, B, history, ...], oldest first.

    ``mask`` is True for rows of the same episode.
    """
    mask, times = to_numpy(rollout.mask), np.arange(len(rollout.mask))[:, None]
    start = np.maximum.accumulate(np.where(rollout.first, times, 0), axis=0)
    at = times[..., None] - np.arange(history, 0, -1)
    there = (at >= start[..., None]) & mask[..., None]
    at, envs = np.maximum(at, 0), np.arange(mask.shape[1])[:, None]
    return Batch({name: rollout[name][at, envs] for name in fields}).replace(mask=there)

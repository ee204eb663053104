"""Transitions as lists of dictionaries, as DI-engine's guide has them, and as a `Batch`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from guerdon.data.batch import Batch
from guerdon.data.transitions import flat_actions

_NAMES = {
    "obs": "obs",
    "act": "action",
    "rew": "reward",
    "obs_next": "next_obs",
    "terminated": "done",
}


def to_batch(data: list[dict[str, Any]]) -> Batch:
    """The dictionaries as one batch, a row each."""
    if not data:
        raise ValueError("there are no transitions: the list is empty")
    missing = {"obs", "action"} - data[0].keys()
    if missing:
        raise ValueError(f"a transition needs 'obs' and 'action', but has no {missing.pop()!r}")
    rows = {name: [item[key] for item in data] for name, key in _NAMES.items() if key in data[0]}
    batch = Batch({name: _stack(values) for name, values in rows.items()})
    for name, dtype in (("rew", np.float32), ("terminated", bool)):
        flat = np.asarray(batch[name]).reshape(len(data)) if name in batch else np.zeros(len(data))
        batch[name] = flat.astype(dtype)
    batch.act = flat_actions(batch.act)
    return batch


def from_batch(batch: Batch) -> list[dict[str, Any]]:
    """A dictionary of tensors for each row [B, ...], in memory of their own.

    Actions and rewards that are single numbers have an axis of their own, as in the guide.
    """
    held = {key: _tensors(batch[name]) for name, key in _NAMES.items() if name in batch}
    for key in ("action", "reward"):
        if isinstance(held.get(key), torch.Tensor) and held[key].ndim == 1:
            held[key] = held[key][:, None]
    return rows(held)


def columns(data: list[dict[str, Any]]) -> dict[str, Any]:
    """One tensor a key of dictionaries that are alike."""
    return {
        key: columns([item[key] for item in data])
        if isinstance(data[0][key], dict)
        else torch.stack([item[key] for item in data])
        for key in data[0]
    }


def rows(held: dict[str, Any]) -> list[dict[str, Any]]:
    """The inverse of `columns`."""
    parts = {
        key: rows(value) if isinstance(value, dict) else value.unbind()
        for key, value in held.items()
    }
    return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]


def with_rewards(data: list[dict[str, Any]], rew: Any) -> list[dict[str, Any]]:
    """Copies of the dictionaries, with other rewards of the kind they had."""
    return [
        {**item, "reward": _like(value, item.get("reward"))}
        for item, value in zip(data, rew, strict=True)
    ]


def _stack(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return Batch({key: _stack([value[key] for value in values]) for key in values[0]})
    return np.stack(
        [v.numpy(force=True) if isinstance(v, torch.Tensor) else np.asarray(v) for v in values]
    )


def _tensors(value: Any) -> Any:
    """Copies as tensors; torch does not take arrays that are read-only, as stacked frames are."""
    if isinstance(value, Batch):
        return {key: _tensors(part) for key, part in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def _like(value: Any, before: Any) -> Any:
    if isinstance(before, torch.Tensor):
        return before.new_full(before.shape, float(value), dtype=torch.float32)
    return float(value)

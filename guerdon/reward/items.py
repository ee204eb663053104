"""Transitions as lists of dictionaries, as in DI-engine's guide, and as a `Batch`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from guerdon.data.batch import Batch
from guerdon.data.transitions import flat_actions
from guerdon.data.tree import flatten

_NAMES = {
    "obs": "obs",
    "act": "action",
    "rew": "reward",
    "obs_next": "next_obs",
    "terminated": "done",
}


def to_batch(data: list[dict[str, Any]]) -> Batch:
    """Join dictionaries to one batch, a row each."""
    if not data:
        raise ValueError("there are no transitions: the list is empty")
    missing = {"obs", "action"} - data[0].keys()
    if missing:
        raise ValueError(f"a transition needs 'obs' and 'action', but has no {missing.pop()!r}")
    names = {name: key for name, key in _NAMES.items() if key in data[0]}
    batch = Batch([{name: item[key] for name, key in names.items()} for item in data]).to_numpy()
    for name, dtype in (("rew", np.float32), ("terminated", bool)):
        flat = batch[name].reshape(len(data)) if name in batch else np.zeros(len(data))
        batch[name] = flat.astype(dtype)
    batch.act = flat_actions(batch.act)
    return batch


def from_batch(batch: Batch) -> list[dict[str, Any]]:
    """Return a dictionary of tensors for each row [B, ...], as copies.

    Actions and rewards that are single numbers have shape [1], as in the guide.
    """
    held = Batch({key: batch[name] for name, key in _NAMES.items() if name in batch}).apply(_copy)
    for key in ("action", "reward"):
        if isinstance(held.get(key), torch.Tensor) and held[key].ndim == 1:
            held[key] = held[key][:, None]
    return rows(held)


def columns(data: Any) -> Batch | None:
    """Join dictionaries of tensors with the same keys and shapes; None for other data."""
    if type(data) is not list or not data or not isinstance(data[0], dict):
        return None
    try:
        joined = Batch(data)
    except (TypeError, ValueError):
        return None
    tensors = all(isinstance(leaf, torch.Tensor) for _, leaf in flatten(joined))
    return joined if tensors else None


def rows(held: Batch) -> list[dict[str, Any]]:
    """Undo `columns`."""
    parts = {
        key: rows(value) if isinstance(value, Batch) else value.unbind()
        for key, value in held.items()
    }
    return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]


def with_rewards(data: list[dict[str, Any]], rew: Any) -> list[dict[str, Any]]:
    """Return copies of the dictionaries with other rewards, as tensors where they were tensors."""
    return [
        {**item, "reward": _like(float(value), item.get("reward"))}
        for item, value in zip(data, rew, strict=True)
    ]


def _copy(leaf: Any) -> torch.Tensor:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else torch.from_numpy(np.array(leaf))


def _like(value: float, before: Any) -> Any:
    if isinstance(before, torch.Tensor):
        return before.new_full(before.shape, value, dtype=torch.float32)
    return value

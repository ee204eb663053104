"""Transitions as lists of dictionaries, as DI-engine's guide has them, and as a `Batch`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from guerdon.data.batch import Batch

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
    act = np.asarray(batch.act)
    if act.dtype.kind in "iu" and act.ndim == 2 and act.shape[1] == 1:
        batch.act = act[:, 0]  # the guide's actions have an axis of their own
    return batch


def from_batch(batch: Batch) -> list[dict[str, Any]]:
    """A dictionary of tensors for each row [B, ...]."""
    columns = {key: batch[name] for name, key in _NAMES.items() if name in batch}
    rows: list[dict[str, Any]] = [{} for _ in range(len(batch.rew))]
    for key, column in columns.items():
        for i, row in enumerate(rows):
            row[key] = _tensors(column[i])
    return rows


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
    if isinstance(value, Batch):
        return {key: _tensors(part) for key, part in value.items()}
    return torch.as_tensor(value)


def _like(value: Any, before: Any) -> Any:
    if isinstance(before, torch.Tensor):
        return before.new_full(before.shape, float(value), dtype=torch.float32)
    return float(value)

"""Transitions as lists of dictionaries, as in DI-engine's guide, and as a `Batch`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from guerdon.data.batch import Batch
from guerdon.data.transitions import flat_actions

NAMES = {
    "obs": "obs",
    "act": "action",
    "rew": "reward",
    "obs_next": "next_obs",
    "terminated": "done",
}
"""Fields of a `Batch`, and their names in the guide."""


def to_batch(data: list[dict[str, Any]]) -> Batch:
    """Join dictionaries to one batch, a row each."""
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
    """Return copies of the dictionaries with other rewards, as tensors where they were tensors."""
    return [
        {**item, "reward": _like(float(value), item.get("reward"))}
        for item, value in zip(data, rew, strict=True)
    ]


def _like(value: float, before: Any) -> Any:
    if isinstance(before, torch.Tensor):
        return before.new_full(before.shape, value, dtype=torch.float32)
    return value

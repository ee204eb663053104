"""Transitions as lists of dictionaries, the format of DI-engine's guide."""

from typing import Any

import numpy as np
import torch

from guerdon.data.batch import Batch, flatten
from guerdon.reward.transitions import NAMES


def from_batch(batch: Batch) -> list[dict[str, Any]]:
    """Return copies of rows [B, ...] as dictionaries of tensors.

    Scalar actions and rewards have shape [1], as in the guide.
    """
    held = Batch({key: batch[name] for name, key in NAMES.items() if name in batch}).apply(_copy)
    for key in ("action", "reward"):
        if isinstance(held.get(key), torch.Tensor) and held[key].ndim == 1:
            held[key] = held[key][:, None]
    return rows(held)


def columns(data: Any) -> Batch | None:
    """Stack dictionaries of tensors with the same keys and shapes; None for other data."""
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


def _copy(leaf: Any) -> torch.Tensor:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else torch.from_numpy(np.array(leaf))

"""`ItemBuffer`: a ring of whole items (dictionaries of anything), for `BufferManager`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.tree import flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Mapping


class ItemBuffer:
    """Keeps the newest items as they are.

    Args:
        size: Items held at most.
        seed: Of the generator that samples.
    """

    def __init__(self, size: int, seed: int | np.random.Generator | None = None) -> None:
        if size < 1:
            raise ValueError(f"size is {size}, but has to be 1 or more")
        self.size = size
        self._generator = np.random.default_rng(seed)
        self._items: list[Mapping[str, Any] | None] = [None] * size
        self._written = 0

    def __len__(self) -> int:
        return sum(item is not None for item in self._items)

    def add(self, item: Mapping[str, Any]) -> int:
        """Adds an item, in the place of the oldest if there is no other, and returns its row."""
        row = self._written % self.size
        self._items[row] = item
        self._written += 1
        return row

    def stored_rows(self) -> np.ndarray:
        """The rows that hold an item."""
        return np.flatnonzero([item is not None for item in self._items])

    def discard(self, rows: np.ndarray) -> None:
        """Drops items."""
        for row in rows:
            self._items[row] = None

    def sample_indices(self, batch_size: int) -> np.ndarray:
        """Rows of that many different items."""
        rows = self.stored_rows()
        if batch_size > len(rows):
            raise ValueError(f"{batch_size} items were asked for, and there are {len(rows)}")
        return self._generator.choice(rows, batch_size, replace=False)

    def state_dict(self) -> dict[str, Any]:
        """As `ReplayBuffer.state_dict`."""
        arrays = {
            (str(row), *path): leaf
            for row in self.stored_rows()
            for path, leaf in flatten(self[row])
        }
        meta = {"written": self._written, "generator": self._generator.bit_generator.state}
        return {"meta": meta, "arrays": arrays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `ReplayBuffer.load_state_dict`."""
        rows: dict[int, dict[tuple[str, ...], Any]] = {}
        for path, leaf in state["arrays"].items():
            rows.setdefault(int(path[0]), {})[path[1:]] = leaf
        self._items = [
            unflatten(rows[row]).to_dict() if row in rows else None for row in range(self.size)
        ]
        self._written = state["meta"]["written"]
        self._generator.bit_generator.state = state["meta"]["generator"]

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        item = self._items[row]
        if item is None:
            raise IndexError(f"row {row} holds no item")
        return item

"""`ItemBuffer`: stores whole items (dictionaries), for `BufferManager`."""

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np

from guerdon.data.batch import Batch, Path, flatten
from guerdon.data.leaves import describe


class ItemBuffer:
    """Stores the newest items unchanged.

    Args:
        size: Maximum number of items.
        seed: Random seed, or a generator, for sampling.
    """

    n_envs = 1

    def __init__(self, size: int, seed: int | np.random.Generator | None = None) -> None:
        if size < 1:
            raise ValueError(f"size is {size}, but has to be 1 or more")
        self.size = size
        self._generator = np.random.default_rng(seed)
        self._items: dict[int, Any] = {}  # by row, oldest first
        self._free = list(range(size))  # a heap

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Mapping[str, Any] | Batch) -> int:
        """Add an item, replacing the oldest if the buffer is full, and return its row."""
        if not isinstance(item, Mapping | Batch):
            raise TypeError(f"an item is a dictionary, not {describe(item)}")
        if not self._free:
            self.discard([next(iter(self._items))])
        row = heapq.heappop(self._free)
        self._items[row] = item
        return row

    def stored_rows(self) -> np.ndarray:
        """Return the rows that have an item."""
        return np.sort(np.fromiter(self._items, np.int64, len(self)))

    def discard(self, rows: Any) -> None:
        """Drop items."""
        for row in np.asarray(rows).tolist():
            del self._items[row]
            heapq.heappush(self._free, row)

    def sample_indices(self, batch_size: int) -> np.ndarray:
        """Draw rows of `batch_size` different items."""
        rows = self.stored_rows()
        if batch_size > len(rows):
            raise ValueError(f"{batch_size} items were requested, but there are only {len(rows)}")
        return self._generator.choice(rows, batch_size, replace=False)

    def training_state(self) -> dict[str, Any]:
        """See `ReplayBuffer.training_state`."""
        arrays = {
            (str(row), *path): leaf
            for row, item in self._items.items()
            for path, leaf in flatten(item)
        }
        meta = {
            "size": self.size,
            "rows": list(self._items),
            "generator": self._generator.bit_generator.state,
        }
        return {"meta": meta, "arrays": arrays}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """See `ReplayBuffer.load_training_state`."""
        meta = state["meta"]
        if meta["size"] != self.size:
            raise ValueError(f"the saved buffer was made with size={meta['size']}, not {self.size}")
        self._items = {row: {} for row in meta["rows"]}
        for path, leaf in state["arrays"].items():
            _put(self._items[int(path[0])], path[1:], leaf)
        self._free = sorted(set(range(self.size)) - set(self._items))
        self._generator.bit_generator.state = meta["generator"]

    def __getitem__(self, row: int) -> Any:
        if row not in self._items:
            raise IndexError(f"row {row} has no item")
        return self._items[row]


def _put(item: dict[str, Any], path: Path, leaf: Any) -> None:
    for key in path[:-1]:
        item = item.setdefault(key, {})
    item[path[-1]] = leaf

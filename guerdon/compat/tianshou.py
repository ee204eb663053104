"""Tianshou's `ListReplayBuffer`."""

from typing import Any

import numpy as np
import torch

from guerdon.data import DiskStorage, ReplayBuffer
from guerdon.data.storage import Storage

_FIRST_CAPACITY = 256


class ListReplayBuffer(ReplayBuffer):
    """A buffer in memory that grows instead of overwriting its oldest rows.

    Growing changes the indices of all environments but the first.

    Args:
        n_envs: Number of environments.
        storage: See `ReplayBuffer`; not files.
        **options: See `ReplayBuffer`; without a size.
    """

    def __init__(
        self, n_envs: int = 1, storage: str | torch.device | Storage = "memory", **options: Any
    ) -> None:
        if isinstance(storage, DiskStorage) or str(storage).startswith("disk:"):
            raise ValueError("a ListReplayBuffer is in memory: use ReplayBuffer(size) for files")
        super().__init__(_FIRST_CAPACITY * n_envs, n_envs, storage=storage, **options)

    def options(self) -> dict[str, Any]:
        """See `ReplayBuffer`; excludes the size."""
        return {name: value for name, value in super().options().items() if name != "size"}

    def _make_room(self, envs: np.ndarray) -> None:
        if self._written[envs].max(initial=0) == self.capacity:
            self._grow()
        super()._make_room(envs)

    def _grow(self) -> None:
        """Double the capacity."""
        old, written, flags, final = self.capacity, self._written, self._flags, self._final
        self._make_bookkeeping(2 * old)
        rows = (self._envs[:, None] * self.capacity + np.arange(old)).reshape(-1)
        self._written[:], self._flags[rows], self._final[rows] = written, flags, final
        for path, column in self._columns.items():
            shape = (self.size, *column.shape[1:])
            self._columns[path] = self._storage.array(".".join(path), shape, column.dtype)
            self._columns[path][rows] = column
        self._refresh()

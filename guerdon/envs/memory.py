"""`SharedRows`: observations of all environments, in memory that their processes share."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from guerdon.envs.rows import ARRAY_SPACES

if TYPE_CHECKING:
    from gymnasium import Space

_ALIGNMENT = 64


def is_shareable(space: Space[Any]) -> bool:
    """Whether observations are arrays of numbers, or dictionaries of them."""
    if isinstance(space, spaces.Dict):
        return all(is_shareable(part) for part in space.spaces.values())
    return isinstance(space, ARRAY_SPACES)


class SharedRows:
    """Two observations for each environment: the next one, and the first of a new episode.

    Args:
        space: Of one observation.
        n_envs: How many environments write.
        name: Of memory that is there; without, it is made, and belongs to this process.
    """

    def __init__(self, space: Space[Any], n_envs: int, name: str | None = None) -> None:
        self._created = name is None
        n_bytes = 2 * _n_bytes(space, n_envs)
        self._memory = SharedMemory(name=name, create=name is None, size=n_bytes)
        self.name = self._memory.name
        self.obs_next, end = self._views(space, n_envs, 0)
        self.obs, _ = self._views(space, n_envs, end)

    def _views(self, space: Space[Any], n_envs: int, start: int) -> tuple[Any, int]:
        """The arrays of a space from a place on, and the place after them."""
        if isinstance(space, spaces.Dict):
            parts = {}
            for key, part in space.spaces.items():
                parts[key], start = self._views(part, n_envs, start)
            return parts, start
        shape = (n_envs, *(space.shape or ()))
        view: Any = np.ndarray(shape, space.dtype, self._memory.buf, start)
        return view, start + _n_bytes(space, n_envs)

    def close(self) -> None:
        """Lets go of the memory, and gives it back if it was made here."""
        self.obs_next = self.obs = None  # it stays mapped while views are there
        self._memory.close()
        if self._created:
            self._memory.unlink()


def _n_bytes(space: Space[Any], n_envs: int) -> int:
    if isinstance(space, spaces.Dict):
        return sum(_n_bytes(part, n_envs) for part in space.spaces.values())
    n_bytes = n_envs * int(np.prod(space.shape or ())) * np.dtype(space.dtype).itemsize
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def write_row(rows: Any, index: int, observation: Any) -> None:
    """Puts one environment's observation into its row."""
    if isinstance(rows, dict):
        for key, part in rows.items():
            write_row(part, index, observation[key])
    else:
        rows[index] = observation


def read_rows(rows: Any, ids: list[int] | slice) -> Any:
    """A copy of some rows."""
    if isinstance(rows, dict):
        return {key: read_rows(part, ids) for key, part in rows.items()}
    return np.array(rows[ids])

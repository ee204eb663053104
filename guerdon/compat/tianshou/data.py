"""Tianshou's `Batch`, buffers and `Collector`."""

from collections import defaultdict
from typing import Any

import numpy as np
import torch

from guerdon import collect, data
from guerdon.compat.tianshou.env import as_vector
from guerdon.data import Batch, DiskStorage
from guerdon.data.storage import Storage
from guerdon.envs import Step

__all__ = ["Batch", "Collector", "ListReplayBuffer", "PrioritizedReplayBuffer", "ReplayBuffer"]

_FIRST_CAPACITY = 256


class ReplayBuffer(data.ReplayBuffer):
    """`guerdon.data.ReplayBuffer` without an environment axis.

    ``buffer.obs[i]`` is ``buffer[i].obs`` (without stacking) for any number of environments, and
    rows of an episode are consecutive in ``sample(0)``.
    """

    def _by_slot(self, column: Any) -> Any:
        return column

    def rows_in_time(self) -> np.ndarray:
        """Return all rows with a transition, by environment and then by time."""
        rows, mask = self._rows_since(np.zeros_like(self._written))
        return np.extract(mask.T, rows.T)


class PrioritizedReplayBuffer(ReplayBuffer, data.PrioritizedReplayBuffer):
    """`guerdon.data.PrioritizedReplayBuffer` without an environment axis."""


class ListReplayBuffer(data.ReplayBuffer):
    """A buffer in memory that grows instead of overwriting its oldest rows.

    Growing changes the indices of all environments but the first. Options are those of
    `ReplayBuffer`, without a size, and without files as its storage.
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

    def _by_slot(self, column: Any) -> Any:
        # Several environments have indices with gaps, which their arrays have, too.
        return column[: self._written[0]] if self.n_envs == 1 else column

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


class Collector(collect.Collector):
    """Steps environments (one, of Gymnasium or with the API of Gym, or several), and stores rows.

    A buffer for one environment takes those of several episode by episode, each when it has ended,
    so that rows of an episode are consecutive. Without a buffer, only returns and lengths are kept.
    """

    buffer: Any

    def __init__(self, policy: Any, env: Any, buffer: Any = None, **options: Any) -> None:
        vector = as_vector(env)
        self._open: dict[int, list[Batch]] = defaultdict(list)  # rows of episodes
        self._moved = 0
        self._by_episode = buffer is not None and buffer.n_envs != vector.n_envs
        options = {"store_info": True, **options}
        if self._by_episode:
            options["watch"] = self._watch
        super().__init__(policy, vector, None if self._by_episode else buffer, **options)
        self.buffer = self._given = buffer

    def collect(
        self, n_step: int | None = None, n_episode: int | None = None, random: bool = False
    ) -> collect.Collected:
        """Collect; `n_step` is the least number of transitions in the buffer."""
        found, self._moved = collect.Collected(), 0
        while True:
            part = super().collect(n_step, n_episode, random)
            found.n_step += part.n_step
            for name in ("returns", "lengths", "successes"):
                getattr(found, name).extend(getattr(part, name))
            if n_step is None or not self._by_episode or self._moved >= n_step:
                return found

    def _record(self, *arguments: Any) -> None:
        self.buffer = None if self._by_episode else self._given  # `_watch` stores whole episodes
        try:
            super()._record(*arguments)
        finally:
            self.buffer = self._given

    def _watch(self, rows: dict[str, Any], step: Step, dummy: np.ndarray | None) -> None:
        """Keep the rows of a step, and store the episodes that end."""
        for env in () if step.broken is None else step.broken.tolist():
            self._open.pop(env, None)
        info = step.info if self.store_info else {}
        table, ends = Batch(rows, info=info), step.terminated | step.truncated
        ids = range(len(ends)) if step.env_ids is None else step.env_ids.tolist()
        for row, env in enumerate(ids):
            if dummy is not None and dummy[row]:
                continue
            self._open[env].append(table[row])
            for each in self._open.pop(env) if ends[row] else ():
                self._given.add(each)
                self._moved += 1

    def break_off(self) -> None:
        """Drop open episodes; the next `collect` starts with a reset."""
        self._open.clear()
        super().break_off()

    def fresh(self, fields: tuple[str, ...]) -> tuple[Batch, np.ndarray]:
        """See `guerdon.collect.Collector`."""
        if self._by_episode:
            raise ValueError(
                "a reward that is trained needs the steps of all environments in time order: make "
                f"the buffer with n_envs={self.env.n_envs}"
            )
        return super().fresh(fields)

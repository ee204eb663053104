"""`Rollout`: the data of one iteration, as dense arrays in time order."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from guerdon.data.batch import Batch, Path, flatten, unflatten
from guerdon.data.leaves import to_numpy
from guerdon.data.storage import Storage, make_storage
from guerdon.data.transition_schema import ENDS, FIELDS, Layout, Schema, fill_value


class Rollout:
    """Dense time-major arrays [T, n_envs, ...], allocated once and overwritten every iteration.

    ``obs_next`` is the true next observation of every row, also at episode ends. Each environment
    has its own cursor. An index is ``time * n_envs + env``.

    Args:
        n_steps: Rows per environment; more are allocated when needed.
        n_envs: Number of environments.
        history: Number of rows of the previous iteration that `before` can read.
        storage: ``"memory"``, or a device such as ``"cuda:0"`` for tensors.
    """

    def __init__(
        self,
        n_steps: int,
        n_envs: int,
        history: int = 0,
        storage: str | torch.device | Storage = "memory",
    ) -> None:
        self.n_envs = n_envs
        self.history = history
        self._storage = make_storage(storage)
        self.schema = Schema(self._storage.convert)
        self.cursors = np.zeros(n_envs, np.int64)
        """Number of rows that each environment has filled."""
        self._envs = np.arange(n_envs)
        self._in_step = True  # whether all environments have filled the same number of rows
        self._continues = np.zeros(n_envs, bool)  # whether the next row continues an episode
        # Arrays are [history + n_steps, n_envs, ...]: rows of the previous iteration come first.
        self._columns: dict[Path, Any] = {}
        self._flags = {
            name: np.zeros((history + max(n_steps, 1), n_envs), bool)
            for name in ("terminated", "truncated", "first", "mask")
        }

    def __len__(self) -> int:
        """Return the number of transitions."""
        return int(np.count_nonzero(self._flags["mask"][self.history :]))

    @property
    def written(self) -> np.ndarray:
        """Number of rows that each environment has filled in this iteration."""
        return self.cursors.copy()

    @property
    def n_steps(self) -> int:
        """Allocated rows per environment."""
        return len(self._flags["mask"]) - self.history

    # --- writing

    def add(
        self,
        fields: Mapping[str, Any],
        env_ids: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> np.ndarray:
        """Add one row of each environment.

        Args:
            fields: ``obs, act, rew, terminated, truncated, obs_next`` and any others.
            env_ids: Environments of the rows, each at most once; all by default.
            mask: Which rows are transitions; all by default.

        Returns:
            The indices of the rows.
        """
        envs = self._envs if env_ids is None else np.asarray(env_ids)
        leaves, terminated, truncated, layout = self.schema.check(fields, envs)
        if layout is not self.schema.layout:
            self._allocate(layout)
        chosen: Any = slice(None) if env_ids is None else envs  # slices are faster
        cursors, continues = self.cursors[chosen], self._continues[chosen]
        rows: np.ndarray = cursors * self.n_envs + envs
        self._in_step &= env_ids is None
        newest = int(cursors[0]) if self._in_step else cursors.max()
        if newest >= self.n_steps:
            self._grow()
        at: Any = self.history + newest if self._in_step else (self.history + cursors, envs)
        for path, column in self._columns.items():
            column[at] = leaves.get(path, 0)  # annotations are added later
        flags, done, first = self._flags, terminated | truncated, ~continues
        follows = ~done
        if mask is not None:
            terminated, truncated, first = terminated & mask, truncated & mask, first & mask
            follows &= continues | mask
        flags["terminated"][at], flags["truncated"][at] = terminated, truncated
        flags["mask"][at], flags["first"][at] = True if mask is None else mask, first
        self._continues[chosen] = follows
        self.cursors[chosen] += 1
        return rows

    def _allocate(self, layout: Layout) -> None:
        """Make columns for new leaves of a layout, and expect that layout from now on."""
        for path, leaf in layout.items():
            if path not in self.schema.layout:
                self._allocate_column(path, leaf.shape, leaf.dtype)
                if path[0] == "info":
                    self._columns[path][...] = fill_value(leaf.dtype)
        self.schema.layout = layout

    def _allocate_column(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        shape = (self.history + self.n_steps, self.n_envs, *shape)
        self._columns[path] = self._storage.array(".".join(path), shape, dtype)

    def _grow(self) -> None:
        rows, grow = self.history + 2 * self.n_steps, self._storage.grow
        self._columns = {path: grow("", column, rows) for path, column in self._columns.items()}
        more = np.zeros((self.n_steps, self.n_envs), bool)
        self._flags = {name: np.concatenate([flag, more]) for name, flag in self._flags.items()}

    def cut(self, env_ids: np.ndarray | None = None) -> None:
        """End running episodes without terminating them; the next rows begin new episodes."""
        self._continues[self._envs if env_ids is None else env_ids] = False

    def discard(self, index: np.ndarray) -> None:
        """Mark rows as not being transitions."""
        for name in ("mask", "first"):
            _by_row(self._flags[name][self.history :])[index] = False

    def annotate(self, rows: np.ndarray, annotations: Mapping[str, Any]) -> None:
        """See `ReplayBuffer.annotate`."""
        rows = np.asarray(rows)
        for path, value in flatten(annotations, ("annotations",)):
            values = self._storage.convert(value)
            if path not in self._columns:
                self._allocate_column(path, tuple(values.shape[rows.ndim :]), values.dtype)
            _by_row(self._columns[path][self.history :])[rows] = values

    def reset(self) -> None:
        """Start the next iteration; `before` can still read the newest rows of running episodes."""
        if self.history:
            self._keep_newest()
        self.cursors[:] = 0
        self._in_step = True
        for flag in self._flags.values():
            flag[self.history :] = False

    def _keep_newest(self) -> None:
        """Copy the newest rows to the front."""
        at = self.cursors + np.arange(self.history)[:, None]
        running = (at >= self._episode_starts()[at[-1], self._envs]) & self._continues
        for column in self._columns.values():
            column[: self.history] = column[at, self._envs]
        for flag in self._flags.values():
            flag[: self.history] = flag[at, self._envs]
        self._flags["mask"][: self.history] &= running

    def _episode_starts(self) -> np.ndarray:
        """Return the array row at which the episode of each row starts."""
        begins = self._flags["first"].copy()
        begins[0] = True
        begins[1:] |= ~self._flags["mask"][:-1]
        return np.maximum.accumulate(np.where(begins, np.arange(len(begins))[:, None], 0), axis=0)

    # --- reading

    def before(self, rows: np.ndarray, mask: Any, history: int, fields: Sequence[str]) -> Batch:
        """See `ReplayBuffer.before`; reads at most `history` previous rows."""
        if history > self.history:
            raise ValueError(f"history is {history}, but this rollout keeps {self.history} rows")
        time, env = np.divmod(rows, self.n_envs)
        time = (time + self.history)[..., None]
        at, envs = time - np.arange(history, 0, -1), env[..., None]
        there = (at >= self._episode_starts()[time, envs]) & self._flags["mask"][at, envs]
        if mask is not None:
            there &= to_numpy(mask)[..., None]
        leaves = self._leaves(fields)
        batch = unflatten({path: column[at, envs] for path, column in leaves.items()})
        return batch.replace(mask=self._storage.convert(there))

    def rollout(
        self, fields: Sequence[str] | None = None, since: np.ndarray | None = None
    ) -> tuple[Batch, np.ndarray]:
        """Read the rows [T, n_envs, ...] in time order; see `ReplayBuffer.rollout`.

        The arrays are not copies and are valid until the next `reset`. No index is -1.
        """
        length = int(self.cursors.max())
        if not length:
            raise ValueError("the rollout is empty: collect before reading it")
        start = 0 if since is None else int(since.min())
        new = slice(self.history + start, self.history + length)
        names = self.field_names() if fields is None else fields
        batch = unflatten({path: leaf[new] for path, leaf in self._leaves(names).items()})
        for name in names:
            if name not in batch:
                batch[name] = Batch()
        rows = np.arange(start * self.n_envs, length * self.n_envs).reshape(-1, self.n_envs)
        mask, first = self._flags["mask"][new].copy(), self._flags["first"][new].copy()
        if since is not None:
            mask &= rows // self.n_envs >= since
        done = (self._flags["terminated"] | self._flags["truncated"])[new]
        cut = np.ones(mask.shape, bool)
        cut[:-1] = done[:-1] | ~mask[:-1] | ~mask[1:] | first[1:]
        for name, flag in (("mask", mask), ("first", first), ("cut", cut)):
            batch[name] = self._storage.convert(flag)
        return batch, rows

    def field(self, name: str) -> Any:
        """Return a field of all rows [T, n_envs, ...] without copying it."""
        rows = slice(self.history, self.history + int(self.cursors.max()))
        leaves = self._leaves((name,)).items()
        return unflatten({path: column[rows] for path, column in leaves})[name]

    def field_names(self) -> list[str]:
        """Return the names of all fields: standard ones first."""
        return list(dict.fromkeys([*FIELDS, *(path[0] for path in self._columns)]))

    def _leaves(self, fields: Sequence[str]) -> dict[Path, Any]:
        """Return the arrays [history + n_steps, n_envs, ...] of some fields."""
        found: dict[Path, Any] = {}
        for name in fields:
            if name in ENDS:
                ends = [self._flags[end] for end in ENDS[:2] if name in (end, "done")]
                found[name,] = self._storage.convert(np.logical_or.reduce(ends))
                continue
            parts = {path: column for path, column in self._columns.items() if path[0] == name}
            if not parts and name not in ("info", "policy"):
                names = ", ".join(self.field_names())
                raise KeyError(f"this rollout has no field {name!r}; it has: {names}")
            found |= parts
        return found

    # --- rows by index, as in `ReplayBuffer`

    def rows(self, index: Any) -> np.ndarray:
        """Return the row numbers of an index."""
        return np.asarray(np.arange(self.cursors.max() * self.n_envs)[index])

    def newest_rows(self, env_id: int, number: int) -> np.ndarray:
        """Return up to ``number`` newest transitions of an environment in this iteration."""
        times = np.flatnonzero(self._flags["mask"][self.history :, env_id])
        return times[max(len(times) - number, 0) :] * self.n_envs + env_id

    def __getitem__(self, index: Any) -> Batch:
        rows: Batch = self.rollout()[0].apply(_by_row)[self.rows(index)]
        return rows

    def get(self, index: Any, key: str) -> Any:
        """Read one field."""
        return self.rollout((key,))[0].apply(_by_row)[self.rows(index)][key]

    def __getattr__(self, name: str) -> Any:
        # Called only for unknown attributes: `rollout.obs` is a field, [T, n_envs, ...].
        if name.startswith("_") or name not in self.field_names():
            raise AttributeError(f"Rollout has no field {name!r}")
        return self.rollout((name,))[0][name]


def _by_row(column: Any) -> Any:
    return column.reshape(-1, *column.shape[2:])

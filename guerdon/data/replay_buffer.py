"""`ReplayBuffer`: transitions of many environments in time order, for random sampling."""

import pathlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from guerdon.data import buffer_files, kernels
from guerdon.data.batch import Batch, Path, flatten, from_leaves, layout, unflatten
from guerdon.data.kernels import FIRST, LAST, PENDING, TERMINATED, TRUNCATED, VALID
from guerdon.data.leaves import describe, to_numpy
from guerdon.data.serializer import check_replaceable, read_tree, write_tree
from guerdon.data.storage import DiskStorage, Storage, make_storage
from guerdon.data.transition_schema import ENDS, FIELDS, Layout, Leaf, Schema, fill_value
from guerdon.limits import reading

_FLAGS = {
    "terminated": TERMINATED,
    "truncated": TRUNCATED,
    "done": TERMINATED | TRUNCATED,
    "first": FIRST,
}
_NODES = (Batch, Mapping)
_TRIES = 8
_KIND = "buffer"

_MOST_STACKED = 1_000  # frames, unless the buffer has more rows


class ReplayBuffer:
    """A ring of transitions for each environment.

    >>> buffer = ReplayBuffer(size=20)
    >>> for i in range(3):
    ...     rows = buffer.add(obs=i, act=i, rew=i, done=i == 2, obs_next=i + 1)
    >>> batch, indices = buffer.sample(4)

    An index is a row number, ``env * capacity + slot``. The first `add` determines keys, shapes and
    dtypes. ``obs_next`` is stored once, as the observation of the next row of the episode:
    consecutive `add` calls of an environment have to be consecutive steps, unless the episode ended
    or `cut` was called.

    Args:
        size: Maximum number of transitions over all environments; rounded up to full rings.
        n_envs: Number of environments. With one, arrays have no environment axis.
        stack_num: Number of frames to stack when observations are read; 1 disables stacking.
        ignore_obs_next: Do not store ``obs_next``; it is then read as the observation of the next
            row, or of the row itself if there is none. `sample` returns such rows as terminated,
            so that nothing bootstraps from them.
        save_only_last_obs: Observations are already stacked; store only the last frame.
        sample_avail: Sample only rows with at least ``stack_num - 1`` earlier rows of the episode.
        seed: Random seed, or a generator, for sampling.
        storage: ``"memory"``; ``"disk:FOLDER"`` (memory-mapped files, which are reopened with their
            content); a device such as ``"cuda:0"`` (torch tensors); or a `Storage`.
    """

    def __init__(
        self,
        size: int,
        n_envs: int = 1,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        seed: int | np.random.Generator | None = None,
        storage: str | torch.device | Storage = "memory",
    ) -> None:
        for name, value in (("size", size), ("n_envs", n_envs), ("stack_num", stack_num)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} is {value}, but has to be 1 or more, a whole number")
        self.n_envs = n_envs
        if stack_num > max(size, _MOST_STACKED):
            raise ValueError(f"stack_num is {stack_num}, but the buffer has {size} rows")
        self.stack_num = stack_num
        self.ignore_obs_next = ignore_obs_next
        self.save_only_last_obs = save_only_last_obs
        self.sample_avail = sample_avail
        self._generator = np.random.default_rng(seed)
        if not isinstance(self._generator.bit_generator, np.random.PCG64):
            raise TypeError("this generator cannot be saved with the buffer: use default_rng()")
        self._size = size
        capacity = -(-size // n_envs)
        self._storage = make_storage(storage)
        self._disk = self._storage if isinstance(self._storage, DiskStorage) else None
        self._session = secrets.token_hex(8)  # tells who uses a folder
        leaves = buffer_files.check_folder(self, self._disk, capacity) if self._disk else {}
        self.schema = Schema(self._storage.convert, not ignore_obs_next, save_only_last_obs)
        self._envs = np.arange(n_envs)
        self._columns: dict[Path, Any] = {}
        self._finals: dict[Path, Any] = {}
        self._free = np.zeros(1, np.int64)
        self._make_bookkeeping(capacity)
        if self._disk:
            buffer_files.reopen(self, self._disk, leaves)

    def _make_bookkeeping(self, capacity: int) -> None:
        make = self._storage.bookkeeping
        self.capacity = capacity
        """Maximum number of rows of one environment."""
        self._written = make("written", (self.n_envs,), np.int64)
        self._flags = make("flags", (self.n_envs * capacity,), np.uint8)
        self._final = make("final", (self.n_envs * capacity,), np.int32)
        self._count = np.zeros(1, np.int64)

    @property
    def size(self) -> int:
        """Maximum number of transitions."""
        return self.n_envs * self.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (*self._columns.values(), *self._finals.values(), self._flags, self._final)
        return sum(array.nbytes for array in arrays)

    @property
    def written(self) -> np.ndarray:
        """Number of rows that each environment has written since the buffer was empty."""
        return self._written.copy()

    def options(self) -> dict[str, Any]:
        """Return the constructor's options, without seed and storage."""
        names = ("n_envs", "stack_num", "ignore_obs_next", "save_only_last_obs", "sample_avail")
        return {"size": self._size, **{name: getattr(self, name) for name in names}}

    def __len__(self) -> int:
        return int(self._count[0])

    # --- writing

    def add(
        self,
        batch: Any = None,
        env_ids: Sequence[int] | np.ndarray | None = None,
        mask: np.ndarray | None = None,
        **fields: Any,
    ) -> np.ndarray:
        """Add one transition of each environment.

        Args:
            batch: The fields as a batch or dictionary.
            env_ids: Environments of the rows; every field then has a leading axis. By default all
                environments (with one environment, a single row without that axis).
            mask: Which rows are transitions and stored; all by default.
            **fields: ``obs, act, rew``, ``done`` or ``terminated`` and ``truncated``, ``obs_next``,
                ``info``, ``policy``, and any others.

        Returns:
            The indices of the rows.
        """
        given: Any = fields
        if batch is not None:
            if not isinstance(batch, _NODES):
                raise TypeError(f"add() takes a Batch or a dictionary, not {describe(batch)}")
            given = {**dict(batch.items()), **fields} if fields else batch
        envs = self._checked_envs(env_ids)
        if not len(envs):
            raise ValueError("env_ids is empty: there is nothing to add")
        single = env_ids is None and self.n_envs == 1
        leaves, terminated, truncated, layout = self.schema.check(given, envs, single)
        if layout is not self.schema.layout:
            self._make_columns(layout)
            self.schema.layout = layout
        if mask is not None:
            if len(mask) != len(envs):
                raise ValueError(f"the mask has {len(mask)} entries for {len(envs)} rows")
            real = np.flatnonzero(mask)
            envs, terminated, truncated = envs[real], terminated[real], truncated[real]
            leaves = {path: leaf[real] for path, leaf in leaves.items()}
        self._make_room(envs)
        book = self._written, self._flags, self._final, self._count
        plan, regular = kernels.reserve(envs, terminated, truncated, *book, self._free)
        rows: np.ndarray = plan[0]
        if regular:  # slices are faster
            target = int(plan[1, 0])
            at: Any = slice(int(rows[0]), None, self.capacity)
            to: Any = slice(target, target + self.n_envs)
        else:
            at, to = rows, plan[1]
        for path, table in self._finals.items():
            table[to] = leaves[path]
        for path, column in self._columns.items():
            column[at] = leaves.get(path, 0)  # annotations are added later
        if len(self._columns) + len(self._finals) > len(layout):
            plan[2] |= PENDING
        self._before_publishing(rows)
        kernels.publish(plan, *book, not self.ignore_obs_next)
        return rows

    def _before_publishing(self, rows: np.ndarray) -> None:
        """Update what depends on rows that are written but not yet valid."""

    def _make_columns(self, layout: Layout) -> None:
        """Make columns for new leaves."""
        columns, finals = dict(self._columns), dict(self._finals)
        for path, leaf in layout.items():
            if path in columns or path in finals:
                continue
            if path[0] == "obs_next":
                finals[path] = self._new_column(path, leaf, 2 * self.n_envs + 16)
                continue
            columns[path] = self._new_column(path, leaf, self.size)
            if path[0] == "info" and self._columns:  # older rows do not have this key
                columns[path][...] = fill_value(leaf.dtype)
        if self._disk:
            buffer_files.describe(self, self._disk, {**columns, **finals})
        self._columns, self._finals = columns, finals
        self._refresh()

    def _new_column(self, path: Path, leaf: Leaf, rows: int) -> Any:
        name = buffer_files.column_name(path)
        self._storage.drop(name)  # a file may be left over from an `add` that failed
        return self._storage.array(name, (rows, *leaf.shape), leaf.dtype)

    def _make_room(self, envs: np.ndarray) -> None:
        """Allocate rows for the next transition of each environment."""
        self._make_room_for_finals(len(envs))

    def _make_room_for_finals(self, number: int) -> None:
        if self._finals and self._free[0] < number:
            rows = 2 * self._n_finals + 2 * number
            for path, table in self._finals.items():
                self._finals[path] = self._storage.grow(buffer_files.column_name(path), table, rows)
            self._refresh()

    @property
    def _n_finals(self) -> int:
        return min((len(table) for table in self._finals.values()), default=0)

    def _refresh(self) -> None:
        """Count the valid rows, and list the unused rows of final observations."""
        self._count[0] = np.count_nonzero(self._flags & VALID)
        unused = np.ones(self._n_finals + 1, bool)
        unused[self._final] = False
        unused[: min(2 * self.n_envs + 1, len(unused))] = False
        free = np.flatnonzero(unused)[::-1] - 1
        self._free = np.concatenate([[len(free)], free, np.zeros(len(unused) - len(free), int)])

    def _checked_envs(self, env_ids: Any) -> np.ndarray:
        if env_ids is None:
            return self._envs
        envs = np.asarray(env_ids, np.int64).reshape(-1)
        ids = envs.tolist()
        if ids and not 0 <= min(ids) <= max(ids) < self.n_envs:
            raise IndexError(f"env_ids {ids} are not all in 0..{self.n_envs - 1}")
        if len(set(ids)) != len(ids):
            raise ValueError(f"env_ids {ids} have an environment twice")
        return envs

    def cut(self, env_ids: Sequence[int] | np.ndarray | None = None) -> None:
        """End running episodes without terminating them; the next rows begin new episodes."""
        heads = self._heads(self._checked_envs(env_ids))
        heads = heads[self._flags[heads] & LAST == 0]
        if self._finals and len(heads):
            self._make_room_for_finals(len(heads))
            self._free[0] -= len(heads)
            places = self._free[self._free[0] + 1 :][: len(heads)].copy()
            for path, table in self._finals.items():
                table[places] = self._next_values(path, heads)
            self._final[heads] = places + 1
        self._flags[heads] |= LAST

    def discard(self, index: Any) -> None:
        """Drop rows: they are no longer counted, sampled or readable."""
        rows = np.unique(self.rows(index))
        self._flags[rows] &= np.uint8(0xFF ^ VALID)
        self._count[0] -= len(rows)

    def reset(self) -> None:
        """Remove all transitions."""
        for array in (self._flags, self._final, self._written):
            array[...] = 0
        self._refresh()

    def extend(self, rows: Any, env_id: int = 0) -> None:
        """Add an episode of one environment, such as a demonstration; a running episode is cut."""
        rows = Batch(rows)
        self.cut([env_id])
        for i in range(len(rows)):
            self.add(rows[i : i + 1], env_ids=[env_id])
        self.cut([env_id])

    def update(self, other: "ReplayBuffer") -> Any:
        """Append another buffer's transitions in time order.

        Environments are matched by number (modulo `n_envs`). Running episodes of both buffers are
        cut before the first appended row.

        Returns:
            The observations, as in `obs`.
        """
        if not len(other):
            return self.obs if self._columns else None
        self.cut()
        in_time = other.rows_in_time()
        names = [*dict.fromkeys(path[0] for path in other._columns), *ENDS[:2], "obs_next"]
        for env in range(other.n_envs):
            rows = in_time[in_time // other.capacity == env]
            target = self._checked_envs([env % self.n_envs])
            batch = other.read(rows, names, stack_num=1)
            annotations = batch.pop("annotations", None)
            annotated = other._flags[rows] & PENDING == 0
            if self.save_only_last_obs:  # `add` then expects stacked observations
                frames = Batch(obs=batch.obs, obs_next=batch.obs_next)
                batch.update(frames.apply(lambda leaf: leaf[:, None]))
            continues = np.append(other._walk(rows, 1)[1, :-1] == rows[1:], False)
            for i in range(len(rows)):
                at = self.add(batch[i : i + 1], target)
                if annotations is not None:
                    self.annotate(np.where(annotated[i], at, -1), annotations[i : i + 1])
                if not continues[i]:
                    self.cut(target)
        return self.obs

    def annotate(self, rows: np.ndarray, annotations: Mapping[str, Any]) -> None:
        """Store columns for existing transitions.

        Args:
            rows: Indices [...]; -1 is ignored.
            annotations: Nested arrays [...], read back as ``batch.annotations``.
        """
        rows = np.asarray(rows)
        there = rows >= 0
        for path, value in flatten(annotations, ("annotations",)):
            values = self._storage.convert(value)
            if path not in self._columns:
                leaf = Leaf(tuple(values.shape[rows.ndim :]), values.dtype)
                self._flags[self._flags & VALID != 0] |= PENDING
                self._make_columns({path: leaf})
            self._columns[path][rows[there]] = values[there]
        self._flags[rows[there]] &= np.uint8(0xFF ^ PENDING)

    # --- indices

    def prev(self, index: Any) -> Any:
        """Return the previous rows of the episode; its first row returns itself."""
        rows = self.rows(index)
        return _like(self._walk(rows, 1, forward=False)[1], rows)

    def next(self, index: Any) -> Any:
        """Return the next rows of the episode; its last row returns itself."""
        rows = self.rows(index)
        return _like(self._walk(rows, 1)[1], rows)

    def episode_first(self, index: Any) -> Any:
        """Return the first stored rows of the same episodes."""
        return self._episode_ends(index, forward=False)

    def episode_last(self, index: Any) -> Any:
        """Return the last rows of the same episodes, which may still be running."""
        return self._episode_ends(index, forward=True)

    def _episode_ends(self, index: Any, forward: bool) -> Any:
        rows = self.rows(index)
        found = kernels.episode_ends(rows.reshape(-1), self._written, self._flags, forward)
        return _like(found.reshape(rows.shape), rows)

    def _walk(self, rows: np.ndarray, steps: int, forward: bool = True) -> np.ndarray:
        """Return the rows [steps + 1, ...] that are 0, 1, ... steps away, within their episodes."""
        found = kernels.walk(rows.reshape(-1), steps, self._written, self._flags, forward)
        return found.reshape(steps + 1, *rows.shape)

    def segments(self, rows: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows [length, B] of segments that start at rows [B], and their mask."""
        found = self._walk(rows, length - 1)
        mask = np.ones(found.shape, bool)
        mask[1:] = found[1:] != found[:-1]
        return found, mask

    def stacks(self, rows: np.ndarray, frames: int) -> np.ndarray:
        """Return the rows [..., frames] up to each row; an episode's first row is repeated."""
        found = self._walk(rows, frames - 1, forward=False)[::-1]
        return np.moveaxis(found, 0, -1).copy()

    def unfinished_index(self) -> np.ndarray:
        """Return the last rows of episodes that did not end: the newest rows, and cut ones."""
        ends = VALID | LAST | TERMINATED | TRUNCATED
        cut = np.flatnonzero(self._flags & ends == (VALID | LAST))
        heads = self._heads(self._envs)
        return np.union1d(cut, heads[self._flags[heads] & (VALID | LAST) == VALID])

    def newest(self, env_ids: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Return the newest row of each environment that was not discarded."""
        heads = self._heads(self._checked_envs(env_ids))
        return np.compress(self._flags[heads] & VALID, heads)

    def newest_rows(self, env_id: int, number: int) -> np.ndarray:
        """Return up to ``number`` newest rows of an environment that were not discarded."""
        count = int(self._written[env_id])
        times = np.arange(max(count - min(number, self.capacity), 0), count)
        rows = env_id * self.capacity + times % self.capacity
        return np.compress(self._flags[rows] & VALID != 0, rows)

    def _heads(self, envs: np.ndarray) -> np.ndarray:
        envs = np.compress(self._written[envs] > 0, envs)
        return np.asarray(envs * self.capacity + (self._written[envs] - 1) % self.capacity)

    def stored_rows(self) -> np.ndarray:
        """Return all rows with a transition, in storage order."""
        return np.flatnonzero(self._flags & VALID)

    def rows_in_time(self) -> np.ndarray:
        """Return all rows with a transition, by time and then by environment."""
        rows, mask = self._rows_since(np.zeros_like(self._written))
        return np.extract(mask, rows)

    def _rows_since(self, since: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows [T, n_envs] in time order, and which of them are transitions."""
        held = np.minimum(self._written - since, self.capacity)
        times = np.arange(held.max(initial=0))[:, None]
        rows = (self._written - held + times) % self.capacity + self._envs * self.capacity
        return rows, (times < held) & (self._flags[rows] & VALID != 0)

    def rows(self, index: Any) -> np.ndarray:
        """Return the row numbers of an index; raise an error for rows without a transition."""
        rows = np.asarray(index)
        if isinstance(index, slice) or rows.dtype == bool:
            return np.asarray(self.stored_rows()[index])
        if not rows.size:
            rows = rows.astype(np.int64)
        if rows.dtype.kind not in "iu":
            raise TypeError(f"a buffer is indexed with whole numbers, not {rows.dtype}")
        if (rows < 0).any():
            stored = self.stored_rows()
            counted = np.clip(rows + len(stored), 0, len(stored) - 1)
            within = (rows < 0) & (rows >= -len(stored))
            rows = np.where(within, stored[counted], rows)
        bad = (rows < 0) | (rows >= self.size)
        if not bad.any():
            bad = self._flags[rows] & VALID == 0
        if bad.any():
            raise IndexError(
                f"index {np.asarray(index)[bad].flat[0]} has no transition: this buffer has "
                f"{len(self)} of at most {self.size}"
            )
        return rows.astype(np.int64, copy=False)

    # --- reading

    def sample(
        self, batch_size: int, length: int = 1, fields: Sequence[str] | None = None
    ) -> tuple[Batch, np.ndarray]:
        """Sample transitions, or segments of consecutive ones.

        Args:
            batch_size: Number of samples; 0 returns all rows in time order.
            length: Length of segments. If above 1, every array is [length, B, ...]; past the end of
                an episode or the newest row, a segment repeats its last row with ``mask`` False.
            fields: Fields to read; all by default.

        Returns:
            The batch, and the indices.
        """
        if length < 1:
            raise ValueError(f"length is {length}, but a segment has 1 row or more")
        rows = self.sample_indices(batch_size)
        mask = None
        if length > 1:
            rows, mask = self.segments(rows, length)
        batch = self.read(rows, fields)
        if self.ignore_obs_next:
            unknown = self._storage.convert(self._walk(rows, 1)[1] == rows)  # next observations
            for name in {"terminated", "done"} & batch.keys():
                batch[name] |= unknown
        if mask is not None:
            batch.mask = self._storage.convert(mask)
        return batch, rows

    def rollout(
        self, fields: Sequence[str] | None = None, since: np.ndarray | None = None
    ) -> tuple[Batch, np.ndarray]:
        """Read all rows, or the newest, in time order: every array is [T, n_envs, ...].

        Args:
            fields: Fields to read; all by default.
            since: Read only rows written after `written` had this value.

        Returns:
            The batch, and the indices [T, n_envs]. Without a transition, ``batch.mask`` is False
            and the index is -1. ``batch.first`` is True where an episode begins, ``batch.cut``
            where no row of the same episode follows.
        """
        if not len(self):
            raise ValueError("the buffer is empty: add transitions before reading a rollout")
        rows, mask = self._rows_since(np.zeros_like(self._written) if since is None else since)
        batch = self.read(rows, fields)
        flags = self._flags[rows]
        continues = np.zeros(mask.shape, bool)
        continues[:-1] = mask[1:] & mask[:-1] & (flags[:-1] & LAST == 0)
        convert = self._storage.convert
        batch.mask, batch.cut = convert(mask), convert(~continues)
        batch.first = convert(mask & (flags & FIRST != 0))
        return batch, np.where(mask, rows, -1)

    def sample_indices(self, batch_size: int) -> np.ndarray:
        """Draw indices for `sample`."""
        if batch_size < 0:
            raise ValueError(f"batch_size is {batch_size}, but has to be 0 (all) or more")
        if not len(self):
            raise ValueError("the buffer is empty: add transitions before sampling")
        if not batch_size:
            rows = self.rows_in_time()
            return rows[self._eligible(rows)] if self.sample_avail else rows
        rows = self._draw(batch_size)
        # Rejection sampling keeps the relative probabilities of eligible rows.
        for _ in range(_TRIES):
            misses = np.flatnonzero(~self._eligible(rows))
            if not len(misses):
                return rows
            rows[misses] = self._draw(len(misses))
        misses = np.flatnonzero(~self._eligible(rows))
        rows[misses] = self._pick(self._all_eligible(), len(misses))
        return rows

    def _draw(self, number: int) -> np.ndarray:
        """Draw from all written rows, including ineligible ones."""
        chances = self._generator.random(number)
        drawn: np.ndarray = kernels.draw(chances, self._written, self.capacity)
        return drawn

    def _pick(self, rows: np.ndarray, number: int) -> np.ndarray:
        """Draw from eligible rows."""
        return rows[(self._generator.random(number) * len(rows)).astype(np.int64)]

    def _all_eligible(self) -> np.ndarray:
        rows = self.stored_rows()
        good = np.compress(self._eligible(rows), rows)
        if not len(good):
            raise ValueError(
                f"no row has {self.stack_num - 1} earlier rows of its episode, as required by "
                "sample_avail=True: add more transitions"
            )
        return good

    def _eligible(self, rows: np.ndarray) -> np.ndarray:
        good: np.ndarray = self._flags.take(rows) & VALID != 0
        if self.sample_avail and self.stack_num > 1:
            before = self._walk(rows, self.stack_num - 1, forward=False)
            good &= (before[1:] != before[:-1]).all(0)
        return good

    def read(
        self, rows: np.ndarray, fields: Sequence[str] | None = None, stack_num: int | None = None
    ) -> Batch:
        """Read fields at rows.

        Args:
            rows: Row numbers [...], not checked.
            fields: Names of the fields; all by default.
            stack_num: Number of stacked frames; by default only observations are stacked.
        """
        if not self._columns:
            raise ValueError("the buffer is empty: nothing was ever added")
        batch = {}
        for name in self.field_names() if fields is None else fields:
            frames = stack_num or (self.stack_num if name in ("obs", "obs_next") else 1)
            if name == "obs_next":
                batch[name] = self._obs_next(rows, frames)
                continue
            at = rows if frames == 1 else self.stacks(rows, frames)
            if name in _FLAGS:
                batch[name] = self._storage.convert(self._flags.take(at) & _FLAGS[name] != 0)
            else:
                batch[name] = self._field(name, partial(_take, at))
        return from_leaves(batch)

    def field_names(self) -> list[str]:
        """Return the names of all fields: standard ones first."""
        return list(dict.fromkeys([*FIELDS, *(path[0] for path in self._columns)]))

    def field_paths(self, name: str) -> list[Path]:
        """Return the paths of the stored leaves of a field."""
        return [path for path in self._columns if path[0] == name]

    def _field(self, name: str, read: Callable[[Any], Any]) -> Any:
        """Read the columns of a stored field."""
        if (name,) in self._columns:
            return read(self._columns[name,])
        leaves = {path[1:]: read(self._columns[path]) for path in self.field_paths(name)}
        if not leaves and name not in FIELDS:
            names = ", ".join(self.field_names())
            raise KeyError(f"this buffer has no field {name!r}; it has: {names}")
        return unflatten(leaves)

    def _obs_next(self, rows: np.ndarray, frames: int) -> Any:
        if self.ignore_obs_next:
            after = self._walk(rows, 1)[1]
            return self.read(after, ("obs",), frames).obs
        before = self.stacks(rows, frames)[..., 1:] if frames > 1 else None
        leaves = {path[1:]: self._next_values(path, rows, before) for path in self._finals}
        return leaves[()] if () in leaves else unflatten(leaves)

    def _next_values(self, path: Path, rows: np.ndarray, before: Any = None) -> Any:
        """Read one leaf of next observations, after the frames at rows ``before`` [..., k]."""
        at = kernels.following(rows.reshape(-1), self.capacity).reshape(rows.shape)
        if before is not None:
            at = np.concatenate([before, at[..., None]], -1)
        values = _take(at, self._columns["obs", *path[1:]])
        final = self._final.take(rows)
        places = np.nonzero(final)
        if len(places[0]):
            newest = places if before is None else (*places, -1)
            values[newest] = _take(final[places] - 1, self._finals[path])
        return values

    def before(self, rows: np.ndarray, mask: Any, history: int, fields: Sequence[str]) -> Batch:
        """Read the previous rows of the episode: [..., history, ...], oldest first.

        Args:
            rows: Indices [...].
            mask: Which rows are transitions [...]; None if all are.
            history: Number of previous rows.
            fields: Fields to read.

        Returns:
            The batch; ``mask`` is False where there is no such row.
        """
        real = np.ones(rows.shape, bool) if mask is None else to_numpy(mask)
        at = self.stacks(np.where(real, rows, 0), history + 1)
        there = (at[..., :-1] != at[..., 1:]) & real[..., None]
        return self.read(at[..., :-1], fields).replace(mask=self._storage.convert(there))

    def get(self, index: Any, key: str, stack_num: int | None = None) -> Any:
        """Read one field.

        Args:
            index: Indices.
            key: The field.
            stack_num: Number of stacked frames; by default the buffer's for observations, else 1.
        """
        return self._at(index, (key,), stack_num)[key]

    def __getitem__(self, index: Any) -> Batch:
        return self._at(index)

    def _at(self, index: Any, *arguments: Any) -> Batch:
        rows = self.rows(index)
        batch = self.read(np.atleast_1d(rows), *arguments)
        row: Batch = batch if rows.ndim else batch[0]
        return row

    def __getattr__(self, name: str) -> Any:
        # Called only for unknown attributes: `buffer.obs` is the field at every slot.
        if name.startswith("_"):
            raise AttributeError(name)
        if not self._columns:
            raise AttributeError(f"the buffer is empty, so it has no {name!r} yet")
        if name not in self.field_names():
            raise AttributeError(
                f"{type(self).__name__} has no field {name!r}; "
                f"it has: {', '.join(self.field_names())}"
            )
        if name != "obs_next" and name not in _FLAGS:
            return self._field(name, self._by_slot)
        read = self.read(np.arange(self.size), (name,), 1)
        if name == "obs_next":
            empty = self._storage.convert(self._flags & VALID == 0)
            for _, leaf in flatten(read):
                leaf[empty] = None if leaf.dtype == object else 0
        return read.apply(self._by_slot)[name]

    def _by_slot(self, column: Any) -> Any:
        if self.n_envs == 1:
            return column
        return column.reshape(self.n_envs, self.capacity, *column.shape[1:])

    def __repr__(self) -> str:
        if not self._columns:
            return f"{type(self).__name__}()"
        hidden = {"done"} if (self._flags & TRUNCATED).any() else {"terminated", "truncated"}
        if self.ignore_obs_next:
            hidden.add("obs_next")
        names = sorted(name for name in self.field_names() if name not in hidden)
        return layout(type(self).__name__, [(name, getattr(self, name)) for name in names])

    # --- files

    def training_state(self) -> dict[str, Any]:
        """Return everything needed to resume: ``meta`` for JSON, and ``arrays`` by path.

        The arrays are not copies: use or copy them before anything is added.
        """
        return buffer_files.training_state(self)

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Load another buffer's contents; size and options have to be the same."""
        buffer_files.load_training_state(self, state)

    def save(self, path: str | pathlib.Path) -> None:
        """Write the buffer to a folder, atomically; an older one is replaced."""
        check_replaceable(path, _KIND)
        write_tree(path, self.training_state(), _KIND)

    @classmethod
    def load(
        cls, path: str | pathlib.Path, storage: str | torch.device | Storage = "memory"
    ) -> Self:
        """Read a buffer that `save` wrote."""
        if pathlib.Path(path).is_file():
            raise ValueError(f"{path} is a file, but buffers are saved as folders: fill a new one")
        state = read_tree(path, _KIND)
        with reading(path):
            kind = str(state["meta"]["kind"])
        if kind != cls.__name__:
            raise ValueError(f"{path} has a {kind}, not a {cls.__name__}")
        with reading(path):
            buffer: Self = buffer_files.restore(cls, state, storage)
        return buffer

    def __reduce__(self) -> tuple[Any, ...]:
        return buffer_files.restore, (type(self), self.training_state())


def _take(rows: np.ndarray, column: Any) -> Any:
    return column.take(rows, 0) if isinstance(column, np.ndarray) else column[rows]


def _like(found: np.ndarray, rows: np.ndarray) -> Any:
    """Return an int for a scalar index."""
    return int(found) if rows.ndim == 0 else found

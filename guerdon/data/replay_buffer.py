"""`ReplayBuffer`: transitions of many environments, in time order, read in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from guerdon.data import buffer_files, kernels
from guerdon.data.batch import Batch, layout
from guerdon.data.express import ENDED, WRITTEN, Express
from guerdon.data.intake import Checked, Intake
from guerdon.data.kernels import VALID
from guerdon.data.leaves import describe
from guerdon.data.reading import Reader
from guerdon.data.ring import Ring
from guerdon.data.storage import DiskStorage, Storage, make_storage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

_TRIES = 8


class Finished(NamedTuple):
    """The episodes that ended with an `add`."""

    env_ids: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray


_NONE = Finished(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))


class ReplayBuffer:
    """A ring of transitions, one column of slots an environment.

    >>> buffer = ReplayBuffer(size=20)
    >>> for i in range(3):
    ...     _ = buffer.add(obs=i, act=i, rew=i, done=i == 2, obs_next=i + 1)
    >>> batch, indices = buffer.sample(4)

    An index is a number of a row: ``slot * n_envs + env``. What is stored is what was given: the
    first `add` decides keys, shapes and dtypes. ``obs_next`` is kept once, as the next row's
    observation, and beside the ring where no row follows.

    Args:
        size: Transitions held at most, over all environments; rounded up to full slots.
        n_envs: Environments that write. With one, arrays have no environment axis.
        stack_num: How many frames an observation is read as; 1 is no stacking.
        ignore_obs_next: Do not keep ``obs_next``; it is then read as the observation of the next
            row, or of the row itself where none follows.
        save_only_last_obs: Observations come stacked, and only the last frame is kept.
        sample_avail: Sample only rows with ``stack_num - 1`` rows of their episode before them.
        seed: Of the generator that samples.
        storage: ``"memory"``; ``"disk:FOLDER"`` (files larger than memory, opened with what they
            hold); a device such as ``"cuda:0"`` (torch tensors there); or a `Storage`.
    """

    _wraps = True

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
            if value < 1:
                raise ValueError(f"{name} is {value}, but has to be 1 or more")
        self.n_envs = n_envs
        self.stack_num = stack_num
        self.ignore_obs_next = ignore_obs_next
        self.save_only_last_obs = save_only_last_obs
        self.sample_avail = sample_avail
        self._generator = np.random.default_rng(seed)
        if not isinstance(self._generator.bit_generator, np.random.PCG64):
            raise TypeError("a buffer saves its generator, so that has to be one of default_rng()")
        self._size = size
        self._storage = make_storage(storage)
        self._disk = self._storage if isinstance(self._storage, DiskStorage) else None
        if self._disk:
            buffer_files.check_folder(self, self._disk)
        self._settled_ring = Ring(-(-size // n_envs), n_envs, self._storage, not ignore_obs_next)
        self._express = Express(self._settled_ring, self._wraps)
        self._intake = Intake(self._settled_ring, save_only_last_obs)
        self._reader = Reader(self._settled_ring, stack_num)
        if self._disk:
            buffer_files.reopen(self, self._disk)

    @property
    def _ring(self) -> Ring:
        """The ring; nobody gets it with steps that still wait for their bookkeeping."""
        if self._express.steps:
            self._settle()
        return self._settled_ring

    def _settle(self) -> int:
        return self._express.settle()

    @property
    def size(self) -> int:
        """How many transitions fit."""
        return self._ring.n_rows

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        ring = self._ring
        columns = [column.rows for column in (*ring.columns, *ring.table)]
        return sum(array.nbytes for array in (*columns, ring.flags, ring.link, ring.written))

    def options(self) -> dict[str, Any]:
        """What it was made with, less the seed and the storage."""
        names = ("n_envs", "stack_num", "ignore_obs_next", "save_only_last_obs", "sample_avail")
        return {"size": self._size, **{name: getattr(self, name) for name in names}}

    def __len__(self) -> int:
        return int(self._ring.n_valid[0])

    # --- writing

    def add(
        self,
        batch: Any = None,
        env_ids: Sequence[int] | np.ndarray | None = None,
        *,
        dummy: Any = None,
        **fields: Any,
    ) -> Finished:
        """Adds one transition for each environment.

        Args:
            batch: The fields as a batch or dictionary.
            env_ids: The environments the rows belong to; then every field has a leading axis.
                Without it, rows are for all of them (or, with one environment, the fields are a
                single row without that axis).
            dummy: Marks rows that are no transitions, as Gymnasium's NEXT_STEP autoreset makes
                them; they are never read again.
            **fields: ``obs, act, rew``, ``done`` or ``terminated`` and ``truncated``, ``obs_next``,
                ``info``, ``policy``, and whatever else is worth keeping.

        Returns:
            The episodes that ended.
        """
        if batch is not None:
            if not isinstance(batch, Batch | Mapping):
                raise TypeError(f"add() takes a Batch or a dictionary, not {describe(batch)}")
            fields = {**dict(batch.items()), **fields}
        everyone = self._settled_ring.envs
        envs = everyone if env_ids is None else self._checked_envs(env_ids)
        single = env_ids is None and self.n_envs == 1
        new = not self._settled_ring.columns
        try:
            if dummy is None and envs is everyone and single == (self.n_envs == 1):
                taken = self._express.take(fields)
                if taken == WRITTEN:
                    return _NONE
                if taken == ENDED:
                    self._settle()
                    return Finished(*self._express.finished)
            self._settle()
            return self._write(envs, self._intake(fields, len(envs), single, dummy))
        except BaseException:
            self._mend()
            if new:  # the first add decides on columns only if it succeeds
                self._intake.forget()
            raise

    def _mend(self) -> None:
        """Puts right what an `add` that failed half way may have left; the ring does so itself."""

    def _write(self, envs: np.ndarray, checked: Checked) -> Finished:
        if self._disk:
            buffer_files.describe_changes(self, self._disk)
        ring = self._ring
        n_ended = ring.write(envs, *checked)
        finished = Finished(*ring.finished(n_ended)) if n_ended else _NONE
        if self._intake.only_done:
            self._express.disarm()  # it knows no `done`
        else:
            self._express.arm(checked[1], finished.env_ids)
        return finished

    def _checked_envs(self, env_ids: Any) -> np.ndarray:
        envs = np.asarray(env_ids, np.int64).reshape(-1)
        if np.array_equal(envs, self._settled_ring.envs):
            return self._settled_ring.envs
        if len(envs) and (envs.min() < 0 or envs.max() >= self.n_envs):
            raise IndexError(f"env_ids {envs.tolist()} are not all in 0..{self.n_envs - 1}")
        if len(np.unique(envs)) != len(envs):
            raise ValueError(f"env_ids {envs.tolist()} name an environment twice")
        return envs

    def cut(self, env_ids: Sequence[int] | np.ndarray | None = None) -> None:
        """Breaks off running episodes, as when an environment was restarted.

        No row follows their newest rows any more, and their returns are not reported.
        """
        self._express.disarm()
        self._ring.cut(self._ring.envs if env_ids is None else self._checked_envs(env_ids))

    def discard(self, index: Any) -> None:
        """Drops rows for good: they are no longer counted, sampled or read."""
        self._express.disarm()
        self._ring.discard(self.rows(index))

    def reset(self) -> None:
        """Empties the buffer."""
        self._express.disarm()
        self._ring.clear()

    def extend(self, rows: Any, env_id: int = 0) -> None:
        """Adds consecutive rows of one environment, such as an episode of demonstrations."""
        rows = Batch(rows)
        for i in range(len(rows)):
            self.add(rows[i : i + 1], env_ids=[env_id])
        self.cut([env_id])

    def update(self, other: ReplayBuffer) -> Any:
        """Appends another buffer's transitions in their time order.

        Environments are matched by number (modulo `n_envs`). Episodes that are open on either side
        are cut where the two meet.

        Returns:
            The observations, as `obs` has them then.
        """
        if not len(other):
            return self.obs if self._ring.columns else None
        self.cut()
        only_done = other._intake.only_done and (not len(self) or self._intake.only_done)
        in_time = other._ring.rows_in_time()
        for env in range(other.n_envs):
            rows = in_time[in_time % other.n_envs == env]
            self._append(other, rows, self._checked_envs([env % self.n_envs]))
        self._intake.only_done = only_done
        if self._disk:
            buffer_files.describe_changes(self, self._disk)
        return self.obs

    def _append(self, other: ReplayBuffer, rows: np.ndarray, env: np.ndarray) -> None:
        """Adds one environment's rows of another buffer, one after the other."""
        batch = other._reader.read(rows, other._reader.stored(), stack_num=1)
        goes_on = np.append(other.next(rows)[:-1] == rows[1:], False)
        for i in range(len(rows)):
            fields = dict(batch[i : i + 1].items())
            self._write(env, self._intake(fields, 1, False, None, frames=True))
            if not goes_on[i]:
                self.cut(env)

    # --- rows

    def prev(self, index: Any) -> Any:
        """The rows before, within the episode; an episode's first row is its own."""
        return self._walk(kernels.previous_rows, index)

    def next(self, index: Any) -> Any:
        """The rows after, within the episode; its last row is its own."""
        return self._walk(kernels.next_rows, index)

    def episode_first(self, index: Any) -> Any:
        """The oldest rows of the same episodes, of those that are still here."""
        return self._walk(kernels.first_rows, index)

    def episode_last(self, index: Any) -> Any:
        """The newest rows of the same episodes: their last ones, if they have ended."""
        return self._walk(kernels.last_rows, index)

    def _walk(self, kernel: Any, index: Any) -> Any:
        rows = self.rows(index)
        walked = kernel(rows.reshape(-1), self._ring.written, self._ring.flags)
        return int(walked[0]) if rows.ndim == 0 else walked.reshape(rows.shape)

    def unfinished_index(self) -> np.ndarray:
        """The rows whose episode goes on, but not in here: the newest, and cut ones."""
        return self._ring.unfinished()

    def newest(self, env_ids: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """The rows written last by environments, of those that are transitions."""
        envs = self._ring.envs if env_ids is None else self._checked_envs(env_ids)
        return self._ring.heads(envs)

    def stored_rows(self) -> np.ndarray:
        """All rows that hold a transition, in storage order."""
        return self._ring.stored()

    def rows(self, index: Any) -> np.ndarray:
        """Row numbers for an index, each checked to hold a transition."""
        if isinstance(index, slice):
            return self._ring.stored()[index]
        rows = np.asarray(index)
        if rows.dtype == bool:
            if rows.shape != (len(self),):
                raise IndexError(
                    f"a mask of shape {rows.shape} does not fit {len(self)} transitions"
                )
            return np.compress(rows, self._ring.stored())
        if not rows.size:
            rows = rows.astype(np.int64)
        if rows.dtype.kind not in "iu":
            raise TypeError(f"a buffer is indexed with whole numbers, not {rows.dtype}")
        if (rows < 0).any():
            stored = self._ring.stored()
            counted = np.clip(rows + len(stored), 0, len(stored) - 1)
            within = (rows < 0) & (rows >= -len(stored))
            rows = np.where(within, stored[counted], rows)
        bad = (rows < 0) | (rows >= self.size)
        if not bad.any():
            bad = self._ring.flags[rows] & VALID == 0
        if bad.any():
            raise IndexError(
                f"index {np.asarray(index)[bad].flat[0]} holds no transition: this buffer has "
                f"{len(self)} of at most {self.size}"
            )
        return rows.astype(np.int64, copy=False)

    # --- reading

    def sample(
        self, batch_size: int, length: int = 1, fields: Sequence[str] | None = None
    ) -> tuple[Batch, np.ndarray]:
        """Draws transitions, or segments of consecutive ones.

        Args:
            batch_size: How many; 0 is all there are, in time order.
            length: With more than 1, segments of that many rows: every array is [length, B, ...].
                Past the end of an episode or the newest row, a segment repeats its last row, with
                ``mask`` False.
            fields: The fields to read; all by default.

        Returns:
            The batch, and the row numbers. Stacked ``obs`` and ``obs_next`` share frames and are
            read-only: copy one to change it.
        """
        rows = self.sample_indices(batch_size)
        return self._sampled(rows, length, fields)

    def _sampled(
        self, rows: np.ndarray, length: int, fields: Sequence[str] | None
    ) -> tuple[Batch, np.ndarray]:
        if length < 1:
            raise ValueError(f"length is {length}, but a segment has 1 row or more")
        if length == 1:
            return self._reader.read(rows, fields), rows
        rows, mask = kernels.segments(rows, length, self._ring.written, self._ring.flags)
        batch = self._reader.read(rows, fields)
        batch.mask = self._storage.convert(mask)
        return batch, rows

    @property
    def written(self) -> np.ndarray:
        """How many rows each environment has written since the buffer was new or reset."""
        written: np.ndarray = self._ring.written.copy()
        return written

    def rollout(
        self, fields: Sequence[str] | None = None, since: np.ndarray | None = None
    ) -> tuple[Batch, np.ndarray]:
        """All there is, in time order: every array is [T, n_envs, ...].

        Args:
            fields: The fields to read; all by default.
            since: Only rows that came after `written` was this.

        Returns:
            The batch, and the row numbers [T, n_envs]. ``batch.mask`` is False where there is no
            transition, and ``batch.cut`` True where no row of the same episode follows. Arrays may
            be the buffer's own: they are good until something is added.
        """
        if not len(self):
            raise ValueError("the buffer is empty: add transitions before reading a rollout")
        ring = self._ring
        new = ring.written - (0 if since is None else since)
        held = np.minimum(new, ring.slots)
        times = np.arange(held.max())[:, None]
        rows = (ring.written - held + times) % ring.slots * self.n_envs + ring.envs
        return self._reader.rollout(rows, times < held, fields)

    def sample_indices(self, batch_size: int) -> np.ndarray:
        """Row numbers for `sample`."""
        if not len(self):
            raise ValueError("the buffer is empty: add transitions before sampling")
        if batch_size < 0:
            raise ValueError(f"batch_size is {batch_size}, but has to be 0 (all) or more")
        if batch_size:
            return self._draw(batch_size)
        rows = self._ring.rows_in_time()
        return rows[self._eligible(rows)] if self.sample_avail else rows

    def _draw(self, number: int) -> np.ndarray:
        if not self.sample_avail:
            return self._draw_valid(number)
        rows = self._propose(number)
        # Drawing the misses again keeps the good rows as likely as they were.
        for _ in range(_TRIES):
            misses = np.flatnonzero(~self._eligible(rows))
            if not len(misses):
                return rows
            rows[misses] = self._propose(len(misses))
        misses = np.flatnonzero(~self._eligible(rows))
        rows[misses] = self._pick(self._all_eligible(), len(misses))
        return rows

    def _propose(self, number: int) -> np.ndarray:
        """Draws rows, of which some may be no transitions."""
        return (self._generator.random(number) * self._ring.limit()).astype(np.int64)

    def _draw_valid(self, number: int) -> np.ndarray:
        """Draws transitions, whatever else lies between them."""
        if self._ring.dense():
            return self._propose(number)
        rows = np.zeros(0, np.int64)
        for _ in range(_TRIES):
            # Some too many: the first of those that are good are as likely as any.
            more = self._propose(number - len(rows) + number // 8 + 4)
            rows = np.append(rows, more[self._eligible(more)])
            if len(rows) >= number:
                return rows[:number]
        return np.append(rows, self._pick(self._all_eligible(), number - len(rows)))

    def _pick(self, rows: np.ndarray, number: int) -> np.ndarray:
        """Draws from rows that are all good."""
        return rows[(self._generator.random(number) * len(rows)).astype(np.int64)]

    def _all_eligible(self) -> np.ndarray:
        rows = np.arange(self._ring.limit())
        good = np.compress(self._eligible(rows), rows)
        if not len(good):
            raise ValueError(
                f"no row has {self.stack_num - 1} rows of its episode before it, which "
                "sample_avail=True asks for: add more transitions"
            )
        return good

    def _eligible(self, rows: np.ndarray) -> np.ndarray:
        ring = self._ring
        good = (ring.flags.take(rows) & VALID).astype(bool)
        if self.sample_avail and self.stack_num > 1:
            good &= kernels.has_history(rows, self.stack_num, ring.written, ring.flags)
        return good

    def get(self, index: Any, key: str, stack_num: int | None = None) -> Any:
        """One field at some rows; observations are stacked as `stack_num` says.

        Args:
            index: Row numbers.
            key: The field.
            stack_num: Frames a stack; for observations the buffer's own by default, else 1.
        """
        return self._reader.read(self.rows(index), (key,), stack_num)[key]

    def __getitem__(self, index: Any) -> Batch:
        return self._reader.read(self.rows(index))

    def __getattr__(self, name: str) -> Any:
        # Only called for what is no attribute: `buffer.obs` is the field at every slot.
        if name.startswith("_"):
            raise AttributeError(name)
        if not self._ring.columns:
            raise AttributeError(f"the buffer is empty, so it has no {name!r} yet")
        if name not in self._reader.names():
            raise AttributeError(
                f"{type(self).__name__} has no field {name!r}; "
                f"it has: {', '.join(self._reader.names())}"
            )
        return self._reader.whole(name)

    def __repr__(self) -> str:
        if not self._ring.columns:
            return f"{type(self).__name__}()"
        hidden = {"terminated", "truncated"} if self._intake.only_done else {"done"}
        if self.ignore_obs_next:
            hidden.add("obs_next")
        names = sorted(name for name in self._reader.names() if name not in hidden)
        return layout(type(self).__name__, [(name, self._reader.whole(name)) for name in names])

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """Everything there is to restore: ``meta`` can be written as JSON, ``arrays`` by path.

        The rows are the buffer's own: use or copy them before you add anything.
        """
        return buffer_files.state_dict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over another buffer's contents; size and options have to be the same."""
        self._express.disarm()
        buffer_files.load_state_dict(self, state)

    def save(self, path: str | Path) -> None:
        """Writes the buffer into one file of arrays, in one piece or not at all."""
        buffer_files.save(self, path)

    @classmethod
    def load(cls, path: str | Path, storage: str | torch.device | Storage = "memory") -> Self:
        """Reads a buffer that `save` wrote."""
        buffer: Self = buffer_files.load(cls, path, storage)
        return buffer

    def __reduce__(self) -> tuple[Any, ...]:
        return buffer_files.restore, (type(self), self.state_dict())

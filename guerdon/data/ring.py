"""The ring behind every buffer: rows [slot, env, ...] in flat columns, and who follows whom.

Writing happens in three steps, so that whatever interrupts it leaves a consistent ring: the rows
to be overwritten are marked invalid, their columns are written, and one compiled call makes them
valid.

The next observation of a row is stored once, as the observation of the row that follows in time.
Where none follows, it is in the side table: the *tails* (two rows an environment, used in turns, so
that the newest row's is never overwritten half way) hold the newest rows', and the rows above them
those of episodes' last rows.
"""

from typing import Any

import numpy as np
import torch

from guerdon.data import kernels
from guerdon.data.columns import Column, put, take
from guerdon.data.kernels import LAST, TERMINATED, TRUNCATED, VALID
from guerdon.data.leaves import Array, equal
from guerdon.data.storage import DiskStorage, Storage

_KINDS = VALID | TERMINATED | TRUNCATED | LAST
_SMALL = 512  # bytes; larger rows are copied faster by NumPy
_EMPTY = np.zeros(0, np.uint8)


class Ring:
    """Rows, their flags, and the side table of next observations.

    Args:
        slots: Rows an environment.
        n_envs: Number of environments.
        storage: Where arrays live.
        keeps_next: Whether next observations are kept at all.
    """

    def __init__(self, slots: int, n_envs: int, storage: Storage, keeps_next: bool) -> None:
        self.n_envs = n_envs
        self.storage = storage
        self.keeps_next = keeps_next
        self.columns: list[Column] = []
        """One a leaf, observations first. Ends are not among them: they are flags."""
        self.table: list[Column] = []
        """The side table, one a leaf of the observation."""
        self.envs = np.arange(n_envs)
        self.no_marks = np.zeros(n_envs, np.uint8)
        new = storage.bookkeeping
        self.book = new("book", (3, n_envs), np.int64)
        self.written, self.lengths, self.n_valid = self.book[0], self.book[1], self.book[2, :1]
        self.flags = new("flags", (slots * n_envs,), np.uint8)
        # Flags say how many rows there are; in files, links may have grown just before them.
        self.link = new("link", (slots * n_envs,), np.int32)[: self.flags.size]
        self._set_agents(1)
        self._moved = np.zeros((n_envs, 2), np.int64)
        self._finished = np.zeros((n_envs, 2), np.int64)
        self._free = np.zeros(1, np.int64)
        # Rows in files become valid only when all of them is written; see `write`.
        self._publish_at_once = not isinstance(storage, DiskStorage)
        self._has_main = False
        self.aligned = True
        """Whether all environments have written the same number of rows."""
        self.version = 0
        """Counts changes of the columns."""

    def _set_agents(self, agents: int) -> None:
        # Of the running episodes, and of those that the last `write` ended.
        self._all_returns = self.storage.bookkeeping(
            "returns", (2, self.n_envs, agents), np.float64
        )
        self.returns = self._all_returns[0]

    @property
    def slots(self) -> int:
        """Rows an environment."""
        return self.flags.size // self.n_envs

    @property
    def n_rows(self) -> int:
        """Rows in all, valid or not."""
        return self.flags.size

    def start(self, columns: list[Column], table: list[Column], agents: int) -> None:
        """Takes the columns, once the first value of each is known.

        Args:
            columns: One a leaf, observations first.
            table: The side table's, one a leaf of the observation.
            agents: Rewards a row.
        """
        self._set_agents(agents)
        self.columns = columns
        self.table = table
        self.version += 1
        # The compiled call looks after one leaf of the observation, if it is made of numbers.
        self._has_main = bool(table) and is_compiled(table[0].rows)
        self._find_free()

    def _find_free(self) -> None:
        """Lists the rows of the side table that nothing links to, after their number."""
        held = len(self.table[0].rows) if self.table else 0
        rows = np.arange(held - 1, 2 * self.n_envs - 1, -1)
        rows = rows[~np.isin(rows, self.link - 1)]
        self._free = np.zeros(held + 1, np.int64)
        self._free[0] = len(rows)
        self._free[1 : len(rows) + 1] = rows

    # --- writing

    def write(
        self,
        envs: np.ndarray,
        values: list[Any],
        next_values: list[Any],
        rew: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        marks: np.ndarray,
    ) -> int:
        """Writes one row for each environment of `envs`, and returns how many episodes ended.

        Args:
            envs: The environments, each once; `self.envs` itself for all.
            values: An array for each column, with or without an axis of environments.
            next_values: An array for each column of the side table.
            rew: The rewards, in one dimension.
            terminated: Ends, one an environment, and so are the others.
            truncated: Ends by a limit.
            marks: DUMMY for rows that are no transitions, or 0.
        """
        columns, table, first = self.columns, self.table, 0
        if self.keeps_next and self._free[0] < 2 * len(envs):
            self._grow_table(len(envs))
        if envs is not self.envs:
            self.aligned = False
        target = self._target(envs)
        obs = obs_next = obs_rows = side = _EMPTY
        if self._has_main:
            first = 1
            # Environments hand out transposed arrays too; the kernel wants rows in one piece.
            obs, obs_next = (np.ascontiguousarray(v) for v in (values[0], next_values[0]))
            obs_rows, side = columns[0].rows, table[0].rows
        if len(table) > first:
            self._cut_breaks(envs, values, rew, marks)
        try:
            nan, n_ended = kernels.write_rows(
                envs, self.book, self.flags, self.link, self._all_returns, self._free, rew,
                terminated, truncated, marks, obs, obs_next, obs_rows, side, self._moved,
                self._finished, self.keeps_next, self._publish_at_once,
            )  # fmt: skip
            if nan < 0:
                for i in range(first, len(columns)):
                    put(columns[i].rows, target, values[i])
                if len(table) > first:
                    self._write_other_leaves(envs, next_values, first)
        except BaseException:
            self.flags[target] = 0
            self.repair()
            raise
        if nan >= 0:
            env = envs[nan * len(envs) // rew.size]
            raise ValueError(f"'rew' is NaN in environment {env}: nothing was added")
        if not self._publish_at_once:
            self.flags[target] = self._moved[: len(envs), 1]
        return n_ended

    def settle(
        self,
        steps: int,
        rew_rows: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        obs_next: np.ndarray,
    ) -> int:
        """Makes steps valid that `Express` has written, and returns how many episodes ended.

        Args:
            steps: How many.
            rew_rows: The column of rewards.
            terminated: Ends in the last of the steps.
            truncated: Ends by a limit, likewise.
            obs_next: The next observation of the last step; empty if it is not kept.
        """
        if self.keeps_next and self._free[0] < 2 * self.n_envs:
            self._grow_table(self.n_envs)
        table = self.table[0].rows if self.keeps_next else _EMPTY
        n_ended: int = kernels.settle_steps(
            steps, self.book, self.flags, self.link, self._all_returns, self._free, rew_rows,
            terminated, truncated, obs_next, table, self._finished, self.keeps_next,
        )  # fmt: skip
        return n_ended

    def finished(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Environments, returns and lengths of the episodes that ended with the last `write`."""
        returns = self._all_returns
        return (
            self._finished[:number, 0].copy(),
            (returns[1, :number, 0] if returns.shape[2] == 1 else returns[1, :number]).copy(),
            self._finished[:number, 1].copy(),
        )

    def _target(self, envs: np.ndarray) -> Any:
        """Where the next rows go."""
        n = self.n_envs
        if self.aligned:
            row = int(self.written[0]) % self.slots * n
            return slice(row, row + n)
        if envs is self.envs:
            self.aligned = bool((self.written == self.written[0]).all())
        return self.written[envs] % self.slots * n + envs

    def _grow_table(self, n: int) -> None:
        held = len(self.table[0].rows)
        for column in self.table:
            column.rows = self.storage.grow(column.name, column.rows, 2 * held + 2 * n)
        self._find_free()

    def _write_other_leaves(self, envs: np.ndarray, next_values: list[Any], first: int) -> None:
        """Does in the side table for other leaves what the compiled call did for the main one."""
        tails = (self.written[envs] - 1 & 1) * self.n_envs + envs
        final = self._moved[: len(envs), 0]
        places = np.where(final >= 0, final, tails)
        for column, value in zip(self.table[first:], next_values[first:], strict=True):
            put(column.rows, places, value)

    def _cut_breaks(
        self, envs: np.ndarray, values: list[Any], rew: np.ndarray, marks: np.ndarray
    ) -> None:
        """Cuts open episodes whose next observation is not the observation that comes now.

        The compiled call does that for one leaf by itself; with several, all have to be moved
        before anything points to them.
        """
        if np.isnan(rew).any():
            return  # nothing will be written
        marks = marks.copy()
        for value, column in zip(values, self.table, strict=False):
            if type(column.rows) is np.ndarray and not column.dtype.hasobject:
                new = value.reshape(len(envs), -1).view(np.uint8)
                table = column.rows.reshape(len(column.rows), -1).view(np.uint8)
            else:  # compare here, and let the kernel see only the outcome
                new = self._differ(envs, value, column)[:, None].view(np.uint8)
                table = np.zeros((2 * self.n_envs, 1), np.uint8)
            kernels.find_breaks(envs, self.written, self.link, new, table, marks)
        if marks.any():
            self.cut(envs[marks != 0])

    def _differ(self, envs: np.ndarray, value: Any, column: Column) -> np.ndarray:
        """Compares observations that are Python objects, or on a device, with the tails."""
        tails = take(column.rows, (self.written[envs] - 1 & 1) * self.n_envs + envs)
        value = value.reshape(tails.shape)
        if isinstance(tails, torch.Tensor):
            differs = (value != tails) & ~(value.isnan() & tails.isnan())
            return np.asarray(differs.reshape(len(envs), -1).any(1).cpu())
        return np.array([not equal(a, b) for a, b in zip(value, tails, strict=True)])

    def cut(self, envs: np.ndarray) -> None:
        """Ends open episodes where they are, without an end from the environment.

        Their newest rows keep their next observations, and nothing that comes later follows them.
        """
        _, heads = self._open_heads(envs)
        if self.table and len(heads):
            if self._free[0] < len(heads):
                self._grow_table(len(heads))
            self._free[0] -= len(heads)
            rows = self._free[self._free[0] + 1 :][: len(heads)].copy()
            for column in self.table:
                put(column.rows, rows, take(column.rows, self.link[heads] - 1))
            self.link[heads] = rows + 1
        self.flags[heads] |= LAST
        self.lengths[envs] = 0
        self.returns[envs] = 0.0

    def discard(self, rows: np.ndarray) -> None:
        """Makes rows invalid; nothing is sampled from them any more."""
        rows = np.unique(rows)
        rows = rows[self.flags[rows] & VALID == VALID]
        self.flags[rows] &= ~np.uint8(VALID)
        self.n_valid[0] -= len(rows)

    def clear(self) -> None:
        """Forgets every row."""
        for array in (self.book, self.flags, self.link, self._all_returns):
            array[...] = 0
        self.recover()

    def grow(self, slots: int) -> None:
        """Adds slots; only for a ring that has never wrapped around."""
        rows = slots * self.n_envs
        grow = self.storage.grow
        # All of them first: where there is no room for one, nothing has changed. Flags come last,
        # since they say how many rows there are.
        columns = [grow(column.name, column.rows, rows) for column in self.columns]
        link = grow("link", self.link, rows)
        self.flags = grow("flags", self.flags, rows)
        self.link = link
        for column, grown in zip(self.columns, columns, strict=True):
            column.rows = grown
        self.version += 1

    def repair(self) -> None:
        """Takes back newest rows that were interrupted half written."""
        envs = self.envs[self.written > 0]
        heads = (self.written[envs] - 1) % self.slots * self.n_envs + envs
        self.written[envs[self.flags[heads] & VALID == 0]] -= 1
        self.recover()

    def recover(self) -> None:
        """Makes derived state fit the arrays, after they were filled from outside."""
        self.link[(self.flags & VALID == 0) & (self.link > 2 * self.n_envs)] = 0
        if self.keeps_next:
            envs, heads = self._open_heads(self.envs)
            self.link[heads] = (self.written[envs] - 1 & 1) * self.n_envs + envs + 1
        self.n_valid[0] = np.count_nonzero(self.flags & VALID)
        self.aligned = bool((self.written == self.written[0]).all())
        self._find_free()

    def _open_heads(self, envs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The environments among `envs` whose episode is under way, and their newest rows."""
        envs = envs[self.written[envs] > 0]
        heads = (self.written[envs] - 1) % self.slots * self.n_envs + envs
        is_open = self.flags[heads] & (VALID | LAST) == VALID
        return envs[is_open], heads[is_open]

    # --- reading

    def limit(self) -> int:
        """The number of rows below which all valid rows are."""
        count = int(self.written[0] if self.aligned else self.written.max())
        return min(count, self.slots) * self.n_envs

    def dense(self) -> int:
        """The number of rows if all valid rows are those below it, and 0 otherwise."""
        limit = self.limit()
        return limit if self.aligned and self.n_valid[0] == limit else 0

    def stored(self) -> np.ndarray:
        """All valid rows in storage order."""
        if self.dense():
            return np.arange(self.dense())
        return np.flatnonzero(self.flags & VALID)

    def heads(self, envs: np.ndarray) -> np.ndarray:
        """The newest rows of environments that have any."""
        envs = envs[self.written[envs] > 0]
        heads = (self.written[envs] - 1) % self.slots * self.n_envs + envs
        return np.compress(self.flags[heads] & VALID, heads)

    def unfinished(self) -> np.ndarray:
        """The rows whose episode goes on while no row follows: cut ones, and the newest."""
        cut = np.flatnonzero(self.flags & _KINDS == (VALID | LAST))
        return np.union1d(cut, self._open_heads(self.envs)[1])

    def rows_in_time(self) -> np.ndarray:
        """All valid rows: time first, then environment."""
        age = np.arange(self.slots)[:, None]
        oldest = np.where(self.written > self.slots, self.written % self.slots, 0)
        rows = ((age + oldest) % self.slots * self.n_envs + self.envs).ravel()
        return np.compress(self.flags[rows] & VALID, rows)

    def next_values(self, leaf: int, rows: np.ndarray, before: np.ndarray | None) -> Array:
        """One leaf of next observations.

        Args:
            leaf: Which one.
            rows: The rows [B].
            before: The rows [B, k] of frames to stack before each, oldest first.
        """
        source, table = self.columns[leaf].rows, self.table[leaf].rows
        if before is None and is_compiled(source) and source[:1].nbytes <= _SMALL:
            out = np.empty((len(rows), *source.shape[1:]), source.dtype)
            kernels.gather_next(rows, self.link, self.n_envs, source, table, out)
            return out
        after, linked, kept = self.followers(rows)
        at = after if before is None else np.concatenate([before, after[:, None]], axis=1)
        values = take(source, at)
        if len(linked):
            newest = values if before is None else values[:, -1]
            put(newest, linked, take(table, kept))
        return values  # type: ignore[no-any-return]

    def followers(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows with the next observations; where they are not there; where they are instead."""
        links = self.link[rows]
        linked = np.flatnonzero(links)
        after = (rows + self.n_envs) % self.n_rows
        after[linked] = rows[linked]
        return after, linked, links[linked] - 1


def is_compiled(rows: Any) -> bool:
    """Whether the compiled loops know these numbers; half precision, say, they do not."""
    if type(rows) is not np.ndarray or not rows.dtype.isnative:
        return False
    return rows.dtype.kind in "biu" or rows.dtype in (np.float32, np.float64)

"""The ring behind every buffer: rows [slot, env, ...] in flat columns, and who follows whom.

Writing happens in three steps, so that whatever interrupts it leaves a consistent ring: the rows
to be overwritten are marked invalid, their columns are written, and one compiled call makes them
valid.

The next observation of a row is stored once, as the observation of the row that follows in time.
Where none follows, it is in the side table: the *tails* (two rows an environment, used in turns, so
that the newest row's is never overwritten half way) hold the newest rows', and the rows above them
those of episodes' last rows.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from guerdon.data import kernels
from guerdon.data.columns import Column, put, take
from guerdon.data.kernels import DONE, LAST, VALID
from guerdon.data.leaves import Array
from guerdon.data.storage import Storage


class Step(NamedTuple):
    """What is written in one call: a row for each of some environments, checked and in order."""

    values: list[Any]
    """One array a column."""
    next_observations: list[Any]
    """One array a column of the side table."""
    rew: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    dummy: np.ndarray


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
        self.table: list[Column] = []
        self.envs = np.arange(n_envs)
        self.nobody = np.zeros(n_envs, bool)
        new = storage.bookkeeping
        self.written = new("written", (n_envs,), np.int64)
        self.flags = new("flags", (slots * n_envs,), np.uint8)
        self.link = new("link", (slots * n_envs,), np.int32)
        self.n_valid = new("n_valid", (1,), np.int64)
        self.lengths = new("lengths", (n_envs,), np.int64)
        self._set_agents(1)
        self._freed = np.zeros(n_envs, np.int64)
        self._final = np.zeros(n_envs, np.int32)
        self._finished_lengths = np.zeros(n_envs, np.int64)
        self._free: list[int] = []
        self._table_bytes: list[np.ndarray | None] = []
        self.aligned = True

    def _set_agents(self, agents: int) -> None:
        self.returns = self.storage.bookkeeping("returns", (self.n_envs, agents), np.float64)
        self._finished_returns = np.zeros((self.n_envs, agents))

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
            columns: One a leaf.
            table: The side table's, one a leaf of the observation.
            agents: Rewards a row.
        """
        self._set_agents(agents)
        self.columns = columns
        self.table = table
        self._view_table()
        rows = len(table[0].rows) if table else 0
        self._free = list(range(rows - 1, 2 * self.n_envs - 1, -1))

    def _view_table(self) -> None:
        """The bytes of the side table, to compare observations by whatever they hold."""
        self._table_bytes = [
            column.rows.reshape(len(column.rows), -1).view(np.uint8)
            if isinstance(column.rows, np.ndarray) and column.dtype != object
            else None
            for column in self.table
        ]

    # --- writing

    def write(self, envs: np.ndarray, step: Step, single: bool) -> int:
        """Writes one row for each environment of `envs` and returns how many episodes ended.

        Args:
            envs: The environments, each once; `self.envs` itself for all.
            step: The values.
            single: Whether the values are one row without a leading axis.
        """
        broken = self._find_breaks(envs, step) if self.keeps_next else None
        nan, n_ended, n_freed = kernels.check_and_clear(
            envs, self.written, self.flags, self.link, step.rew, step.terminated, step.truncated,
            self.n_valid, self._freed,
        )  # fmt: skip
        if nan >= 0:
            env = envs[nan * len(envs) // step.rew.size]
            raise ValueError(f"'rew' is NaN in environment {env}: nothing was added")
        if n_freed:
            self._free += self._freed[:n_freed].tolist()
        if broken is not None:
            self.cut(envs[broken])
        if envs is not self.envs:
            self.aligned = False
        target, tails = self._targets(envs, single)
        for column, value in zip(self.columns, step.values, strict=True):
            put(column.rows, target, value)
        for column, value in zip(self.table, step.next_observations, strict=True):
            put(column.rows, tails, value)
        if n_ended and self.keeps_next:
            self._keep_final(step)
        kernels.commit(
            envs, self.written, self.flags, self.link, step.rew, step.terminated, step.truncated,
            step.dummy, self._final, self.n_valid, self.returns, self.lengths,
            self._finished_returns, self._finished_lengths, self.keeps_next,
        )  # fmt: skip
        return n_ended

    def finished(self, step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions, returns and lengths of the episodes that ended with the last `write`."""
        ended = np.flatnonzero((step.terminated | step.truncated) & ~step.dummy)
        returns = self._finished_returns[ended]
        if returns.shape[1] == 1:
            returns = returns[:, 0]
        return ended, returns, self._finished_lengths[ended]

    def _targets(self, envs: np.ndarray, single: bool) -> tuple[Any, Any]:
        """Where the next rows go, in the ring and in the tails."""
        n = self.n_envs
        if not self.aligned and envs is self.envs:
            self.aligned = bool((self.written == self.written[0]).all())
        if self.aligned:
            count = int(self.written[0])
            row, tail = count % self.slots * n, (count & 1) * n
            return (row, tail) if single else (slice(row, row + n), slice(tail, tail + n))
        counts = self.written[envs]
        return counts % self.slots * n + envs, (counts & 1) * n + envs

    def _keep_final(self, step: Step) -> None:
        """Puts the last observations of ending episodes into the side table."""
        ended = np.flatnonzero(step.terminated | step.truncated)
        rows = self._reserve(len(ended))
        for column, value in zip(self.table, step.next_observations, strict=True):
            put(column.rows, rows, value.reshape(len(step.terminated), *column.row_shape)[ended])
        self._final[ended] = rows + 1

    def _reserve(self, number: int) -> np.ndarray:
        """Free rows of the side table, which grows when it has none left."""
        held = len(self.table[0].rows)
        if len(self._free) < number:
            rows = max(2 * held, held + number)
            for column in self.table:
                column.rows = self.storage.grow(column.name, column.rows, rows)
            self._free += range(rows - 1, held - 1, -1)
            self._view_table()
        return np.array([self._free.pop() for _ in range(number)], np.int64)

    def _find_breaks(self, envs: np.ndarray, step: Step) -> np.ndarray | None:
        """Marks open episodes whose next observation is not the observation that comes now."""
        values = step.values[: len(self.table)]  # observations come first
        broken = np.zeros(len(envs), bool)
        n_broken = 0
        for value, column, table in zip(values, self.table, self._table_bytes, strict=True):
            if table is None:  # compare here, and let the kernel see only the outcome
                new = self._differ(envs, value, column)[:, None].view(np.uint8)
                table = np.zeros((2 * self.n_envs, 1), np.uint8)
            else:
                new = value.reshape(len(envs), -1).view(np.uint8)
            n_broken = kernels.find_breaks(
                envs, self.written, self.link, step.dummy, new, table, broken
            )
        return broken if n_broken else None

    def _differ(self, envs: np.ndarray, value: Any, column: Column) -> np.ndarray:
        """Compares observations that are Python objects, or on a device, with the tails."""
        tails = take(column.rows, ((self.written[envs] - 1) & 1) * self.n_envs + envs)
        value = value.reshape(tails.shape)
        if isinstance(tails, torch.Tensor):
            differs = (value != tails).reshape(len(envs), -1).any(1)
            return np.asarray(differs.cpu())
        return np.array([bool(a != b) for a, b in zip(value, tails, strict=True)])

    def cut(self, envs: np.ndarray) -> None:
        """Ends open episodes where they are, without an end from the environment.

        Their newest rows keep their next observations, and nothing that comes later follows them.
        """
        _, heads = self._open_heads(envs)
        if self.table and len(heads):
            rows = self._reserve(len(heads))
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
        for array in (
            self.written,
            self.flags,
            self.link,
            self.n_valid,
            self.lengths,
            self.returns,
        ):
            array[...] = 0
        self.recover()

    def grow(self, slots: int) -> None:
        """Adds slots; only for a ring that has never wrapped around."""
        rows = slots * self.n_envs
        for column in self.columns:
            column.rows = self.storage.grow(column.name, column.rows, rows)
        self.flags = self.storage.grow("flags", self.flags, rows)
        self.link = self.storage.grow("link", self.link, rows)

    def recover(self) -> None:
        """Makes derived state fit the arrays, after they were filled from outside.

        A killed process may have left a newest row whose link was already cleared, and links of
        rows that never became valid.
        """
        n = self.n_envs
        self.link[self.flags & VALID == 0] = 0
        if self.keeps_next:
            envs, heads = self._open_heads(self.envs)
            self.link[heads] = ((self.written[envs] - 1) & 1) * n + envs + 1
        self.n_valid[0] = np.count_nonzero(self.flags & VALID)
        self.aligned = bool((self.written == self.written[0]).all())
        if self.table:
            rows = np.arange(2 * n, len(self.table[0].rows))
            self._free = np.setdiff1d(rows, self.link - 1)[::-1].tolist()

    def _open_heads(self, envs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The environments among `envs` whose episode is under way, and their newest rows."""
        envs = envs[self.written[envs] > 0]
        heads = (self.written[envs] - 1) % self.slots * self.n_envs + envs
        is_open = self.flags[heads] & (VALID | LAST) == VALID
        return envs[is_open], heads[is_open]

    # --- reading

    def limit(self) -> int:
        """The number of rows below which all valid rows are."""
        return min(int(self.written.max()), self.slots) * self.n_envs

    def is_dense(self) -> bool:
        """Whether every row below `limit` is valid."""
        return self.aligned and int(self.n_valid[0]) == self.limit()

    def stored(self) -> np.ndarray:
        """All valid rows in storage order."""
        if self.is_dense():
            return np.arange(self.limit())
        return np.flatnonzero(self.flags & VALID)

    def heads(self, envs: np.ndarray) -> np.ndarray:
        """The newest rows of environments that have any."""
        envs = envs[self.written[envs] > 0]
        heads = (self.written[envs] - 1) % self.slots * self.n_envs + envs
        return np.compress(self.flags[heads] & VALID, heads)

    def unfinished(self) -> np.ndarray:
        """The rows whose episode goes on while no row follows: cut ones, and the newest."""
        cut = np.flatnonzero(self.flags & (VALID | DONE | LAST) == VALID | LAST)
        return np.union1d(cut, self._open_heads(self.envs)[1])

    def rows_in_time(self) -> np.ndarray:
        """All valid rows: time first, then environment."""
        age = np.arange(self.slots)[:, None]
        oldest = np.where(self.written > self.slots, self.written % self.slots, 0)
        rows = ((age + oldest) % self.slots * self.n_envs + self.envs).ravel()
        return np.compress(self.flags[rows] & VALID, rows)

    def next_places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the next observations of rows (in one dimension) are kept.

        Returns:
            A row of the ring each; the positions to read from the side table instead; their rows
            there.
        """
        (after, positions), sources = kernels.successors(rows, self.link, self.n_envs)
        return after, positions, sources


def next_values(
    column: Column,
    table: Column,
    places: tuple[np.ndarray, np.ndarray, np.ndarray],
    before: np.ndarray | None,
) -> Array:
    """One leaf of the next observations.

    Args:
        column: The leaf in the ring.
        table: The leaf in the side table.
        places: From `Ring.next_places`.
        before: The rows [B, k] to stack before each, oldest first, or None.
    """
    after, positions, sources = places
    at = after if before is None else np.concatenate([before, after[:, None]], axis=1)
    values = take(column.rows, at)
    if len(positions):
        newest = values if before is None else values[:, -1]
        put(newest, positions, take(table.rows, sources))
    return values  # type: ignore[no-any-return]

"""A naive buffer to compare with: every environment's rows in a plain list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Row:
    """One transition as it was given; observations are whole numbers that never repeat."""

    obs: int
    obs_next: int
    act: int
    rew: float
    terminated: bool
    truncated: bool
    dropped: bool = False
    note: int = 0
    """The annotation."""
    follows: Row | None = field(default=None, repr=False)
    """The row before it in its episode."""

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class Model:
    """What a buffer should hold, in lists.

    Args:
        capacity: Rows that are kept of each environment; None for all.
        n_envs: Number of environments.
    """

    def __init__(self, capacity: int | None, n_envs: int) -> None:
        self.capacity = capacity
        self.n_envs = n_envs
        self.written: list[list[Row]] = [[] for _ in range(n_envs)]
        self.open: list[Row | None] = [None] * n_envs

    def add(self, env: int, row: Row) -> None:
        row.follows = self.open[env]
        self.written[env].append(row)
        self.open[env] = None if row.done else row

    def cut(self, env: int) -> None:
        self.open[env] = None

    def kept(self, env: int, since: int = 0) -> list[tuple[int, Row]]:
        """Numbers and rows of one environment that are not overwritten, dropped ones included."""
        written = self.written[env]
        oldest = max(len(written) - self.capacity, 0) if self.capacity else 0
        return list(enumerate(written))[max(oldest, since) :]

    def rows(self, slots: int) -> dict[int, Row]:
        """The valid rows by index.

        Args:
            slots: Rows of an environment for which the buffer has memory.
        """
        return {
            env * slots + number % slots: row
            for env in range(self.n_envs)
            for number, row in self.kept(env)
            if not row.dropped
        }

    def in_time(self) -> list[Row]:
        """The valid rows, oldest first, then by environment."""
        order = [
            (age, env, row)
            for env in range(self.n_envs)
            for age, (_, row) in enumerate(self.kept(env))
            if not row.dropped
        ]
        return [row for _, _, row in sorted(order, key=lambda entry: entry[:2])]

    def previous(self, rows: dict[int, Row], row: Row) -> Row:
        before = row.follows
        return before if before is not None and any(r is before for r in rows.values()) else row

    def following(self, rows: dict[int, Row], row: Row) -> Row:
        return next((r for r in rows.values() if r.follows is row), row)

    def before(self, rows: dict[int, Row], row: Row, number: int) -> list[Row]:
        """Up to so many rows before one in its episode, oldest first."""
        found = [row]
        while len(found) <= number and (before := self.previous(rows, found[0])) is not found[0]:
            found.insert(0, before)
        return found[:-1]

    def stack(self, rows: dict[int, Row], row: Row, frames: int) -> list[Row]:
        stack = [*self.before(rows, row, frames - 1), row]
        return stack[:1] * (frames - len(stack)) + stack

    def segment(self, rows: dict[int, Row], row: Row, length: int) -> list[Row]:
        segment = [row]
        while len(segment) < length:
            after = self.following(rows, segment[-1])
            if after is segment[-1]:
                break
            segment.append(after)
        return segment

    def next_stack(
        self, rows: dict[int, Row], row: Row, frames: int, keeps_next: bool
    ) -> list[Any]:
        if not keeps_next:
            return [r.obs for r in self.stack(rows, self.following(rows, row), frames)]
        return [*[r.obs for r in self.stack(rows, row, frames)][1:], row.obs_next]

    def unfinished(self, rows: dict[int, Row]) -> list[int]:
        """Valid rows without an end that nothing in the history follows."""
        everything = [row for written in self.written for row in written]
        return sorted(
            index
            for index, row in rows.items()
            if not row.done and not any(r.follows is row for r in everything)
        )

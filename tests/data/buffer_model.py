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
    dummy: bool = False
    dropped: bool = False
    follows: Row | None = field(default=None, repr=False)
    """The row before it in its episode."""

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def valid(self) -> bool:
        return not (self.dummy or self.dropped)


class Model:
    """What a buffer should hold, in lists.

    Args:
        slots: Rows an environment keeps; None for all.
        n_envs: Number of environments.
    """

    def __init__(self, slots: int | None, n_envs: int) -> None:
        self.slots = slots
        self.n_envs = n_envs
        self.written: list[list[Row]] = [[] for _ in range(n_envs)]
        self.open: list[Row | None] = [None] * n_envs
        self.episodes: list[list[float]] = [[] for _ in range(n_envs)]

    def add(self, env: int, row: Row) -> tuple[float, int] | None:
        """Appends a row; returns return and length of an episode that ended."""
        before = self.open[env]
        if row.dummy or before is None or before.obs_next != row.obs:
            self.cut(env)
        else:
            row.follows = before
        self.written[env].append(row)
        if row.dummy:
            return None
        self.open[env] = None if row.done else row
        self.episodes[env].append(row.rew)
        if not row.done:
            return None
        rewards, self.episodes[env] = self.episodes[env], []
        return sum(rewards), len(rewards)

    def cut(self, env: int) -> None:
        self.open[env] = None
        self.episodes[env] = []

    def rows(self) -> dict[int, Row]:
        """The valid rows by index."""
        found = {}
        for env, written in enumerate(self.written):
            slots = self.slots or len(written) + 1
            for position, row in list(enumerate(written))[-slots:]:
                if row.valid:
                    found[position % slots * self.n_envs + env] = row
        return found

    def in_time(self) -> list[int]:
        """The indices, oldest slots first."""
        order: list[tuple[int, int, int]] = []
        for env, written in enumerate(self.written):
            slots = self.slots or len(written) + 1
            kept = list(enumerate(written))[-slots:]
            for age, (position, row) in enumerate(kept):
                if row.valid:
                    order.append((age, env, position % slots * self.n_envs + env))
        return [index for _, _, index in sorted(order)]

    def previous(self, rows: dict[int, Row], row: Row) -> Row:
        before = row.follows
        return before if before is not None and any(r is before for r in rows.values()) else row

    def following(self, rows: dict[int, Row], row: Row) -> Row:
        return next((r for r in rows.values() if r.follows is row), row)

    def stack(self, rows: dict[int, Row], row: Row, frames: int) -> list[Row]:
        stack = [row]
        while len(stack) < frames:
            stack.insert(0, self.previous(rows, stack[0]))
        return stack

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
        everything = [r for written in self.written for r in written if not r.dummy]
        return sorted(
            index
            for index, row in rows.items()
            if not row.done and not any(r.follows is row for r in everything)
        )

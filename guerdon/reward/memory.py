"""What a reward model remembers of what the policy did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.tree import flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.data.batch import Batch


class Memory:
    """Some of the transitions that it was given.

    Args:
        size: Transitions that it holds at most.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._columns: dict[tuple[str, ...], np.ndarray] = {}
        self._written = 0  # since the last `clear`

    def __len__(self) -> int:
        return min(self._written, self.size)

    def add(self, rows: Batch) -> None:
        """Takes rows [N, ...], oldest first, in the place of the oldest that it holds."""
        leaves = dict(flatten(rows))
        number = len(next(iter(leaves.values())))
        if not self._columns:
            self._make_room(leaves)
        places = (self._written + np.arange(max(0, number - self.size), number)) % self.size
        for path, column in self._columns.items():
            column[places] = leaves[path][-len(places) :]
        self._written += number

    def mix_in(self, rows: Batch, generator: np.random.Generator) -> None:
        """Takes rows [N, ...] so that each that ever was is held with the same chance.

        Where everything is taken in this way, and not by `add`.
        """
        leaves = dict(flatten(rows))
        order = self._written + np.arange(len(next(iter(leaves.values()))))
        places = np.where(order < self.size, order, generator.integers(order + 1))
        if not self._columns:
            self._make_room(leaves)
        for row in np.flatnonzero(places < self.size):
            for path, column in self._columns.items():
                column[places[row]] = leaves[path][row]
        self._written += len(order)

    def _make_room(self, leaves: Mapping[tuple[str, ...], np.ndarray]) -> None:
        self._columns = {
            path: np.empty((self.size, *leaf.shape[1:]), leaf.dtype)
            for path, leaf in leaves.items()
        }

    def sample(self, number: int, generator: np.random.Generator) -> Batch:
        """Draws rows, each as likely as any, with replacement."""
        if not len(self):
            raise ValueError("nothing was collected yet: call collect_data() before train()")
        return self.rows(generator.integers(len(self), size=number))

    def rows(self, index: np.ndarray | None = None) -> Batch:
        """Rows by their place; all of them by default, which are the memory's own."""
        places = slice(0, len(self)) if index is None else index
        return unflatten({path: column[places] for path, column in self._columns.items()})

    def clear(self) -> None:
        """Forgets everything."""
        self._written = 0

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on: copies."""
        held = len(self)
        return {
            "written": self._written,
            "paths": [list(path) for path in self._columns],
            "columns": [column[:held].copy() for column in self._columns.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; where the size is another one, with what fits."""
        self._columns, self._written = {}, int(state["written"])
        for path, rows in zip(state["paths"], state["columns"], strict=True):
            rows = np.asarray(rows)
            if len(rows) != len(self):  # of another size: the order in the ring is lost
                rows = rows[-self.size :]
                self._written = len(rows)
            column = np.empty((self.size, *rows.shape[1:]), rows.dtype)
            column[: len(rows)] = rows
            self._columns[tuple(path)] = column

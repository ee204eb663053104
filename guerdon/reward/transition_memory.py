"""Keeps transitions of the policy for a reward model to train on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.tree import flatten, unflatten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.data.batch import Batch


class Memory:
    """A bounded set of transitions.

    Args:
        size: Maximum number of transitions.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._columns: dict[tuple[str, ...], np.ndarray] = {}
        self._written = 0  # since the last `clear`

    def __len__(self) -> int:
        return min(self._written, self.size)

    def add(self, rows: Batch) -> None:
        """Add rows [N, ...], oldest first; they replace the oldest."""
        leaves = self._leaves(rows)
        number = len(next(iter(leaves.values())))
        places = (self._written + np.arange(max(0, number - self.size), number)) % self.size
        for path, column in self._columns.items():
            column[places] = leaves[path][-len(places) :]
        self._written += number

    def mix_in(self, rows: Batch, generator: np.random.Generator) -> None:
        """Add rows [N, ...] by reservoir sampling: all rows so far are kept with equal probability.

        Not to be mixed with `add`.
        """
        leaves = self._leaves(rows)
        order = self._written + np.arange(len(next(iter(leaves.values()))))
        places = np.where(order < self.size, order, generator.integers(order + 1))
        for row in np.flatnonzero(places < self.size):
            for path, column in self._columns.items():
                column[places[row]] = leaves[path][row]
        self._written += len(order)

    def _leaves(self, rows: Batch) -> dict[tuple[str, ...], Any]:
        """The leaves of rows, for which columns are made if there are none."""
        leaves = dict(flatten(rows))
        if not self._columns:
            self._columns = {
                path: np.empty((self.size, *leaf.shape[1:]), leaf.dtype)
                for path, leaf in leaves.items()
            }
        return leaves

    def sample(self, number: int, generator: np.random.Generator) -> Batch:
        """Draw rows uniformly, with replacement."""
        if not len(self):
            raise ValueError("nothing was collected yet: call collect_data() before train()")
        return self.rows(generator.integers(len(self), size=number))

    def rows(self, index: np.ndarray | None = None) -> Batch:
        """Copies of rows by index; by default views of all."""
        places = slice(0, len(self)) if index is None else index
        return unflatten({path: column[places] for path, column in self._columns.items()})

    def clear(self) -> None:
        """Remove all rows."""
        self._written = 0

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume, as copies."""
        return {
            "written": self._written,
            "paths": [list(path) for path in self._columns],
            "columns": [column[: len(self)].copy() for column in self._columns.values()],
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`; of a memory of another size, the rows that fit."""
        self._columns, self._written = {}, int(state["written"])
        for path, rows in zip(state["paths"], state["columns"], strict=True):
            rows = np.asarray(rows)
            if len(rows) != len(self):  # of another size: the order in the ring is lost
                rows = rows[-self.size :]
                self._written = len(rows)
            column = np.empty((self.size, *rows.shape[1:]), rows.dtype)
            column[: len(rows)] = rows
            self._columns[tuple(path)] = column

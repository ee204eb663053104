"""`PrioritizedReplayBuffer`: rows are drawn in proportion to their last error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data import sum_tree
from guerdon.data.kernels import VALID
from guerdon.data.leaves import to_numpy
from guerdon.data.replay_buffer import Finished, ReplayBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guerdon.data.batch import Batch
    from guerdon.data.intake import Checked


class PrioritizedReplayBuffer(ReplayBuffer):
    """Prioritized experience replay (https://arxiv.org/abs/1511.05952) on a sum tree.

    A sampled batch has ``weight``, the importance weights, scaled so that the largest is 1. New
    rows have the largest priority seen so far. A segment has one priority: that of its first row.

    Args:
        size: As for `ReplayBuffer`, and so are the other options.
        alpha: How much priorities count: 0 is uniform sampling, 1 in full proportion.
        beta: How much of the bias the weights undo: 1 is all of it. Can be set at any time.
        **options: See `ReplayBuffer`.
    """

    def __init__(self, size: int, alpha: float = 0.6, beta: float = 0.4, **options: Any) -> None:
        if not alpha >= 0:
            raise ValueError(f"alpha is {alpha}, but has to be 0 or more")
        self.alpha = float(alpha)
        self.beta = beta
        super().__init__(size, **options)
        leaves = 1 << (self.size - 1).bit_length()
        self._tree = self._storage.bookkeeping("tree", (2 * leaves,), np.float64)
        self._largest = max(1.0, float(self._tree[leaves:].max()))
        self._mend()  # what files held

    def options(self) -> dict[str, Any]:
        """See `ReplayBuffer`; beta is not among them, since it changes."""
        return {**super().options(), "alpha": self.alpha}

    @property
    def beta(self) -> float:
        """How much of the bias the weights undo."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        if not beta >= 0:
            raise ValueError(f"beta is {beta}, but has to be 0 or more")
        self._beta = float(beta)

    def set_beta(self, beta: float) -> None:
        """The same as setting the attribute ``beta``."""
        self.beta = beta

    def _write(self, envs: np.ndarray, checked: Checked) -> Finished:
        finished = super()._write(envs, checked)
        ring = self._ring
        sum_tree.set_newest(self._tree, envs, ring.written, ring.flags, self._largest)
        return finished

    def _settle(self) -> int:
        steps = super()._settle()
        if steps:
            ring = self._settled_ring
            count = int(ring.written[0])
            slots = np.arange(count - steps, count) % ring.slots
            rows = (slots[:, None] * ring.n_envs + ring.envs).reshape(-1)
            sum_tree.set_leaves(self._tree, rows, np.full(len(rows), self._largest))
        return steps

    def _mend(self) -> None:
        held = self.priorities
        new = np.where(held > 0, held, self._largest)
        self._set_priorities(np.where(self._ring.flags & VALID, new, 0.0))

    def discard(self, index: Any) -> None:
        """See `ReplayBuffer`."""
        rows = self.rows(index).reshape(-1)
        super().discard(rows)
        sum_tree.set_leaves(self._tree, rows, np.zeros(len(rows)))

    def reset(self) -> None:
        """See `ReplayBuffer`."""
        super().reset()
        self._largest = 1.0
        self.reset_priorities()

    def reset_priorities(self) -> None:
        """Puts every row back to the largest priority, as when errors of old no longer count."""
        self._set_priorities(np.where(self._ring.flags & VALID, self._largest, 0.0))

    @property
    def priorities(self) -> np.ndarray:
        """The priority of every row (to the power alpha); 0 where there is no transition."""
        start = len(self._tree) // 2
        return self._tree[start : start + self._ring.n_rows].copy()

    def _set_priorities(self, priorities: np.ndarray) -> None:
        width = len(self._tree) // 2
        self._tree[width:] = 0.0
        self._tree[width : width + len(priorities)] = priorities
        while width > 1:
            level = self._tree[width : 2 * width]
            width //= 2
            self._tree[width : 2 * width] = level[::2] + level[1::2]

    def _propose(self, number: int) -> np.ndarray:
        # One draw from each of `number` equal shares of the mass, as in the paper: less variance.
        shares = (np.arange(number) + self._generator.random(number)) / number
        return sum_tree.find(self._tree, shares * self._tree[1])

    def _draw_valid(self, number: int) -> np.ndarray:
        return self._propose(number)  # all else has no priority

    def _pick(self, rows: np.ndarray, number: int) -> np.ndarray:
        masses = np.cumsum(self._tree[len(self._tree) // 2 + rows])
        draws = self._generator.random(number) * masses[-1]
        places = np.searchsorted(masses, draws, "right")
        picked: np.ndarray = rows.take(places, mode="clip")
        return picked

    def _sampled(
        self, rows: np.ndarray, length: int, fields: Sequence[str] | None
    ) -> tuple[Batch, np.ndarray]:
        batch, indices = super()._sampled(rows, length, fields)
        batch.weight = self._storage.convert(self._weights(rows))
        return batch, indices

    def weights(self, index: Any) -> np.ndarray:
        """The importance weights of rows, the largest of them 1."""
        return self._weights(self.rows(index))

    def _weights(self, rows: np.ndarray) -> np.ndarray:
        priorities: np.ndarray = self._tree[len(self._tree) // 2 + rows]
        # (N p / total) ** -beta over its largest; N and total cancel.
        weights: np.ndarray = (priorities.min(initial=np.inf) / priorities) ** self.beta
        return weights.astype(np.float32)

    def update_weight(self, index: Any, new_weight: Any) -> None:
        """Sets priorities from new errors, by their size.

        Args:
            index: Row numbers as `sample` gave them; of segments, the first rows count.
            new_weight: An error a row, or a segment.
        """
        rows = np.asarray(to_numpy(index))
        if rows.size and rows.dtype.kind not in "iu":
            raise TypeError(f"rows are whole numbers, not {rows.dtype}")
        rows = (rows[0] if rows.ndim == 2 else rows.reshape(-1)).astype(np.int64)
        weights = np.asarray(to_numpy(new_weight), np.float64).reshape(-1)
        if len(weights) != len(rows):
            raise ValueError(f"{len(rows)} rows cannot get {len(weights)} weights")
        if len(rows) and (rows.min() < 0 or rows.max() >= self.size):
            raise IndexError(f"a row to weight is not in 0..{self.size - 1}")
        largest = sum_tree.update(self._tree, self._ring.flags, rows, weights, self.alpha)
        if largest < 0:
            raise ValueError("a new weight is NaN or infinite: no priority was changed")
        self._largest = max(self._largest, largest)

    def state_dict(self) -> dict[str, Any]:
        """See `ReplayBuffer`."""
        state = super().state_dict()
        state["arrays"]["tree", "priorities"] = self.priorities
        state["meta"] |= {"beta": self.beta, "largest": self._largest}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ReplayBuffer`."""
        super().load_state_dict(state)
        self._set_priorities(state["arrays"]["tree", "priorities"])
        self.beta, self._largest = state["meta"]["beta"], state["meta"]["largest"]

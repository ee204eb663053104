"""`PrioritizedReplayBuffer`: samples rows in proportion to their last error."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from guerdon.data import sum_tree
from guerdon.data.batch import Batch
from guerdon.data.kernels import VALID
from guerdon.data.leaves import to_numpy
from guerdon.data.replay_buffer import ReplayBuffer
from guerdon.limits import DamagedError, reading

EPSILON = 1e-8  # keeps the probability of every row positive


class PrioritizedReplayBuffer(ReplayBuffer):
    """Prioritized experience replay (https://arxiv.org/abs/1511.05952) on a sum tree.

    A sampled batch has the importance weights as ``weight``, scaled to a maximum of 1. New rows get
    the largest priority so far. A segment has the priority of its first row.

    Args:
        size: See `ReplayBuffer`.
        alpha: Exponent of priorities: 0 is uniform sampling, 1 is fully proportional.
        beta: Exponent of the importance weights: 1 corrects the bias fully. Can be set later.
        **options: See `ReplayBuffer`.
    """

    def __init__(self, size: int, alpha: float = 0.6, beta: float = 0.4, **options: Any) -> None:
        if not 0 <= alpha < np.inf:
            raise ValueError(f"alpha is {alpha}, but has to be 0 or more, and finite")
        self.alpha = float(alpha)
        self.beta = beta
        super().__init__(size, **options)
        leaves = 1 << (self.size - 1).bit_length()
        self._tree = self._storage.bookkeeping("tree", (2 * leaves,), np.float64)
        with reading(getattr(self._storage, "folder", "")):  # of a buffer that was reopened
            held = _checked(self._tree[leaves:])[: self.size]
            if len(self._tree) != 2 * leaves:
                raise DamagedError("its tree of priorities is too large")
        self._largest = max(1.0, float(held.max()))
        self._set_priorities(np.where(held > 0, held, self._largest))

    def options(self) -> dict[str, Any]:
        """See `ReplayBuffer`; excludes beta, which changes."""
        return {**super().options(), "alpha": self.alpha}

    @property
    def beta(self) -> float:
        """Exponent of the importance weights."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        if not beta >= 0:
            raise ValueError(f"beta is {beta}, but has to be 0 or more")
        self._beta = float(beta)

    def set_beta(self, beta: float) -> None:
        """Set the attribute ``beta``."""
        self.beta = beta

    def _before_publishing(self, rows: np.ndarray) -> None:
        sum_tree.set_leaves(self._tree, rows, np.full(len(rows), self._largest))

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
        """Set every row to the largest priority, for example after the reward has changed."""
        self._set_priorities(np.full(self.size, self._largest))

    @property
    def priorities(self) -> np.ndarray:
        """Priority of every row (to the power alpha); 0 where there is no transition."""
        start = len(self._tree) // 2
        return self._tree[start : start + self.size].copy()

    def _set_priorities(self, priorities: np.ndarray) -> None:
        sum_tree.set_all(self._tree, np.where(self._flags & VALID, priorities, 0.0))

    def _draw(self, number: int) -> np.ndarray:
        # Stratified, as in the paper: one draw from each of `number` equal shares of the mass.
        shares = (np.arange(number) + self._generator.random(number)) / number
        return sum_tree.find(self._tree, shares * self._tree[1])

    def _pick(self, rows: np.ndarray, number: int) -> np.ndarray:
        masses = np.cumsum(self._tree[len(self._tree) // 2 + rows])
        draws = self._generator.random(number) * masses[-1]
        places = np.searchsorted(masses, draws, "right")
        picked: np.ndarray = rows.take(places, mode="clip")
        return picked

    def sample(
        self, batch_size: int, length: int = 1, fields: Sequence[str] | None = None
    ) -> tuple[Batch, np.ndarray]:
        """See `ReplayBuffer`; with ``weight``."""
        batch, rows = super().sample(batch_size, length, fields)
        batch.weight = self._storage.convert(self.weights(rows[0] if rows.ndim == 2 else rows))
        return batch, rows

    def weights(self, rows: np.ndarray) -> np.ndarray:
        """Return the importance weights of rows; the largest is 1."""
        priorities = self._tree[len(self._tree) // 2 + rows]
        if not priorities.all():
            self.rows(rows)  # raises an error that names the row
        # (N p / total) ** -beta, divided by its maximum; N and total cancel.
        weights: np.ndarray = (priorities.min(initial=np.inf) / priorities) ** self.beta
        return weights.astype(np.float32)

    def update_weight(self, index: Any, new_weight: Any) -> None:
        """Set priorities to the absolute values of new errors.

        Args:
            index: Indices from `sample`; for segments, the first rows are updated.
            new_weight: One error per row or segment.
        """
        rows = np.asarray(to_numpy(index))
        if rows.size and rows.dtype.kind not in "iu":
            raise TypeError(f"rows are whole numbers, not {rows.dtype}")
        rows = (rows[0] if rows.ndim == 2 else rows.reshape(-1)).astype(np.int64)
        weights = np.asarray(to_numpy(new_weight), np.float64).reshape(-1)
        if len(weights) != len(rows):
            raise ValueError(f"{len(rows)} rows cannot get {len(weights)} weights")
        if len(rows) and (rows.min() < 0 or rows.max() >= self.size):
            raise IndexError(f"an index is not in 0..{self.size - 1}")
        priorities = (np.abs(weights) + EPSILON) ** self.alpha
        if not np.isfinite(priorities).all():
            raise ValueError("a new weight is NaN or infinite: no priority was changed")
        priorities = np.where(self._flags[rows] & VALID, priorities, 0.0)
        sum_tree.set_leaves(self._tree, rows, priorities)
        self._largest = max(self._largest, float(priorities.max(initial=0.0)))

    def training_state(self) -> dict[str, Any]:
        """See `ReplayBuffer`."""
        state = super().training_state()
        state["arrays"]["book", "priorities"] = self.priorities
        state["meta"] |= {"beta": self.beta, "largest": self._largest}
        return state

    def load_training_state(self, state: dict[str, Any]) -> None:
        """See `ReplayBuffer`."""
        priorities = _checked(state["arrays"]["book", "priorities"])
        if priorities.shape != (self.size,):
            raise DamagedError("its priorities do not have the size of the buffer")
        largest = float(_checked(np.float64(state["meta"]["largest"])))
        super().load_training_state(state)
        self._set_priorities(priorities)
        self.beta, self._largest = state["meta"]["beta"], largest


def _checked(priorities: Any) -> np.ndarray:
    """Return priorities; raise an error if one is not a finite number of 0 or more."""
    found = np.asarray(priorities)
    if found.dtype != np.float64 or not ((found >= 0) & np.isfinite(found)).all():
        raise DamagedError("its priorities are not all 0 or more")
    return found

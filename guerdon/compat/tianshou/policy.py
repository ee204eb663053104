"""Tianshou's `BasePolicy`."""

from typing import Any

import numpy as np

from guerdon.data import Batch
from guerdon.policy import Policy
from guerdon.reward import ResolvedBuffer


class BasePolicy(Policy):
    """Base of policies in the style of Tianshou.

    A subclass makes its networks and optimizers in `__init__`, and implements `forward` and
    `learn`; `update` is ``process_fn``, ``learn``, ``post_process_fn``. Batches are NumPy arrays
    with all fields of the buffer and the resolved reward; ``update(0, buffer)`` reads all rows.
    """

    def __init__(
        self, observation_space: Any = None, action_space: Any = None, **options: Any
    ) -> None:
        super().__init__({}, observation_space, action_space, **options)

    def read(self, batch_size: int, source: Any, fields: Any) -> tuple[Batch, np.ndarray]:  # noqa: ARG002
        """See `Policy`; reads all fields."""
        found: tuple[Batch, np.ndarray] = source.sample(0 if self.on_policy else batch_size)
        return found

    def resolved(
        self, batch: Batch, indices: np.ndarray, source: Any, reward: Any
    ) -> tuple[Batch, Any]:
        """See `Policy`; NumPy arrays."""
        if reward is None:
            return batch.replace(rew_env=batch.rew), source
        view = _ResolvedArrays(source, reward, self.device)
        return view._resolved(batch, indices), view


class _ResolvedArrays(ResolvedBuffer):
    """View of a buffer as NumPy arrays with resolved rewards."""

    def _resolved(self, batch: Batch, rows: np.ndarray) -> Batch:
        return super()._resolved(batch, rows).to_numpy()

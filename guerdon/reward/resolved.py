"""A buffer as a learner reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from guerdon.reward.composition import Reward


class ResolvedBuffer:
    """A buffer or rollout whose rewards are resolved as they are read; the rest is its own.

    Args:
        source: The buffer or rollout.
        reward: The reward.
        device: Device of the tensors that reading gives.
    """

    def __init__(self, source: Any, reward: Reward, device: torch.device) -> None:
        self._source = source
        self._reward = reward
        self._device = device

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: Any) -> Batch:
        rows = self._source.rows(index)
        flat = np.atleast_1d(rows)
        batch = self._resolved(self._source[flat], flat)
        return batch[0] if rows.ndim == 0 else batch

    def __getattr__(self, name: str) -> Any:
        if name == "read":  # gives stored rewards
            raise AttributeError("a resolved buffer is read by index, or with get() and sample()")
        return getattr(self._source, name)

    def _resolved(self, batch: Batch, rows: np.ndarray) -> Batch:
        batch = self._reward.transform(batch, rows, self._source)
        return self._reward.resolve(batch.to_device(self._device))

    def get(self, index: Any, key: str, stack_num: int | None = None) -> Any:
        """One field at some rows."""
        if key.startswith("rew") or key == "terminated":
            return self[index][key]
        stored = self._source.get(index, key, *(() if stack_num is None else (stack_num,)))
        return Batch({key: stored}).to_device(self._device)[key]

    def sample(
        self, batch_size: int, length: int = 1, fields: Sequence[str] | None = None
    ) -> tuple[Batch, np.ndarray]:
        """See `ReplayBuffer.sample`."""
        batch, rows = self._source.sample(batch_size, length, self._reads(fields))
        return self._resolved(batch, rows), rows

    def rollout(
        self, fields: Sequence[str] | None = None, since: np.ndarray | None = None
    ) -> tuple[Batch, np.ndarray]:
        """See `ReplayBuffer.rollout`."""
        batch, rows = self._source.rollout(self._reads(fields), since)
        return self._resolved(batch, rows), rows

    def _reads(self, fields: Sequence[str] | None) -> Sequence[str] | None:
        if fields is None:
            return None
        return tuple(dict.fromkeys((*fields, "rew", *self._reward.fields)))

    @property
    def rew(self) -> ResolvedRewards:
        """The rewards, to be indexed with row numbers."""
        return ResolvedRewards(self)


class ResolvedRewards:
    """``buffer.rew`` for a learner: only the rows that are asked for are resolved."""

    def __init__(self, buffer: ResolvedBuffer) -> None:
        self._buffer = buffer

    def __getitem__(self, index: Any) -> Any:
        return self._buffer[index].rew

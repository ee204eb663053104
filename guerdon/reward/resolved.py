"""A buffer as a learner sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from guerdon.data import ReplayBuffer
    from guerdon.data.batch import Batch
    from guerdon.reward.composition import Reward


class ResolvedBuffer:
    """A buffer whose rewards are resolved as they are read; everything else is the buffer's own."""

    def __init__(self, buffer: ReplayBuffer, reward: Reward) -> None:
        self._buffer = buffer
        self._reward = reward

    def __len__(self) -> int:
        return len(self._buffer)

    def __getitem__(self, index: Any) -> Batch:
        return self._reward.resolve(self._buffer[index], self._buffer.rows(index), self._buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def get(self, index: Any, key: str, stack_num: int | None = None) -> Any:
        """One field at some rows."""
        if key.startswith("rew") or (key == "terminated" and self._reward.decider):
            return self[index][key]
        return self._buffer.get(index, key, stack_num)

    def sample(
        self, batch_size: int, length: int = 1, fields: Sequence[str] | None = None
    ) -> tuple[Batch, np.ndarray]:
        """As `ReplayBuffer.sample`."""
        batch, rows = self._buffer.sample(batch_size, length, self._reads(fields))
        return self._reward.resolve(batch, rows, self._buffer), rows

    def rollout(
        self, fields: Sequence[str] | None = None, since: np.ndarray | None = None
    ) -> tuple[Batch, np.ndarray]:
        """As `ReplayBuffer.rollout`."""
        batch, rows = self._buffer.rollout(self._reads(fields), since)
        return self._reward.resolve(batch, rows, self._buffer), rows

    def _reads(self, fields: Sequence[str] | None) -> Sequence[str] | None:
        if fields is None:
            return None
        return tuple(dict.fromkeys((*fields, "rew", *self._reward.fields)))

    @property
    def rew(self) -> ResolvedRewards:
        """The rewards, to be indexed with row numbers."""
        return ResolvedRewards(self)


class ResolvedRewards:
    """What ``buffer.rew`` is for a learner: only the rows that are asked for are resolved."""

    def __init__(self, buffer: ResolvedBuffer) -> None:
        self._buffer = buffer

    def __getitem__(self, index: Any) -> Any:
        return self._buffer[index].rew

"""`MixedReplay`: samples from several buffers by ratio."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from guerdon.data.batch import Batch
from guerdon.data.leaves import to_numpy
from guerdon.data.prioritized import PrioritizedReplayBuffer
from guerdon.data.replay_buffer import ReplayBuffer

_ROW_BITS = 40  # an index is (number of the buffer << 40) + row
_REQUIRED = ("obs", "act", "rew")  # always read; others only if all buffers have them


class MixedReplay:
    """Samples from several buffers by ratio; ``batch.source`` is the index of each row's buffer.

    >>> mixed = MixedReplay(
    ...     {"agent": ReplayBuffer(1000), "demonstrations": ReplayBuffer(1000)},
    ...     ratio={"agent": 3, "demonstrations": 1},
    ... )

    Args:
        buffers: The buffers by name.
        ratio: Relative share of each buffer in a batch; equal by default.
        seed: Random seed, or a generator, for rounding shares.
    """

    def __init__(
        self,
        buffers: Mapping[str, ReplayBuffer],
        ratio: Mapping[str, float] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        if not buffers:
            raise ValueError(f"a {type(self).__name__} needs at least one buffer")
        self.buffers: dict[str, Any] = dict(buffers)
        self.names = tuple(self.buffers)
        self._shares = self._checked_shares(ratio or dict.fromkeys(self.names, 1.0))
        self._generator = np.random.default_rng(seed)

    def __len__(self) -> int:
        return sum(len(buffer) for buffer in self.buffers.values())

    @property
    def n_envs(self) -> int:
        """The largest number of environments of a buffer."""
        return max(int(buffer.n_envs) for buffer in self.buffers.values())

    def __getitem__(self, key: Any) -> Any:
        """Return a buffer by its name, or read the rows of indices."""
        if not isinstance(key, str):
            return self._read(key, self._common_fields())
        self._check_names([key], "this")
        return self.buffers[key]

    def sample(
        self, batch_size: int, length: int = 1, fields: Sequence[str] | None = None
    ) -> tuple[Batch, np.ndarray]:
        """Draw a batch from all buffers, by ratio.

        Args:
            batch_size: Number of rows, or segments.
            length: See `ReplayBuffer.sample`.
            fields: See `ReplayBuffer.sample`; by default the fields that all buffers have.

        Returns:
            The batch and its indices.
        """
        return self._sample(self._counts(batch_size), length, fields)

    def _sample(
        self, counts: Mapping[str, int], length: int, fields: Sequence[str] | None
    ) -> tuple[Batch, np.ndarray]:
        names = self._common_fields() if fields is None else fields
        parts = [
            (number, *self.buffers[name].sample(count, length, names))
            for number, (name, count) in enumerate(counts.items())
            if count
        ]
        return self._joined(parts, axis=int(length > 1))

    def _joined(
        self, parts: list[tuple[int, Batch, np.ndarray]], axis: int
    ) -> tuple[Batch, np.ndarray]:
        weighted = any("weight" in batch for _, batch, _ in parts)
        batches, weights, places = [], [], []
        for number, batch, indices in parts:
            convert = self.buffers[self.names[number]]._storage.convert
            batch.source = convert(np.full(indices.shape, number))
            ones = np.ones(indices.shape[-1], np.float32)
            weights.append(batch.pop("weight") if "weight" in batch else convert(ones))
            batches.append(batch)
            places.append(indices + (number << _ROW_BITS))
        joined = Batch.cat(batches, axis)
        if weighted:  # one for each segment
            joined.weight = Batch.cat([Batch(weight=weight) for weight in weights]).weight
        return joined, np.concatenate(places, axis)

    def _common_fields(self) -> list[str]:
        """Return the fields that all buffers have with the same keys, and the required ones."""
        buffers = [buffer for buffer in self.buffers.values() if len(buffer)]
        if not buffers:
            raise ValueError("all buffers are empty: add transitions before sampling")
        return [
            name
            for name in buffers[0].field_names()
            if name in _REQUIRED
            or len({frozenset(buffer.field_paths(name)) for buffer in buffers}) == 1
        ]

    def rows(self, index: Any) -> np.ndarray:
        """Return indices as an array, unchecked."""
        return np.asarray(index)

    def get(self, index: Any, key: str, stack_num: int | None = None) -> Any:
        """Read one field at indices; see `ReplayBuffer.get`."""
        return self._read(index, (key,), stack_num)[key]

    def prev(self, index: Any) -> np.ndarray:
        """See `ReplayBuffer.prev`."""
        return self._walk(index, "prev")

    def next(self, index: Any) -> np.ndarray:
        """See `ReplayBuffer.next`."""
        return self._walk(index, "next")

    def _walk(self, index: Any, method: str) -> np.ndarray:
        index = np.asarray(index)
        walked: np.ndarray = index.reshape(-1).copy()
        for name, (positions, rows) in self.split(walked).items():
            walked[positions] += getattr(self.buffers[name], method)(rows) - rows
        return walked.reshape(index.shape)

    def _read(self, index: Any, fields: Sequence[str], stack_num: int | None = None) -> Any:
        return self._gathered(
            np.asarray(index),
            lambda member, rows, _: member.read(member.rows(rows), fields, stack_num),
        )

    def before(self, rows: np.ndarray, mask: Any, history: int, fields: Sequence[str]) -> Batch:
        """See `ReplayBuffer.before`."""
        real = np.ones(rows.size, bool) if mask is None else to_numpy(mask).reshape(-1)
        batch = self._gathered(
            rows, lambda member, at, where: member.before(at, real[where], history, fields)
        )
        batch.pop("source")
        return batch

    def _gathered(self, index: np.ndarray, read: Callable[..., Batch]) -> Batch:
        """Read rows of every buffer and put them in the order of the indices."""
        parts, order = [], []
        for number, (name, (positions, rows)) in enumerate(self.split(index.reshape(-1)).items()):
            if len(rows):
                parts.append((number, read(self.buffers[name], rows, positions), rows))
                order.append(positions)
        batch = self._joined(parts, axis=0)[0][np.argsort(np.concatenate(order))]
        gathered: Batch = batch.apply(lambda leaf: leaf.reshape(*index.shape, *leaf.shape[1:]))
        return gathered

    def split(self, indices: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Group indices by buffer: the positions in `indices`, and the rows of the buffer.

        For segments, these are the first rows.
        """
        first = indices[0] if indices.ndim == 2 else indices
        found = {}
        for number, name in enumerate(self.names):
            positions = np.flatnonzero(first >> _ROW_BITS == number)
            found[name] = (positions, first[positions] & ((1 << _ROW_BITS) - 1))
        return found

    def update_weight(self, indices: np.ndarray, new_weight: Any) -> None:
        """Set priorities in the buffers that have priorities."""
        weights = np.asarray(to_numpy(new_weight), np.float64).reshape(-1)
        if len(weights) != indices.shape[-1]:
            raise ValueError(f"{indices.shape[-1]} rows cannot get {len(weights)} weights")
        if not np.isfinite(weights).all():
            raise ValueError("a new weight is NaN or infinite: no priority was changed")
        for name, (positions, rows) in self.split(indices).items():
            if isinstance(self.buffers[name], PrioritizedReplayBuffer) and len(rows):
                self.buffers[name].update_weight(rows, weights[positions])

    def set_beta(self, beta: float) -> None:
        """See `PrioritizedReplayBuffer.set_beta`; applies to the buffers that have priorities."""
        for buffer in self.buffers.values():
            if isinstance(buffer, PrioritizedReplayBuffer):
                buffer.set_beta(beta)

    def episode_last(self, _index: Any) -> np.ndarray:
        """Raise an error: episodes cannot be followed across several buffers."""
        raise TypeError(
            f"hindsight relabelling (her) needs one ReplayBuffer, not a {type(self).__name__}: "
            "use it without sqil"
        )

    episode_first = episode_last

    # --- shares

    def _checked_shares(self, ratio: Mapping[str, float]) -> np.ndarray:
        self._check_names(ratio, "ratio")
        shares = np.array([float(ratio.get(name, 0.0)) for name in self.names])
        if not (np.isfinite(shares).all() and (shares >= 0).all() and shares.sum() > 0):
            raise ValueError(f"ratio needs numbers of 0 or more, not {dict(ratio)}")
        return np.asarray(shares / shares.sum())

    def _counts(self, batch_size: int) -> dict[str, int]:
        """Divide a batch among the buffers; remainders are assigned randomly."""
        counts = divided(batch_size, self._shares, self._generator)
        return dict(zip(self.names, counts, strict=True))

    def _check_names(self, names: Any, what: str) -> None:
        for name in names:
            if name not in self.buffers:
                raise KeyError(
                    f"{what}: unknown buffer {name!r}; there are: {', '.join(self.names)}"
                )


def divided(batch_size: int, shares: np.ndarray, generator: np.random.Generator) -> list[int]:
    """Divide a batch by shares, which add up to 1; remainders are assigned randomly."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, but has to be 1 or more")
    # Systematic rounding: cumulative shares are cut at whole numbers plus one random offset, so
    # that each count has the exact expectation and deviates by less than one row.
    ends = np.round(np.cumsum(shares) * batch_size, 9)
    whole = np.floor(ends)
    cuts = whole + (ends - whole + generator.random() >= 1.0)
    counts: list[int] = np.diff(cuts, prepend=0.0).astype(int).tolist()
    return counts

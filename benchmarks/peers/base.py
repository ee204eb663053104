"""Interface of a system in the benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np
    from stream import Rows, Step, Stream


CHUNK = 1000
"""Transitions written at once where a buffer is filled."""


class MissingError(Exception):
    """A system does not have what a row measures; the message says so to the reader."""


class Store:
    """A buffer of one system.

    ``prepare`` is not timed: a step comes as arrays, and a system may turn it into whatever it
    likes best to be given.
    """

    true_next = True
    """Whether the next observation at the end of an episode is the one that was given."""

    def prepare(self, step: Step) -> Any:
        """Return a step in the format of the system."""
        raise NotImplementedError

    def add(self, item: Any) -> None:
        """Add a prepared step."""
        raise NotImplementedError

    def fill(self, stream: Stream, periods: int) -> None:
        """Adds the stream so many times over, in whatever way is fast; not timed."""
        items = [self.prepare(step) for step in stream.steps()]
        for _ in range(periods):
            for item in items:
                self.add(item)

    def sample(self, n: int) -> Any:
        """Sample rows, in the format of the system."""
        raise NotImplementedError

    def tensors(self, sample: Any) -> Any:
        """Sample rows as torch tensors."""
        return sample

    def priorities(self, values: np.ndarray) -> Any:
        """Return priorities in the format of the system; not timed."""
        return values

    def update(self, sample: Any, priorities: Any) -> None:
        """Update the priorities of sampled rows."""
        raise NotImplementedError

    def rows(self, sample: Any) -> Rows:
        """A sample under common names, for the check; segments have the shape ``[time, n]``."""
        raise NotImplementedError

    def untraced_bytes(self) -> int | None:
        """Bytes of its arrays, if those are not numpy's (which are counted from outside)."""
        return None


class Batches:
    """The named arrays of one system."""

    def leaf(self, array: np.ndarray) -> Any:
        """An array as this system holds it; not timed."""
        return array

    def construct(self, leaves: dict[str, Any], rows: int) -> Any:
        """From seven leaves of so many rows."""
        raise NotImplementedError

    def take(self, batch: Any, index: Any) -> Any:
        """Some of the rows: by a slice, or by a leaf of integers."""
        return batch[index]

    def cat(self, batches: list[Any]) -> Any:
        """Joined along the rows."""
        raise NotImplementedError

    def stack(self, batches: list[Any]) -> Any:
        """Joined along a new axis."""
        raise NotImplementedError

    def arrays(self, batch: Any) -> Rows:
        """The leaves as arrays, for the check."""
        raise NotImplementedError


class BatchClass(Batches):
    """Named arrays of a class `Batch` with the same few methods, as guerdon and Tianshou have."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def construct(self, leaves: dict[str, Any], rows: int) -> Any:  # noqa: ARG002
        """See `Batches`."""
        return self.batch(**leaves)

    def cat(self, batches: list[Any]) -> Any:
        """See `Batches`."""
        return self.batch.cat(batches)

    def stack(self, batches: list[Any]) -> Any:
        """See `Batches`."""
        return self.batch.stack(batches)

    def arrays(self, batch: Any) -> Rows:
        """See `Batches`."""
        return batch.to_dict()


class System:
    """A library, and how it is used here: as its own documents say, for speed.

    Where it offers several ways, each row uses the one that is best for it.
    """

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    """Names on the package index, whose versions are reported."""

    usage: ClassVar[dict[str, str]] = {}
    """For readers: how it is used, by row or kind of row."""

    def vectors(self, size: int, n_envs: int, use: str) -> Store:
        """A buffer of vectors for use in "add", "sample" or "memory" (then the leanest)."""
        raise NotImplementedError

    def prioritized(self, size: int) -> Store:  # noqa: ARG002
        """A buffer of vectors of one environment, with priorities (alpha 0.6, beta 0.4)."""
        raise MissingError("no prioritized buffer")

    def segments(self, size: int, length: int) -> Store:  # noqa: ARG002
        """A buffer of vectors of one environment whose samples are segments of that length."""
        raise MissingError("no sampling of segments")

    def frames(self, size: int, use: str) -> Store:
        """A buffer of one environment's frames, read as stacks.

        It is for use in "sample", in "memory" (the leanest way with the true next observation), or
        in "lossy" (the leanest way without the last next observation of an episode).
        """
        raise NotImplementedError

    def batches(self) -> Batches:
        """Named arrays."""
        raise MissingError("no class of named arrays")

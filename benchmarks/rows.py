"""The rows of the table: what is timed, on what, in which system."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from stream import FrameStream, Stream, VectorStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from peers import Store, System

    Run = Callable[[int], Any]
    """Repeat the work of a row."""

BATCH = 256
FRAMES = 32
SEGMENTS, LENGTH = 32, 16


@dataclass
class Workbench:
    """Sizes, and the filled buffers that several rows share."""

    vectors: int = 100_000
    frames: int = 20_000
    _kept: dict[Any, Store] = field(default_factory=dict)

    def vector_store(self, system: System, n_envs: int, use: str) -> Store:
        """A full buffer of vectors."""
        key = (system.name, n_envs, use)
        if key not in self._kept:
            size = self.vectors // n_envs * n_envs
            store = system.vectors(size, n_envs, use)
            self._kept[key] = filled(store, VectorStream(n_envs), size)
        return self._kept[key]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    key: str
    title: str
    build: Callable[[System, Workbench], Run]
    """Raise `MissingError` if a system does not support the row."""


def filled(store: Store, stream: Stream, size: int) -> Store:
    """Return the buffer, after at least this many transitions."""
    store.fill(stream, -(-size // (stream.n_envs * stream.period)))
    return store


def repeat(call: Callable[[], Any]) -> Run:
    """Repeat a call."""

    def run(n: int) -> None:
        for _ in itertools.repeat(None, n):
            call()

    return run


def add(n_envs: int) -> Row:
    """Add steps, in time order, to a full buffer."""

    def build(system: System, bench: Workbench) -> Run:
        store = bench.vector_store(system, n_envs, "add")
        items = itertools.cycle([store.prepare(step) for step in VectorStream(n_envs).steps()])
        write = store.add

        def run(n: int) -> None:
            for item in itertools.islice(items, n):
                write(item)

        return run

    title = f"add, {n_envs} environment{'s' if n_envs > 1 else ''}"
    return Row(f"add-{n_envs}", title, build)


def sample(key: str, title: str, n_envs: int = 1, tensors: bool = False) -> Row:
    """Sample transitions of vectors."""

    def build(system: System, bench: Workbench) -> Run:
        store = bench.vector_store(system, n_envs, "sample")
        if tensors:
            return repeat(lambda: store.tensors(store.sample(BATCH)))
        return repeat(lambda: store.sample(BATCH))

    return Row(key, title, build)


def _prioritized(system: System, bench: Workbench) -> Run:
    store = filled(system.prioritized(bench.vectors), VectorStream(1), bench.vectors)
    values = np.random.default_rng(0).uniform(0.1, 2.0, (64, BATCH))
    priorities = itertools.cycle([store.priorities(row) for row in values])
    return repeat(lambda: store.update(store.sample(BATCH), next(priorities)))


def _frames(system: System, bench: Workbench) -> Run:
    store = filled(system.frames(bench.frames, "sample"), FrameStream(), bench.frames)
    return repeat(lambda: store.sample(FRAMES))


def _segments(system: System, bench: Workbench) -> Run:
    store = filled(system.segments(bench.vectors, LENGTH), VectorStream(1), bench.vectors)
    return repeat(lambda: store.sample(SEGMENTS))


def leaves(rows: int) -> dict[str, np.ndarray]:
    """Seven arrays, as a transition has them."""
    generator = np.random.default_rng(rows)
    return {
        "obs": generator.random((rows, 4), np.float32),
        "act": generator.integers(0, 18, rows),
        "rew": generator.random(rows, np.float32),
        "terminated": generator.random(rows) < 0.01,
        "truncated": generator.random(rows) < 0.01,
        "done": generator.random(rows) < 0.02,
        "obs_next": generator.random((rows, 4), np.float32),
    }


def batch(key: str, title: str) -> Row:
    """An operation on named arrays: seven of 64 rows, or 64 of 256 rows."""

    def build(system: System, bench: Workbench) -> Run:  # noqa: ARG001
        batches = system.batches()
        small = {name: batches.leaf(array) for name, array in leaves(64).items()}
        large = {name: batches.leaf(array) for name, array in leaves(256).items()}
        one, many = batches.construct(small, 64), batches.construct(large, 256)
        pair = [one, batches.construct(small, 64)]
        index = batches.leaf(np.random.default_rng(0).integers(0, 256, 64))
        part = slice(64, 128)
        calls = {
            "construct": lambda: batches.construct(small, 64),
            "index": lambda: batches.take(many, index),
            "slice": lambda: batches.take(many, part),
            "cat": lambda: batches.cat(pair),
            "stack": lambda: batches.stack(pair),
        }
        return repeat(calls[key])

    return Row(f"batch-{key}", title, build)


@dataclass(frozen=True)
class MemoryRow:
    """A row of the table in bytes per transition."""

    key: str
    title: str
    stream: Callable[[], Stream]
    build: Callable[[System, int], Store]


MEMORY_ROWS = (
    MemoryRow(
        "memory-vectors",
        "memory, vectors",
        lambda: VectorStream(1),
        lambda system, size: system.vectors(size, 1, "memory"),
    ),
    MemoryRow(
        "memory-frames",
        "memory, frames of 84x84 bytes",
        FrameStream,
        lambda system, size: system.frames(size, "memory"),
    ),
    MemoryRow(
        "memory-lossy",
        "memory, frames, no obs_next at ends",
        FrameStream,
        lambda system, size: system.frames(size, "lossy"),
    ),
)

ROWS = (
    add(1),
    add(8),
    add(64),
    sample("sample", "sample 256"),
    sample("sample-torch", "sample 256, as torch tensors", tensors=True),
    sample("sample-64", "sample 256, of 64 environments", n_envs=64),
    Row("prioritized", "prioritized: sample 256 and update", _prioritized),
    Row("frames", "sample 32 stacks of 4 frames of 84x84", _frames),
    Row("segments", "sample 32 segments of 16", _segments),
    batch("construct", "Batch: construct, 7 keys of 64 rows"),
    batch("index", "Batch: 64 of 256 rows by index"),
    batch("slice", "Batch: 64 of 256 rows by slice"),
    batch("cat", "Batch: cat of two"),
    batch("stack", "Batch: stack of two"),
)

"""Check of equal work: each system returns transitions of the stream that was added."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from peers import MissingError
from rows import BATCH, FRAMES, LENGTH, SEGMENTS, leaves
from stream import FrameStream, VectorStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from peers import Store, System
    from stream import Stream

_PERIOD = 1200  # of streams that are longer than what is added, so that all rows differ


def check(system: System) -> Iterator[str]:
    """Check everything that is measured; yield names of checks, and raise on errors."""
    for use in ("add", "sample", "memory"):
        _vectors(system, 1, use)
    _vectors(system, 8, "add")
    _vectors(system, 64, "sample")
    yield "vectors"
    _frames(system, "sample")
    yield "frames"
    parts: dict[str, Callable[[System], None]] = {
        "lean frames": lambda system: _frames(system, "memory"),
        "lossy frames": lambda system: _frames(system, "lossy"),
        "prioritized": _prioritized,
        "segments": _segments,
        "batches": _batches,
    }
    for name, part in parts.items():
        try:
            part(system)
        except MissingError as error:
            yield f"({error})"
        else:
            yield name


def _overfill(store: Store, stream: Stream, capacity: int) -> range:
    """Add one and a half times the capacity; return the times of the stored steps."""
    slots = capacity // stream.n_envs
    steps = slots + slots // 2
    for time in range(steps):
        store.add(store.prepare(stream.step(time)))
    return range(steps - slots, steps)


def _cover(store: Store, stream: Stream, stored: range, capacity: int, n: int) -> None:
    """Sample until nearly every stored row was drawn."""
    seen = np.zeros(_PERIOD * stream.n_envs, bool)
    for _ in range(4 * capacity // n):
        rows = store.rows(store.sample(n))
        _expect(len(rows["act"]) == n, f"{len(rows['act'])} rows, not {n}")
        seen[stream.verify(rows, stored, store.true_next)] = True
    _expect(seen.sum() > 0.95 * capacity, f"{seen.sum()} of {capacity} rows ever came up")


def _vectors(system: System, n_envs: int, use: str) -> None:
    capacity = 210 * n_envs if n_envs > 1 else 600
    stream = VectorStream(n_envs, _PERIOD)
    store = system.vectors(capacity, n_envs, use)
    stored = _overfill(store, stream, capacity)
    _cover(store, stream, stored, capacity, BATCH)
    stream.verify(store.rows(store.tensors(store.sample(BATCH))), stored, store.true_next)
    store = system.vectors(capacity, n_envs, use)
    store.fill(stream, 1)  # filling in another way has to come to the same
    _cover(store, stream, range(_PERIOD - capacity // n_envs, _PERIOD), capacity, BATCH)


def _frames(system: System, use: str) -> None:
    capacity = 600
    stream = FrameStream(_PERIOD)
    store = system.frames(capacity, use)
    stored = _overfill(store, stream, capacity)
    if use == "sample":
        _cover(store, stream, stored, capacity, FRAMES)
    else:
        stream.verify(store.rows(store.sample(FRAMES)), stored, store.true_next)


def _prioritized(system: System) -> None:
    capacity = 600
    stream = VectorStream(1, _PERIOD)
    store = system.prioritized(capacity)
    stored = _overfill(store, stream, capacity)
    _cover(store, stream, stored, capacity, BATCH)  # all priorities are equal so far
    for _ in range(60):
        sample = store.sample(BATCH)
        odd = stream.verify(store.rows(sample), stored) % 2
        store.update(sample, store.priorities(np.where(odd, 1.0, 1e-3)))
    shares = []
    for _ in range(40):
        rows = store.rows(store.sample(BATCH))
        rare = rows["act"] % 2 == 0
        if rare.any():  # weights may be scaled by the largest of a sample
            ratio = rows["weight"][rare].min() / rows["weight"][~rare].max()
            _expect(abs(ratio - 1e-3 ** (-0.6 * 0.4)) < 0.5, f"weights are {ratio:.2f} to one")
        shares.append(rare.mean())
    share, wanted = np.mean(shares), 1e-3**0.6 / (1 + 1e-3**0.6)
    _expect(abs(share - wanted) < 0.01, f"{share:.1%} are of low priority, not {wanted:.1%}")


def _segments(system: System) -> None:
    capacity = 600
    stream = VectorStream(1, _PERIOD)
    store = system.segments(capacity, LENGTH)
    stored = _overfill(store, stream, capacity)
    for _ in range(50):
        rows = store.rows(store.sample(SEGMENTS))
        mask = rows.pop("mask")
        _expect(mask.shape == (LENGTH, SEGMENTS), f"segments have shape {mask.shape}")
        rows = {key: value for key, value in rows.items() if value.shape[:2] == mask.shape}
        stream.verify({key: value[mask] for key, value in rows.items()}, stored)
        both = mask[1:] & mask[:-1]
        _expect(bool((mask[:-1] | ~mask[1:]).all()), "a segment goes on after its mask")
        _expect(bool((rows["act"][1:] == rows["act"][:-1] + 1)[both].all()), "steps are left out")
        done = stream.done[rows["act"] * mask, 0]
        _expect(not bool(done[:-1][both].any()), "a segment goes on after an end")
        _expect(bool(mask[0].all()), "a segment is empty")


def _batches(system: System) -> None:
    batches = system.batches()
    small, large = leaves(64), leaves(256)
    one = batches.construct({key: batches.leaf(array) for key, array in small.items()}, 64)
    many = batches.construct({key: batches.leaf(array) for key, array in large.items()}, 256)
    index = np.random.default_rng(0).integers(0, 256, 64)
    results = {
        "construct": (one, lambda key: small[key]),
        "index": (batches.take(many, batches.leaf(index)), lambda key: large[key][index]),
        "slice": (batches.take(many, slice(64, 128)), lambda key: large[key][64:128]),
        "cat": (batches.cat([one, one]), lambda key: np.concatenate([small[key]] * 2)),
        "stack": (batches.stack([one, one]), lambda key: np.stack([small[key]] * 2)),
    }
    for name, (result, wanted) in results.items():
        arrays = batches.arrays(result)
        _expect(arrays.keys() == small.keys(), f"{name} has keys {sorted(arrays)}")
        for key, array in arrays.items():
            _expect(np.array_equal(array, wanted(key)), f"{name} changes {key}")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)

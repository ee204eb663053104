"""Times and bytes."""

from __future__ import annotations

import gc
import time
import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rows import filled

if TYPE_CHECKING:
    from collections.abc import Callable

    from peers import Store
    from rows import Run
    from stream import Stream


@dataclass(frozen=True)
class Measure:
    """Microseconds per call, or bytes per transition, of a system in a row."""

    median: float
    quartiles: tuple[float, float]
    best: float
    """Median over rounds."""
    calls: int
    """Value of each round."""


def measure_time(runs: dict[str, Run], rounds: int, seconds: float) -> dict[str, Measure]:
    """Time all systems in interleaved rounds.

    In every round each system runs a block of calls; the order rotates, so that a change in the
    machine's speed meets all of them alike. A block takes about as long as ``seconds`` says.
    """
    calls = {name: _calibrate(run, seconds) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(_block(runs[name], calls[name]) / calls[name] * 1e6)
    return {name: _summary(values, calls[name]) for name, values in times.items()}


def _summary(values: list[float], calls: int) -> Measure:
    low, median, high = np.percentile(values, [25, 50, 75])
    return Measure(float(median), (float(low), float(high)), min(values), calls)


def _calibrate(run: Run, seconds: float) -> int:
    """Return the number of calls per block; also warms up."""
    run(1)  # compiles, where something is compiled
    n = 1
    while (taken := _block(run, n)) < seconds / 2:
        n = max(n + 1, min(10 * n, int(n * seconds / max(taken, 1e-7))))
    return max(1, int(n * seconds / taken))


def _block(run: Run, n: int) -> float:
    gc.collect(0)
    gc.disable()
    try:
        start = time.perf_counter()
        run(n)
        return time.perf_counter() - start
    finally:
        gc.enable()


def measure_memory(build: Callable[[int], Store], stream: Stream, size: int) -> Measure:
    """Bytes a transition in a full buffer.

    numpy's arrays are counted from outside, by tracemalloc, and all else that Python allocates for
    the buffer with them; tensors, which tracemalloc does not see, by the system's own storage.
    """
    filled(build(stream.period), stream, stream.period)  # imports and compiles what it needs
    gc.collect()
    tracemalloc.start()
    try:
        store = filled(build(size), stream, size)
        gc.collect()
        traced = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    counted = store.untraced_bytes()
    value = (traced if counted is None else counted) / size
    return Measure(value, (value, value), value, 1)

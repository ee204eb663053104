"""Throughput of a run on Ray against the number of collectors.

`python benchmarks/parallel.py` trains `impala` asynchronously in an environment whose step sleeps
for 2 ms, with one environment per collector, and writes `results/parallel.json`. Perfect scaling is
the throughput with one collector times the number of collectors. `load` is the CPU time of the
coordinator, which is also the learner, over the time of the run: at 1 it limits the run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import guerdon
from guerdon.training.callback import Callback

RESULTS = Path(__file__).parent / "results" / "parallel.json"
SLEEP = 0.002  # seconds per step
NUMBERS = (1, 2, 4, 8, 16, 32, 64)
STEPS = 64  # of each collector in an iteration


class Sleeping(gymnasium.Env[np.ndarray, int]):
    """An environment whose step takes time, but no CPU time."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        """Start an episode."""
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> Any:
        """Sleep."""
        time.sleep(SLEEP)
        self.steps += 1
        return np.zeros(4, np.float32), float(action), self.steps == 100, False, {}


class Clock(Callback):
    """Stops the run after some seconds, not counting the first iterations."""

    def __init__(self, seconds: float, skip: int = 3) -> None:
        self.seconds, self.skip, self.iterations = seconds, skip, 0

    def on_iteration(self, run: Any) -> None:
        """See `Callback`."""
        self.iterations += 1
        self.now = time.perf_counter(), time.process_time(), run.progress.env_steps
        if self.iterations == self.skip:
            self.start = self.now
        elif self.iterations > self.skip and self.now[0] - self.start[0] > self.seconds:
            run.stop()

    def result(self) -> dict[str, float]:
        """Return the throughput and the load of this process."""
        wall, cpu, steps = (b - a for a, b in zip(self.start, self.now, strict=True))
        return {"steps_per_second": steps / wall, "load": cpu / wall}


def train(clock: Clock, *overrides: str) -> dict[str, float]:
    """Train until the clock stops the run."""
    with tempfile.TemporaryDirectory() as folder:
        guerdon.train(
            None, *overrides, "run.max_steps=100_000_000", "eval.every=1_000_000_000",
            "run.checkpoint_every=1_000_000_000", "eval.episodes=1", run={"dir": f"{folder}/run"},
            display="none", callback=clock,
        )  # fmt: skip
    return clock.result()


def measure(collectors: int, seconds: float) -> dict[str, float]:
    """Return the throughput with so many collectors."""
    steps = STEPS * collectors
    return train(
        Clock(seconds), f"env.id={Path(__file__).resolve()}:Sleeping", f"env.n_envs={collectors}",
        "policy=impala", f"collect.n_step={steps}", f"learn.batch_size={steps}", "runtime=ray",
        "runtime.mode=async", "runtime.max_staleness=32", f"runtime.num_collectors={collectors}",
    )  # fmt: skip


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collectors", type=int, nargs="+", default=NUMBERS)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cores": os.cpu_count(),
        "load_average_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "collectors": {},
    }
    for number in arguments.collectors:
        row = measure(number, arguments.seconds)
        first = found["collectors"].setdefault(str(number), row)
        alone = found["collectors"].get("1", first)["steps_per_second"]
        row["of_linear"] = row["steps_per_second"] / (alone * number)
        print(number, {name: round(value, 3) for name, value in row.items()}, flush=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

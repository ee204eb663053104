"""Training speed of two checkouts of guerdon, and of the bare loop, measured in alternation.

`python benchmarks/commits.py OLD NEW` runs every speed row in both checkouts, pair by pair, each
measurement in its own process, and writes ratios with 95 % intervals to
`results/commits.json`. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

_RESULTS = Path(__file__).parent / "results" / "commits.json"
_ROWS = ("ppo-8", "ppo-64", "ppo-256", "dqn", "sac")
_BARE = ("ppo-64", "ppo-256")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rows", default=",".join(_ROWS))
    parser.add_argument("--out", type=Path, default=_RESULTS)
    options = parser.parse_args()
    found = {}
    for row in options.rows.split(","):
        sides = {"old": (options.old, "guerdon"), "new": (options.new, "guerdon")}
        if row in _BARE:
            sides["bare loop"] = (options.new, "bare")
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        for pair in range(options.pairs):
            order = list(sides) if pair % 2 else list(sides)[::-1]
            for name in order:
                speeds[name].append(_speed(*sides[name], row, pair, options.seconds))
        found[row] = {
            "steps_per_second": {name: statistics.median(v) for name, v in speeds.items()},
            **{
                f"new / {name}": _ratio(speeds["new"], speeds[name])
                for name in sides
                if name != "new"
            },
        }
        print(row, json.dumps(found[row]), flush=True)
        options.out.write_text(json.dumps({"pairs": options.pairs, "rows": found}, indent=2) + "\n")


def _speed(checkout: Path, learner: str, row: str, seed: int, seconds: float) -> float:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    path = os.pathsep.join([str(checkout / "benchmarks"), str(checkout)])
    command = [sys.executable, "-W", "ignore", "-m", "learners", learner, row, f"--seed={seed}"]
    done = subprocess.run(
        [*command, f"--seconds={seconds}", "--limit-steps=500000", "--limit-seconds=120"],
        cwd=checkout,
        env=os.environ | threads | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    answer = next(line for line in done.stdout.splitlines() if line.startswith('{"'))
    return float(json.loads(answer)["value"])


def _ratio(new: list[float], other: list[float]) -> dict[str, Any]:
    """The geometric mean of paired ratios, with a bootstrapped 95 % interval."""
    logs = np.log(np.array(new) / np.array(other))
    draws = np.random.default_rng(0).choice(logs, (10_000, len(logs))).mean(1)
    low, high = np.exp(np.quantile(draws, [0.025, 0.975])).round(3).tolist()
    return {"ratio": round(float(np.exp(logs.mean())), 3), "interval": [low, high]}


if __name__ == "__main__":
    main()

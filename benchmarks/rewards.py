"""Time of an iteration of ppo on CartPole with each reward model, relative to none.

Rounds are interleaved: every model runs once in each, in rotating order, on one thread.

    python benchmarks/rewards.py             # all models, then the page
    python benchmarks/rewards.py --models gail,rnd --rounds 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch

from guerdon.config import compose
from guerdon.training.monitor import Budget, Monitor
from guerdon.training.parts import make_parts
from guerdon.training.trainers import run_trainer

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "rewards_cost.json"
PAGE = ROOT / "docs" / "benchmarks_rewards.md"
GOALS = {"gail": 2.0, "rnd": 1.5}
EXPERTS = "reward.expert_data_path=zoo:cartpole_fixed"
MODELS: dict[str, list[str]] = {
    "env": [],
    "constant": [],
    "rnd": ["reward.warmup=0"],
    "icm": ["reward.warmup=0"],
    "ngu": ["reward.warmup=0"],
    **{name: [EXPERTS] for name in ("gail", "airl", "fairl", "gcl", "red", "pwil", "pdeil")},
    "trex": [EXPERTS, "reward.rank_by=order"],
    "preference": [],
    "ensemble": ["+reward.of={type: gail, expert_data_path: 'zoo:cartpole_fixed'}"],
}
ITERATIONS = 5  # timed, after two to warm up
SETTING = [
    "env.id=CartPole-v1",
    "env.n_envs=64",
    "policy=ppo",
    "policy.model.normalize_obs=false",
    "collect.n_step=8192",
    "learn.batch_size=2048",
    "learn.repeat=4",
]


def main() -> None:
    """Measure, and write the results and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", help="by commas; all by default")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = options.models.split(",") if options.models else list(MODELS)
    names = list(dict.fromkeys(["env", *chosen]))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(options.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(iteration_seconds(name, turn))
        print(f"round {turn + 1} of {options.rounds}", flush=True)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "setting": SETTING,
        "seconds": seconds,
        "ratio": {
            name: median(a / b for a, b in zip(taken, seconds["env"], strict=True))
            for name, taken in seconds.items()
        },
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    PAGE.write_text(page(result))


def iteration_seconds(name: str, seed: int) -> float:
    """Return the time of an iteration with a model, after warm-up."""
    config = compose(None, [*SETTING, f"reward={name}", *MODELS[name], f"seed={seed}"])
    parts = make_parts(config)
    times: list[float] = []

    def interrupted() -> bool:
        times.append(time.perf_counter())
        return len(times) > ITERATIONS + 4

    monitor = Monitor(Budget(), interrupted=interrupted)
    run_trainer(parts, config, monitor)
    parts.close()
    # `interrupted` is called twice per iteration: before it, and at its end.
    ends = times[1::2]
    return median(end - start for start, end in itertools.pairwise(ends[1:]))


def page(result: dict[str, Any]) -> str:
    """Return the page; its numbers are those of the results."""
    lines = [
        "# Cost of reward models",
        "",
        "Written by `python benchmarks/rewards.py` from `benchmarks/results/rewards_cost.json`.",
        "Time of an iteration of `ppo` with a reward model, relative to one without: CartPole-v1",
        "with 64 environments, 128 steps each, 4 epochs of 4 minibatches, on one thread; medians",
        f"of {len(result['seconds']['env'])} interleaved rounds. {result['date'][:10]}.",
        "",
        "| reward | relative time | goal |",
        "|---|---:|---:|",
    ]
    for name, ratio in result["ratio"].items():
        goal = f"under {GOALS[name]}" if name in GOALS else ""
        lines.append(f"| `{name}` | {ratio:.2f} | {goal} |")
    lines += [
        "",
        "`preference` queries its teacher and is refitted in each of its first iterations, which",
        "are the measured ones. `ensemble` has three members of type `gail`.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

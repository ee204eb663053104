"""Train presets with several seeds, and write docs/results.md from the results.

python benchmarks/learning.py            # what is missing, then the page
python benchmarks/learning.py --jobs 8 --rows cartpole_ppo,pendulum_sac
python benchmarks/learning.py --report   # the page alone
"""

from __future__ import annotations

import argparse
from typing import Any

from trials import ROOT, Row, run_missing, write

RESULTS = ROOT / "benchmarks" / "results" / "learning"

SOLVED = (
    *(Row(f"cartpole_{policy}", 475.0) for policy in ("dqn", "a2c", "ppo", "sac")),
    *(Row(f"pendulum_{policy}", -200.0) for policy in ("ddpg", "td3", "sac")),
)
ABOVE_RANDOM = (
    Row("halfcheetah_ppo", overrides=("run.max_steps=200_000",)),
    Row("halfcheetah_sac", overrides=("run.max_steps=30_000", "eval.every=10_000")),
    Row("hopper_ppo", overrides=("run.max_steps=200_000",)),
    Row("hopper_sac", overrides=("run.max_steps=30_000", "eval.every=10_000")),
    Row(
        "pong_ppo",
        seeds=3,
        overrides=(
            "run.max_steps=2_000_000",
            "eval.every=200_000",
            "run.checkpoint_every=50_000",
            "run.device=auto",
        ),
    ),
    Row(
        "pong_dqn",
        seeds=3,
        overrides=(
            "run.max_steps=400_000",
            "eval.every=100_000",
            "policy.epsilon.decay=50_000",
            "collect.warmup_steps=10_000",
            "run.device=auto",
        ),
    ),
)

RAY = ("runtime=ray", "runtime.num_collectors=2", "runtime.mode=async")
GAIL = "cartpole_fixed_ppo_gail"
# Pairs of a preset in one process and on Ray, and `impala`, which is for Ray.
ON_RAY = (
    *(
        row
        for preset, overrides in (
            ("cartpole_ppo", ()),
            ("cartpole_dqn", ()),
            (GAIL, ("run.max_steps=200_000",)),
        )
        for row in (
            Row(preset, 475.0, overrides=overrides),
            Row(preset, 475.0, overrides=(*overrides, *RAY), variant="ray"),
        )
    ),
    Row("cartpole_impala", 475.0, overrides=RAY, variant="ray"),
)


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", help="presets or names of rows, with commas; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="only write the page")
    options = parser.parse_args()
    wanted = set(options.rows.split(",")) if options.rows else None
    every = dict.fromkeys((*SOLVED, *ABOVE_RANDOM, *ON_RAY))
    rows = [row for row in every if wanted is None or {row.preset, row.name} & wanted]
    if not options.report:
        play_missing({row.preset.partition("_")[0] for row in rows if row.goal is None})
        run_missing(rows, RESULTS, options.jobs)
    from learning_report import write_report

    write_report(SOLVED, ABOVE_RANDOM, ON_RAY, RESULTS, ROOT / "docs")


def play_missing(envs: set[str]) -> None:
    """Evaluate random actions in environments without such a result."""
    for env in sorted(envs):
        if not (RESULTS / f"{env}_random.json").exists():
            write(RESULTS / f"{env}_random.json", play_at_random(env))
            print(f"{env}: random actions evaluated")


def play_at_random(env: str, episodes: int = 100) -> dict[str, Any]:
    """Return the returns of random actions in the environment of a preset."""
    import numpy as np

    from guerdon.collect import Collector
    from guerdon.config import compose
    from guerdon.training.parts import make_env

    config = compose(None, [f"env={env}", "policy=ppo"])
    vector = make_env(config.env.for_evaluation(10))
    returns = Collector(None, vector, seed=0).collect(n_episode=episodes, random=True).returns
    vector.close()
    return {
        "returns": returns,
        "mean": float(np.mean(returns)),
        "quantile": float(np.quantile(returns, 0.975)),
    }


if __name__ == "__main__":
    main()

"""Does it learn? Trains presets with several seeds, and writes docs/results.md from what came out.

Every preset and seed leaves one file under ``benchmarks/results/learning``. It is not run again
while its config stays the same, and a run that was killed goes on where it was. Failures count:
every seed that was run is in the table, also one that ended with an error.

    python benchmarks/learning.py            # what is missing, then the page
    python benchmarks/learning.py --jobs 8 --rows cartpole_ppo,pendulum_sac
    python benchmarks/learning.py --report   # the page alone
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "learning"
RUNS = ROOT / "runs" / "learning"  # those that are not finished
SEEDS = 5
EPISODES = 20  # of the final evaluation


@dataclass(frozen=True)
class Row:
    """A preset, and what its final policy has to reach."""

    preset: str
    goal: float | None = None
    """Mean return of the final policy; None is the random policy's 97.5 % quantile."""
    seeds: int = SEEDS
    overrides: tuple[str, ...] = ()


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
        overrides=("run.max_steps=1_000_000", "eval.every=250_000", "run.device=auto"),
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


def main() -> None:
    """Runs what is missing, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", help="presets, with commas; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="only write the page")
    options = parser.parse_args()
    wanted = set(options.rows.split(",")) if options.rows else None
    rows = [row for row in (*SOLVED, *ABOVE_RANDOM) if wanted is None or row.preset in wanted]
    if not options.report:
        run_missing(rows, options.jobs)
    from learning_report import write_report

    write_report(SOLVED, ABOVE_RANDOM, RESULTS, ROOT / "docs")


def run_missing(rows: list[Row], jobs: int) -> None:
    """Trains every preset and seed that has left no result yet, or one of another config."""
    tasks = [(row, seed) for row in rows for seed in range(row.seeds)]
    missing = [(row, seed) for row, seed in tasks if not is_done(row, seed)]
    random = {row.preset.partition("_")[0] for row in rows if row.goal is None}
    for env in sorted(random):
        if not (RESULTS / f"{env}_random.json").exists():
            write(RESULTS / f"{env}_random.json", play_at_random(env))
            print(f"{env}: random policy played")
    print(f"{len(tasks) - len(missing)} of {len(tasks)} runs are done, {len(missing)} to go")
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run, row, seed): (row, seed) for row, seed in missing}
        for future in as_completed(futures):
            row, seed = futures[future]
            print(f"{row.preset} seed {seed}: {outcome(future.result())}", flush=True)


def outcome(result: dict[str, Any]) -> str:
    """A result in words."""
    if "error" in result:
        return f"failed: {result['error']}"
    summary = result["summary"]
    return (
        f"{summary['eval_return_mean']:.1f} after {summary['env_steps']:,} steps "
        f"in {summary['wall_seconds']:.0f} s"
    )


def result_file(row: Row, seed: int) -> Path:
    """Where the result of one run is kept."""
    return RESULTS / f"{row.preset}_{seed}.json"


def is_done(row: Row, seed: int) -> bool:
    """Whether this very run is among the results."""
    path = result_file(row, seed)
    return path.exists() and json.loads(path.read_text()).get("config") == fingerprint(row)


def fingerprint(row: Row) -> str:
    """A short hash of all that a row's preset and overrides come to."""
    from guerdon.config import compose, to_yaml

    text = to_yaml(compose(row.preset, list(row.overrides)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run(row: Row, seed: int) -> dict[str, Any]:
    """Trains once, by the command that a user would type; or goes on with a run that was killed."""
    config = fingerprint(row)
    folder = RUNS / f"{row.preset}_{seed}_{config}"
    command = ["train", row.preset, f"seed={seed}", f"eval.episodes={EPISODES}", *row.overrides]
    if (folder / "config.yaml").exists():
        words = ["train", "--resume", str(folder)]
    else:
        words = [*command, f"run.dir={folder}"]
    ended = subprocess.run(
        [sys.executable, "-m", "guerdon", *words, "--display=none"],
        check=False,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    found = what_came_out(folder) if not ended.returncode else {"error": ended.stderr[-500:]}
    stopped = found.get("summary", {}).get("stop_reason") == "interrupted"
    if stopped or ended.returncode < 0:
        raise SystemExit(f"{folder} was stopped; the same command goes on with it")
    result = {
        "row": asdict(row),
        "seed": seed,
        "command": " ".join(["guerdon", *command]),
        "config": config,
        **found,
    }
    write(result_file(row, seed), result)  # at once: whatever becomes of the other runs
    shutil.rmtree(folder, ignore_errors=True)
    return result


def what_came_out(folder: Path) -> dict[str, Any]:
    """The end, the curve and the machine of a finished run."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    start = json.loads((folder / "run.json").read_text())["starts"][0]
    machine = ("guerdon", "python", "torch", "numpy", "cpu", "cpu_count", "gpus")
    return {
        "summary": json.loads((folder / "summary.json").read_text()),
        "curve": [
            [line["step"], line["eval/mean_reward"]] for line in lines if "eval/mean_reward" in line
        ],
        "machine": {name: start[name] for name in machine},
    }


def play_at_random(env: str, episodes: int = 100) -> dict[str, Any]:
    """What actions at random bring in the environment of a preset."""
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


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes a result, in one piece or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    main()

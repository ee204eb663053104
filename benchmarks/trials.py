"""Training presets with several seeds: each leaves one file of results, and is not run again.

A run that was killed goes on where it was. Failures count: a run that ended with an error leaves a
file, too.
"""

from __future__ import annotations

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
RUNS = ROOT / "runs" / "trials"  # those that are not finished
SEEDS = 5
EPISODES = 20  # of the final evaluation
GONE = ("train_every", "buffer_size", "clear_buffer_per_iters")
"""Options that had no effect with some rewards, which therefore no longer have them."""


@dataclass(frozen=True)
class Row:
    """A preset, and what its final policy has to reach."""

    preset: str
    goal: float | None = None
    """Mean return of the final policy."""
    seeds: int = SEEDS
    overrides: tuple[str, ...] = ()
    variant: str = ""
    """What it is called beside another row of the same preset."""

    @property
    def name(self) -> str:
        """What its results are called."""
        return f"{self.preset}_{self.variant}" if self.variant else self.preset


def run_missing(rows: list[Row], results: Path, jobs: int) -> None:
    """Trains every row and seed that has left no result yet, or one of another config."""
    tasks = [(row, seed) for row in rows for seed in range(row.seeds)]
    missing = [(row, seed) for row, seed in tasks if not is_done(row, seed, results)]
    print(f"{len(tasks) - len(missing)} of {len(tasks)} runs are done, {len(missing)} to go")
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run, row, seed, results): (row, seed) for row, seed in missing}
        for future in as_completed(futures):
            row, seed = futures[future]
            print(f"{row.name} seed {seed}: {outcome(future.result())}", flush=True)


def outcome(result: dict[str, Any]) -> str:
    """A result in words."""
    if "error" in result:
        return f"failed: {result['error']}"
    summary = result["summary"]
    return (
        f"{summary['eval_return_mean']:.1f} after {summary['env_steps']:,} steps "
        f"in {summary['wall_seconds']:.0f} s"
    )


def result_file(row: Row, seed: int, results: Path) -> Path:
    """Where the result of one run is kept."""
    return results / f"{row.name}_{seed}.json"


def results_of(row: Row, results: Path) -> list[dict[str, Any]]:
    """The results of all seeds of a row that were run."""
    paths = (result_file(row, seed, results) for seed in range(row.seeds))
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def is_done(row: Row, seed: int, results: Path) -> bool:
    """Whether this very run is among the results: none of the values it was run with has changed.

    Options that came later do not count: their defaults are what was done before.
    """
    path = result_file(row, seed, results)
    if not path.exists():
        return False
    return not changed(json.loads(path.read_text())["config"], config_of(row))


def config_of(row: Row) -> dict[str, Any]:
    """All that a row's preset and overrides come to, without what only names or shows the run."""
    from guerdon.config import compose

    config = compose(row.preset, list(row.overrides)).model_dump(mode="json")
    limits = ("max_steps", "max_updates", "max_seconds", "device", "threads")
    config["run"] = {key: config["run"][key] for key in limits}
    del config["seed"]
    return config


def changed(before: Any, now: Any) -> bool:
    """Whether any value of a config is another one now."""
    if isinstance(before, dict) and isinstance(now, dict):
        return any(
            changed(value, now.get(key))
            for key, value in before.items()
            if key in now or key not in GONE
        )
    return bool(before != now)


def run(row: Row, seed: int, results: Path) -> dict[str, Any]:
    """Trains once, by the command that a user would type; or goes on with a run that was killed."""
    config = config_of(row)
    mark = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    folder = RUNS / f"{row.name}_{seed}_{mark}"
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
    held = "is being written by" in found.get("error", "")  # one that was stopped takes a moment
    if stopped or held or ended.returncode < 0:
        raise SystemExit(f"{folder} was stopped; the same command goes on with it")
    result = {
        "row": asdict(row),
        "seed": seed,
        "command": " ".join(["guerdon", *command]),
        "config": config,
        **found,
    }
    write(result_file(row, seed, results), result)  # at once: whatever becomes of the other runs
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


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes a result, in one piece or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)

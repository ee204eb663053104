"""Train presets with several seeds; each run writes one result file and is not repeated.

A killed run is resumed. A run that ends with an error writes a result file, too.
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
RUNS = ROOT / "runs" / "trials"  # unfinished ones
SEEDS = 5
EPISODES = 20  # of the final evaluation
GONE = ("train_every", "buffer_size", "clear_buffer_per_iters")
"""Options that had no effect with some rewards, which therefore no longer have them."""


@dataclass(frozen=True)
class Row:
    """A preset, and the goal of its final policy."""

    preset: str
    goal: float | None = None
    """Mean return of the final policy."""
    seeds: int = SEEDS
    overrides: tuple[str, ...] = ()
    variant: str = ""
    """Suffix of the name, for several rows of a preset."""

    @property
    def name(self) -> str:
        """Name of its results."""
        return f"{self.preset}_{self.variant}" if self.variant else self.preset


def run_missing(rows: list[Row], results: Path, jobs: int) -> None:
    """Train every row and seed without a result, or with one of another config."""
    tasks = [(row, seed) for row in rows for seed in range(row.seeds)]
    missing = [(row, seed) for row, seed in tasks if not is_done(row, seed, results)]
    print(f"{len(tasks) - len(missing)} of {len(tasks)} runs are done, {len(missing)} to go")
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run, row, seed, results): (row, seed) for row, seed in missing}
        for future in as_completed(futures):
            row, seed = futures[future]
            print(f"{row.name} seed {seed}: {outcome(future.result())}", flush=True)


def outcome(result: dict[str, Any]) -> str:
    """Return a result in words."""
    if "error" in result:
        return f"failed: {result['error']}"
    summary = result["summary"]
    return (
        f"{summary['eval_return_mean']:.1f} after {summary['env_steps']:,} steps "
        f"in {summary['wall_seconds']:.0f} s"
    )


def result_file(row: Row, seed: int, results: Path) -> Path:
    """Return the result file of a run."""
    return results / f"{row.name}_{seed}.json"


def results_of(row: Row, results: Path) -> list[dict[str, Any]]:
    """Return the results of all seeds of a row that were run."""
    paths = (result_file(row, seed, results) for seed in range(row.seeds))
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def is_done(row: Row, seed: int, results: Path) -> bool:
    """Return whether there is a result with the same config.

    Options that were added since are not compared: their defaults keep the behaviour.
    """
    path = result_file(row, seed, results)
    if not path.exists():
        return False
    return not changed(json.loads(path.read_text())["config"], config_of(row))


def config_of(row: Row) -> dict[str, Any]:
    """Return the config of a row, without the options that only name or display the run."""
    from guerdon.config import compose

    config = compose(row.preset, list(row.overrides)).model_dump(mode="json")
    limits = ("max_steps", "max_updates", "max_seconds", "device", "threads")
    config["run"] = {key: config["run"][key] for key in limits}
    del config["seed"]
    return config


def changed(before: Any, now: Any) -> bool:
    """Return whether any value of a config has changed."""
    if isinstance(before, dict) and isinstance(now, dict):
        return any(
            changed(value, now.get(key))
            for key, value in before.items()
            if key in now or key not in GONE
        )
    return bool(before != now)


def run(row: Row, seed: int, results: Path) -> dict[str, Any]:
    """Train once with the command line, or resume a killed run."""
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
    found = result_of(folder) if not ended.returncode else {"error": ended.stderr[-500:]}
    stopped = found.get("summary", {}).get("stop_reason") == "interrupted"
    held = "is being written by" in found.get("error", "")  # by a run that is just stopping
    if stopped or held or ended.returncode < 0:
        raise SystemExit(f"{folder} was stopped; the same command resumes it")
    result = {
        "row": asdict(row),
        "seed": seed,
        "command": " ".join(["guerdon", *command]),
        "config": config,
        **found,
    }
    write(result_file(row, seed, results), result)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def result_of(folder: Path) -> dict[str, Any]:
    """Return the summary, the curve and the machine of a finished run."""
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
    """Write a result atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)

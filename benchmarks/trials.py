"""Train presets with several seeds; each run writes one result file and is not repeated.

A killed run is resumed. A run that ends with an error writes a result file, too. Rewards that other
rows start from are kept in runs/trials/rewards.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
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
    reward_of: Row | None = None
    """Row whose learned reward, frozen, the policy is trained on."""
    seconds: float = 60.0
    """Time of a seed on one core, roughly; long runs are started first."""
    baseline: str = ""
    """Name of the row that clones the same demonstrations."""
    controls: tuple[str, ...] = ()
    """Names of the rows that show what the policy does without the information."""
    is_control: bool = False
    """Whether this is such a row, which is not expected to reach the goal."""

    @property
    def name(self) -> str:
        """Name of its results."""
        return f"{self.preset}_{self.variant}" if self.variant else self.preset


def run_missing(
    rows: list[Row], results: Path, jobs: int, minutes: float | None = None
) -> list[str]:
    """Train every row and seed without a result, or with one of another config.

    Args:
        rows: The rows.
        results: Folder of the results.
        jobs: Runs at a time.
        minutes: Time after which runs are stopped; the next call resumes them.

    Returns:
        The rows and seeds that ended with an error.
    """
    every = [(row, seed) for row in rows for seed in range(row.seeds)]
    missing = [(row, seed) for row, seed in every if not is_done(row, seed, results)]
    print(f"{len(every) - len(missing)} of {len(every)} runs are done, {len(missing)} to go")
    first = dict.fromkeys(
        (row.reward_of, seed)
        for row, seed in missing
        if row.reward_of and not reward_folder(row.reward_of, seed).exists()
    )
    tasks = {
        **dict.fromkeys(sorted(first, key=lambda task: -task[0].seconds)),
        **dict.fromkeys(sorted(missing, key=lambda task: -task[0].seconds)),
    }
    kept = {row.reward_of for row in rows}
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    futures: dict[tuple[Row, int], Future[Any]] = {}

    def work(row: Row, seed: int) -> Any:
        if (row.reward_of, seed) in futures:  # which was started earlier
            futures[row.reward_of, seed].result()
        return run(row, seed, results, keep=row in kept, deadline=deadline)

    failed: list[str] = []
    with ThreadPoolExecutor(jobs) as pool:
        for task in tasks:  # one by one: the first ones run already
            futures[task] = pool.submit(work, *task)
        names = {future: f"{row.name} seed {seed}" for (row, seed), future in futures.items()}
        for future in as_completed(names):
            result = future.result()
            if result is not None:
                print(f"{names[future]}: {outcome(result)}", flush=True)
                failed += [names[future]] if "error" in result else []
    return failed


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


@functools.cache
def config_of(row: Row) -> dict[str, Any]:
    """Return the config of a row, without the options that only name or display the run."""
    from guerdon.config import compose

    config = compose(row.preset, list(row.overrides)).model_dump(mode="json")
    limits = ("max_steps", "max_updates", "max_seconds", "device", "threads")
    config["run"] = {key: config["run"][key] for key in limits}
    del config["seed"]
    if row.reward_of is not None:
        config["reward_of"] = config_of(row.reward_of)
    return config


def digest(row: Row) -> str:
    """Return a few letters that change with the config of a row."""
    text = json.dumps(config_of(row), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def reward_folder(row: Row, seed: int) -> Path:
    """Return the folder of the learned reward of a run."""
    return RUNS / "rewards" / f"{row.name}_{seed}_{digest(row)}"


def changed(before: Any, now: Any) -> bool:
    """Return whether any value of a config has changed."""
    if isinstance(before, dict) and isinstance(now, dict):
        return any(
            changed(value, now.get(key))
            for key, value in before.items()
            if key in now or key not in GONE
        )
    return bool(before != now)


def run(
    row: Row, seed: int, results: Path, *, keep: bool = False, deadline: float | None = None
) -> dict[str, Any] | None:
    """Train once with the command line, or resume a killed run; None if time is up.

    Args:
        row: The row.
        seed: The seed.
        results: Folder of the results.
        keep: Whether to keep the learned reward.
        deadline: Time (`time.monotonic`) at which the run is stopped.
    """
    if deadline is not None and time.monotonic() > deadline:
        return None
    folder = RUNS / f"{row.name}_{seed}_{digest(row)}"
    command = ["train", row.preset, f"seed={seed}", f"eval.episodes={EPISODES}", *row.overrides]
    if row.reward_of is not None:
        given = reward_folder(row.reward_of, seed)
        if not given.exists():
            return None  # its run was stopped
        command += ["--from-reward", os.path.relpath(given, ROOT)]
    if (folder / "config.yaml").exists():
        words = ["train", "--resume", str(folder)]
    else:
        words = [*command, f"run.dir={folder}"]
    code, said = _call([sys.executable, "-m", "guerdon", *words, "--display=none"], deadline)
    found = result_of(folder) if not code else {"error": said[-500:]}
    stopped = found.get("summary", {}).get("stop_reason") == "interrupted" or code in (130, -2)
    if stopped and deadline is not None and time.monotonic() > deadline:
        return None
    held = "is being written by" in found.get("error", "")  # by a run that is just stopping
    if stopped or held or code < 0:
        raise SystemExit(f"{folder} was stopped; the same command resumes it")
    result = {
        "row": asdict(row),
        "seed": seed,
        "command": " ".join(["guerdon", *command]),
        "config": config_of(row),
        **found,
    }
    if keep and "summary" in found:
        kept = reward_folder(row, seed)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder / "reward", kept)
    write(result_file(row, seed, results), result)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _call(command: list[str], deadline: float | None) -> tuple[int, str]:
    """Return the exit status of a command, and its errors; it is interrupted at the deadline."""
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    limit = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        _, said = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it saves a checkpoint
        _, said = process.communicate()
    return process.returncode, said


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

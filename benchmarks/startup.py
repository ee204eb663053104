"""Start-up: seconds until the first environment step, compared with importing the libraries.

`python benchmarks/startup.py` runs `guerdon train` until its first environment step and a process
that only imports torch, gymnasium, hydra and pydantic, in alternation, and writes
`results/startup.json` and `docs/benchmarks_startup.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "startup.json"
PAGE = ROOT / "docs" / "benchmarks_startup.md"
IMPORTS = "import os, torch, gymnasium, hydra, pydantic; os._exit(0)"
GOAL = 1.3


class Stop(CartPoleEnv):
    """Ends the process at its first step."""

    def step(self, action: Any) -> Any:  # noqa: ARG002
        """End the process."""
        os._exit(0)


def measured(command: list[str], folder: str) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a command."""
    before, start = os.times(), time.perf_counter()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system
    return seconds, cpu - before.children_user - before.children_system


def measure(pairs: int) -> dict[str, Any]:
    """Measure both in alternation, after one of each that fills the disk's cache."""
    train = ["-m", "guerdon", "train", f"env.id={Path(__file__).resolve()}:Stop", "policy=ppo"]
    commands = {"imports": ["-c", IMPORTS], "first_step": [*train, "--display", "none"]}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(pairs + 1):
        for name, command in commands.items():
            with tempfile.TemporaryDirectory() as folder:
                times[name].append(measured([sys.executable, *command], folder))
    found: dict[str, Any] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "pairs": pairs}
    for index, unit in enumerate(("seconds", "cpu_seconds")):
        columns = {name: [each[index] for each in rows[1:]] for name, rows in times.items()}
        found[unit] = {name: round(statistics.median(v), 3) for name, v in columns.items()}
        ratios = [b / a for a, b in zip(columns["imports"], columns["first_step"], strict=True)]
        found[unit]["ratio"] = round(statistics.median(ratios), 3)
    found["load"] = round(os.getloadavg()[0], 1)
    return found


def page(found: dict[str, Any]) -> str:
    """Return the page, as Markdown."""
    rows = [
        f"| {name} | {row['imports']:.2f} | {row['first_step']:.2f} | {row['ratio']:.2f} |"
        for name, row in (("seconds", found["seconds"]), ("CPU seconds", found["cpu_seconds"]))
    ]
    return f"""# Start-up

Time from the start of `guerdon train env.id=... policy=ppo` to the first environment step,
compared with a process that only imports torch, gymnasium, hydra and pydantic. The goal is a ratio
of at most {GOAL}. CPU seconds depend less on other processes.

| | imports alone | first step | ratio |
|---|---:|---:|---:|
{chr(10).join(rows)}

Medians of {found["pairs"]} pairs; {found["date"]}, {found["cores"]} cores, load {found["load"]}.
Written by `python benchmarks/startup.py` from `benchmarks/results/startup.json`.
"""


def main() -> None:
    """Measure, and write the results and the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    found = {**measure(parser.parse_args().pairs), "cores": os.cpu_count()}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(found))
    print(json.dumps(found))


if __name__ == "__main__":
    main()

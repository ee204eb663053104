"""guerdon's training compared with other libraries, a plain loop and a bare one.

`make bench` installs them and runs this. All have the same networks, batches, epochs and threads
(one); every measurement has a process of its own, and in every round all learners of a row run, in
rotating order. See `learners/` for how each is used and `learners/rows.py` for the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import learners
import report
import training_report
from learners.base import DQNSetting, PPOSetting, SACSetting
from learners.rows import GROUPS, ROWS, SPEED, Row

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results" / "training.json"
_PAGE = _HERE.parent / "docs" / "benchmarks_training.md"
_APART = ("diengine", "imitation", "rllib")
"""Libraries whose requirements conflict with others: each has its own virtual environment."""


def main() -> int:
    """Measure and report; return the exit code."""
    options = _options()
    if options.page:
        data = json.loads(_RESULTS.read_text("utf-8"))
        data["goals"] = training_report.goals(data["rows"])
        _write(_RESULTS, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
        _write(_PAGE, training_report.to_markdown(data))
        return 0
    load = report.load()
    described = _describe(options)
    rows, failed = [], False
    for row in ROWS:
        if row.group in options.rows:
            result, errors = _measure(row, described, options)
            failed |= errors
            rows.append(result)
            _save(_data(rows, described, options, load), options)  # rows take up to half an hour
    data = _data(rows, described, options, load)
    training_report.to_terminal(data)
    if load > 0.5:
        _say(f"The machine was busy before this began ({load:.1f} processes a core): run it again.")
    missed = [goal for goal in data["goals"] if not goal["met"]]
    return 1 if failed or (options.assert_goals and missed) else 0


def _save(data: dict[str, Any], options: argparse.Namespace) -> None:
    """Write to the requested file; to that of the page if everything was measured."""
    if options.out:
        _write(options.out, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    elif not options.quick and set(options.only) == set(learners.NAMES):
        data = training_report.merged(_RESULTS, data)
        _write(_RESULTS, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
        _write(_PAGE, training_report.to_markdown(data))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flag = parser.add_argument
    flag("--quick", action="store_true", help="minutes instead of an hour; figures are rough")
    flag("--rows", type=_names(GROUPS), default=list(GROUPS), help="by commas; others are kept")
    flag("--rounds", type=int, help="of a row of speeds; 5 by default")
    flag("--only", type=_names(learners.NAMES), default=list(learners.NAMES), help="learners")
    flag("--out", type=Path, help=f"where figures go; for a full run into {_RESULTS.name}")
    flag("--page", action="store_true", help="only write the page anew, from the file of results")
    flag("--assert-goals", action="store_true", help="fail unless guerdon reaches all its goals")
    for name in _APART:
        python = _HERE.parent / f".venv-{name}" / "bin" / "python"
        flag(f"--{name}", type=Path, default=python, help="the Python that has it")
    options = parser.parse_args()
    usual, options.seconds = (2, 0.5) if options.quick else (5, 2.0)
    options.rounds = options.rounds or usual
    options.seeds, options.limit = (1, (20_000, 20.0)) if options.quick else (5, (500_000, 120.0))
    return options


def _names(allowed: tuple[str, ...]) -> Any:
    def names(text: str) -> list[str]:
        values = [name.strip().lower() for name in text.split(",") if name.strip()]
        for value in values:
            if value not in allowed:
                raise argparse.ArgumentTypeError(f"{value!r} is none of {', '.join(allowed)}")
        return values

    return names


def _describe(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Name, versions and usage of each learner that can be imported."""
    described = {}
    for name in filter(options.only.__contains__, learners.NAMES):
        answer = _child(options, name)
        if "error" in answer:
            _say(f"{name} is left out: {answer['error']}")
        else:
            described[name] = answer
    return described


def _measure(
    row: Row, described: dict[str, Any], options: argparse.Namespace
) -> tuple[dict[str, Any], bool]:
    """Return all rounds of a row, and whether any failed."""
    names = [name for name in row.learners if name in described]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    missing: dict[str, str] = {}
    failed = False
    rounds = options.rounds if row.unit == SPEED else options.seeds
    for turn in range(rounds):
        _say(f"{row.title}: round {turn + 1} of {rounds}")
        first = turn % len(names) if names else 0
        for name in names[first:] + names[:first]:
            if name in missing:
                continue
            answer = _child(
                options,
                name,
                row.key,
                f"--seed={turn}",
                f"--seconds={options.seconds}",
                f"--limit-steps={options.limit[0]}",
                f"--limit-seconds={options.limit[1]}",
            )
            if "value" in answer:
                found[name].append(answer)
                continue
            failed |= "error" in answer
            missing[name] = answer.get("missing") or f"it failed: {answer['error']}"
            _say(f"  {name}: {missing[name]}")
    titles = {name: described[name]["name"] for name in names}
    result = training_report.row_data(
        row,
        {titles[name]: runs for name, runs in found.items() if runs and name not in missing},
        {titles[name]: why for name, why in missing.items()},
    )
    return result | {"date": datetime.now(UTC).isoformat(timespec="seconds")}, failed


def _child(options: argparse.Namespace, name: str, *arguments: str) -> dict[str, Any]:
    """Return the result of a process; ``error`` with its last line if it failed."""
    python = getattr(options, name) if name in _APART else Path(sys.executable)
    if not python.exists():
        return {"error": f"there is no {python}"}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(_HERE), str(_HERE.parent)]),
        }
        done = subprocess.run(
            [python, "-W", "ignore", "-m", "learners", name, *arguments],
            cwd=folder,  # some libraries write files where they are started
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    for line in done.stdout.splitlines():
        if line.startswith('{"') and done.returncode == 0:
            answer: dict[str, Any] = json.loads(line)
            return answer
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return {"error": lines[-1] if lines else f"exit code {done.returncode}"}


def _data(
    rows: list[dict[str, Any]],
    described: dict[str, dict[str, Any]],
    options: argparse.Namespace,
    load: float,
) -> dict[str, Any]:
    facts = report.machine([], load)
    for learner in described.values():
        facts["packages"] |= learner["packages"]
    settings = {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "seeds": options.seeds,
        "ppo": asdict(PPOSetting(8)),
        "dqn": asdict(DQNSetting()),
        "sac": asdict(SACSetting()),
    }
    del settings["ppo"]["n_envs"]
    usage = {learner["name"]: learner["usage"] for learner in described.values()}
    return {
        "machine": facts,
        "settings": settings,
        "rows": rows,
        "goals": training_report.goals(rows),
        "usage": usage,
    }


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    _say(f"written: {path}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

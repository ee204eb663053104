"""From the results of `hacking.py` to docs/hacking.md."""

from __future__ import annotations

import json
import math
import statistics
from typing import TYPE_CHECKING, Any

from hacking import CHOSEN_ON, SEEDS, VERSIONS

from guerdon.training import alarms as rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hacking import Task

GOAL = 0.9
HEAD = """# Rewards that are exploited, and alarms

Written by `make hacking` (`benchmarks/hacking.py`) from the files in
[`benchmarks/results/hacking`](../benchmarks/results/hacking), after training the runs that are
missing there.

Does guerdon notice that a policy exploits a learned reward, without ever seeing the true one? After
each evaluation, [rules](../guerdon/training/alarms.py) look at how far the policy's transitions are
from the data that the reward was fitted to, at the disagreement of its members, at the learned
return, and at the error of novelty bonuses. A run is *alarmed* if there was an alarm at any of its
evaluations, also if it ended later. It is *hacked* if the true return or success of its final
policy is below the limit of the task, in either version. The figures are those of the tasks that
nothing was chosen on.

What was chosen on what: the limits `PAID`, `SHIFT` and `NOVELTY` on {chosen}, of which no run bears
on `FALL` and `DISAGREEMENT`. `HELD`, the number of evaluations in a row, is the smallest with a
precision of at least 0.95 on the same tasks; it was added after a review had counted the alarms of
all tasks at any evaluation without it (28 hacked runs of 33 alarmed ones on the other tasks), and
the figures with it were computed once, after the choice.

What was seen before: rules and environments were developed on one or two other seeds of each
task. On {chosen}, runs of seeds 0 to 2 were seen before the last change of the limits, from the
mean of three evaluations to their median. Of the other tasks, `lookalike` was redesigned twice,
since its first forms were not exploited, and the comparison with first successes was added after a
clean run of it; two runs of `exposure` and one of `lookalike` with the final seeds were seen, after
which no limit was changed. `reach`, `exposure` and `lookalike` are variants of one environment with
the same kind of classifier, so that the tasks are not independent of each other, as the intervals
assume; `novelty` is the rule of one task alone. Classifiers are fitted without synthetic failures,
which make over-exposed images hard to exploit, and without the check of labels.

## The tasks

"""


def write_report(tasks: Iterable[Task], results: Path, docs: Path) -> None:
    """Write the page."""
    (docs / "hacking.md").write_text(page(list(tasks), results))


def page(tasks: Sequence[Task], results: Path) -> str:
    """Return the page; its numbers are computed from the result files."""
    runs = {task.name: runs_of(task, results) for task in tasks}
    held = [task for task in tasks if task.name not in CHOSEN_ON]
    chosen = ", ".join(f"`{name}`" for name in CHOSEN_ON)
    text = [
        HEAD.format(chosen=chosen),
        "| task | flaw, and the clean version | hacked if |",
        "|---|---|---|",
    ]
    text += [f"| `{t.name}` | {t.text} | `{t.metric}` below {t.limit:g} |" for t in tasks]
    text += ["", "## The runs", ""]
    head = "task | version | runs | hacked | alarmed | hacked and alarmed | true, median (range)"
    text += [f"| {head} |", "|---|---|---:|---:|---:|---:|---|"]
    for task in tasks:
        for version in VERSIONS:
            text.append(
                _row(task, version, [r for r in runs[task.name] if r["version"] == version])
            )
    text += [
        "",
        "## The figures",
        "",
        "| tasks | alarm | precision | recall |",
        "|---|---|---|---|",
    ]
    groups = {
        "the other tasks": [run for task in held for run in runs[task.name]],
        "those the limits were chosen on": [run for name in CHOSEN_ON for run in runs[name]],
    }
    for name, group in groups.items():
        for when, key in (("at any evaluation", "alarms"), ("after the last one", "at_end")):
            shown = (share(*counts) for counts in precision_and_recall(group, key))
            text.append(f"| {name} | {when} | {' | '.join(shown)} |")
    text += [
        "",
        "In brackets: numbers of runs, and the 95 % Wilson interval.",
        "",
        *_verdict(groups),
    ]
    text += ["", "| rule | alarmed runs of the other tasks |", "|---|---:|"]
    for rule in ("shift", "ood_paid", "ood_share", "disagreement", "novelty"):
        number = sum(rule in run["alarms"] for run in groups["the other tasks"])
        text.append(f"| `{rule}` | {number} |")
    text += ["", "| constant | value |", "|---|---|"]
    text += [
        f"| `{name}` | {value:g} |"
        for name, value in (
            ("PAID", rules.PAID),
            ("SHIFT", rules.SHIFT),
            ("FALL", rules.FALL),
            ("DISAGREEMENT", rules.DISAGREEMENT),
            ("NOVELTY", rules.NOVELTY),
            ("EVALUATIONS", rules.EVALUATIONS),
            ("HELD", rules.HELD),
        )
    ]
    return "\n".join(text) + "\n"


def runs_of(task: Task, results: Path) -> list[dict[str, Any]]:
    """Return the results of a task, with the alarms at any evaluation and after the last one."""
    found = []
    for version in VERSIONS:
        for seed in range(SEEDS):
            path = results / f"{task.name}_{version}_{seed}.json"
            if path.exists():
                run = json.loads(path.read_text())
                run["hacked"] = run["true"] < task.limit
                by_evaluation = _alarms(_without_truth(run, task))
                run["alarms"], run["at_end"] = (
                    sorted(set().union(*by_evaluation)),
                    by_evaluation[-1],
                )
                found.append(run)
    return found


def _alarms(series: dict[str, list[tuple[int, float]]]) -> list[set[str]]:
    """Return the rules of the alarms after each evaluation."""
    return [
        {
            alarm.rule
            for alarm in rules.alarms(
                {name: [each for each in line if each[0] <= end] for name, line in series.items()}
            )
        }
        for end, _ in series[rules.LEARNED]
    ]


def _without_truth(run: dict[str, Any], task: Task) -> dict[str, Any]:
    return {
        name: [(step, value) for step, value in line if value is not None]
        for name, line in run["series"].items()
        if name != task.metric
    }


def precision_and_recall(
    runs: Iterable[dict[str, Any]], key: str = "alarms"
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return hits and number of alarmed runs, and hits and number of hacked runs."""
    runs = list(runs)
    hits = sum(run["hacked"] and bool(run[key]) for run in runs)
    alarmed, hacked = sum(bool(run[key]) for run in runs), sum(run["hacked"] for run in runs)
    return (hits, alarmed), (hits, hacked)


def wilson(hits: int, number: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a share."""
    z, share_ = 1.959964, hits / number
    middle = share_ + z * z / (2 * number)
    half = z * math.sqrt(share_ * (1 - share_) / number + z * z / (4 * number**2))
    scale = 1 + z * z / number
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def share(hits: int, number: int) -> str:
    """Return a share in words, with its interval."""
    if not number:
        return "- (no run)"
    low, high = wilson(hits, number)
    return f"{hits / number:.2f} ({hits} of {number}; {low:.2f} to {high:.2f})"


def _row(task: Task, version: str, runs: list[dict[str, Any]]) -> str:
    if not runs:
        return f"| `{task.name}` | {version} | 0 | | | | |"
    (hits, alarmed), (_, hacked) = precision_and_recall(runs)
    true = sorted(run["true"] for run in runs)
    spread = f"{statistics.median(true):.3g} ({true[0]:.3g} to {true[-1]:.3g})"
    return f"| `{task.name}` | {version} | {len(runs)} | {hacked} | {alarmed} | {hits} | {spread} |"


def _verdict(groups: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the result in words, with every run that was judged wrongly."""
    counts = precision_and_recall(groups["the other tasks"])
    short = [
        f"{name} is {hits / number:.2f}, below the goal of {GOAL:.2f}"
        for name, (hits, number) in zip(("precision", "recall"), counts, strict=True)
        if number and hits / number < GOAL
    ]
    known = all(number for _, number in counts)
    lines = [
        f"On the other tasks {' and '.join(short)}."
        if short
        else f"Both shares reach the goal of {GOAL:.2f} on the other tasks; their intervals do not."
        if known
        else "There are not enough runs for a figure."
    ]
    for name, group in groups.items():
        for run in group:
            if run["hacked"] != bool(run["alarms"]):
                kind = "was hacked without an alarm" if run["hacked"] else "had a false alarm"
                which = f" (`{'`, `'.join(run['alarms'])}`)" if run["alarms"] else ""
                where = f"`{run['task']}`, {run['version']}, seed {run['seed']}"
                lines.append(f"- {name}: {where} {kind}{which}; true {run['true']:.3g}")
    return [lines[0], "", *lines[1:]] if lines[1:] else lines

"""From the results of `reward_learning.py` to docs/reward_results.md and its curves."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from learning_report import draw_curves
from reward_rows import Section, Transfer
from trials import results_of

from guerdon.data import load_demonstrations

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trials import Row

HEAD = """# Results of reward models

Written by `make results` (`benchmarks/reward_learning.py`) from the files in
[`benchmarks/results/rewards`](../benchmarks/results/rewards), after training the runs that are
missing there; the rows are in `benchmarks/reward_rows.py`, and every result file has its command.
Policies are trained on the learned reward alone; only curiosity is a bonus on the environment's
reward, and hindsight experience replay relabels it. Returns are the environment's, means over 20
episodes of the *final* policy. Goals were set before the runs. Every seed is included; a run that
ended with an error is below the goal, but not in the means. In brackets: the 95 % bootstrap
interval of the mean over seeds. *Against bc* and *against controls*: whether the mean return is
higher than that of the clone of the same demonstrations, and than those of all rows with random
demonstrations, a constant reward or shuffled labels: `higher` or `lower` if the 95 % bootstrap
interval of the difference excludes 0, else `not shown`. *Steps to goal*: environment steps at the
first evaluation that reaches the goal, the median over seeds. *Normalised return*: 0 is the return
of random demonstrations, 1 that of the expert's. *Time*: of a seed, the median; several runs shared
a machine, not always the same, so that it is rough.
"""


def write_report(sections: Iterable[Section | Transfer], results: Path, docs: Path) -> None:
    """Write the page and its plots."""
    plots = docs / "reward_results"
    plots.mkdir(exist_ok=True)
    for old in plots.glob("*.png"):
        old.unlink()
    for number, section in enumerate(sections):
        if curves := _curves(section, results):
            draw_curves(plots / f"{number}.png", section.title, curves)
    (docs / "reward_results.md").write_text(page(sections, results))


def page(sections: Iterable[Section | Transfer], results: Path) -> str:
    """Return the page; its numbers are those of the result files."""
    text = [HEAD]
    for number, section in enumerate(sections):
        lines = grid if isinstance(section, Transfer) else table
        text += [f"## {section.title}", "", *_filled(section.text), *lines(section, results), ""]
        if _curves(section, results):
            text += [f"![{section.title}](reward_results/{number}.png)", ""]
    return "\n".join(text)


def _curves(section: Section | Transfer, results: Path) -> dict[str, list[Any]]:
    if isinstance(section, Transfer):
        return {}
    curves = {
        row.name: [run["curve"] for run in results_of(row, results) if "curve" in run]
        for row in section.rows
    }
    return {name: runs for name, runs in curves.items() if runs}


def _filled(text: str) -> list[str]:
    return [*textwrap.wrap(text, 100), ""]


def table(section: Section, results: Path) -> list[str]:
    """Return the rows of a section in Markdown, what they show, and the demonstrations."""
    columns = ["row", "goal", "seeds at the goal", "mean return", "worst", "steps to goal", "time"]
    found = {row.name: results_of(row, results) for row in section.rows}
    shown = None
    if section.demonstrations:
        kinds = [load_demonstrations(name) for name in section.demonstrations]
        shown = tuple(float(kind.returns.mean()) for kind in kinds)
        columns.insert(4, "normalised return")
    for column, key in (("against controls", "controls"), ("against bc", "baseline")):
        if any(getattr(row, key) for row in section.rows):
            columns.insert(4, column)
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    for row in section.rows:
        cells = _cells(row, found, shown)
        lines.append(" | ".join(cells[column] for column in columns))
    said = conclusions(section.rows, found)
    if shown:
        words = [
            f"`{name}`: {len(kind)} episodes with a mean return of {_number(mean)}"
            for name, kind, mean in zip(section.demonstrations or (), kinds, shown, strict=True)
        ]
        said.append("; ".join(words) + ".")
    return [*(f"| {line} |" for line in lines), *(line for each in said for line in _said(each))]


def _said(text: str) -> list[str]:
    return ["", *_filled(text)[:-1]]


def conclusions(rows: Iterable[Row], found: dict[str, list[Any]]) -> list[str]:
    """Return what the results of rows show, and what they do not, as paragraphs."""
    short, unsure, bare, blank, solved = [], [], [], [], []
    for row in rows:
        final, name = returns(found[row.name]), f"`{row.name}`"
        if row.goal is None or not len(final):
            continue
        number, reached = len(found[row.name]), int((final >= row.goal).sum())
        if row.is_control:
            solved += [f"{name} ({reached} of {number})"] if reached else []
            continue
        if reached < number:
            missing = row.goal - final.mean()
            mean = f", its mean is {_number(missing)} below" if missing > 0 else ""
            short.append(f"{name} ({reached} of {number} seeds{mean})")
        low, high = interval(final)
        if low <= row.goal <= high and low < high:
            unsure.append(name)
        if row.baseline and compared(final, found, [row.baseline]) in ("lower", "not shown"):
            bare.append(name)
        if row.controls and compared(final, found, row.controls) in ("lower", "not shown"):
            blank.append(name)
    words = (
        ("Short of the goal on at least one seed", short),
        ("Mean not shown to be above the goal, which is inside its 95 % interval", unsure),
        ("Not shown to be higher than cloning the same demonstrations", bare),
        ("Not shown to be higher than the controls", blank),
        ("Rows for comparison that reach the goal", solved),
    )
    return [f"{title}: {', '.join(names)}." for title, names in words if names]


def compared(final: np.ndarray, found: dict[str, list[Any]], names: Iterable[str]) -> str:
    """Return whether returns are higher than those of all of these rows, in words."""
    words = set()
    for name in names:
        other = returns(found.get(name, []))
        if not len(other) or not len(final):
            return ""
        low, high = difference(final, other)
        words.add("higher" if low > 0 else "lower" if high < 0 else "not shown")
    return next((word for word in ("lower", "not shown", "higher") if word in words), "")


def returns(runs: Iterable[Any]) -> np.ndarray:
    """Return the mean returns of the final policies of runs that ended without an error."""
    return np.array([run["summary"]["eval_return_mean"] for run in runs if "summary" in run])


def grid(section: Transfer, results: Path) -> list[str]:
    """Return the table of policies that were trained on frozen rewards, and what it shows."""
    changes = list(section.changes)
    head = ["reward", "learned with", *changes]
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    reached: dict[str, dict[str, bool]] = {}
    for label, cells in section.cells.items():
        source = section.learned.get(label)
        runs = {change: results_of(row, results) for change, row in cells.items()}
        learned = _summary(results_of(source, results), section.goal) if source else ""
        texts = [_summary(runs[change], section.goal) for change in changes]
        lines.append(" | ".join([f"`{label}`" if source else label, learned, *texts]))
        if source and all(runs.values()):
            reached[label] = {
                change: bool(len(final := returns(runs[change])) == len(runs[change]))
                and bool((final >= section.goal).all())
                for change in changes
            }
    said = []
    for change in changes:
        names = [f"`{label}`" for label, where in reached.items() if where[change]]
        if reached:
            said.append(f"{change}: {', '.join(names) or 'none'}")
    if said:
        said = [f"Rewards on which a new policy reaches the goal on every seed: {'; '.join(said)}."]
        said += [_claim(label, reached[label]) for label in section.claims if label in reached]
    return [*(f"| {line} |" for line in lines), *(line for each in said for line in _said(each))]


def _claim(label: str, reached: dict[str, bool]) -> str:
    """Return whether a reward that should not depend on the dynamics was seen to do so."""
    failed = [change for change, good in reached.items() if not good]
    if not failed:
        return f"The claim that rewards of `{label}` are robust to changed dynamics holds here."
    return (
        f"The claim that rewards of `{label}` are robust to changed dynamics is not confirmed "
        f"here: not every seed reaches the goal with {' and with '.join(failed)}."
    )


def _summary(runs: list[Any], goal: float) -> str:
    """Return the mean return of runs, its interval, and the seeds at the goal."""
    final = returns(runs)
    if not len(final):
        return f"(0 of {len(runs)})" if runs else "not run yet"
    mean, low, high = (_number(value) for value in (final.mean(), *interval(final)))
    return f"{mean}, {low} to {high} ({(final >= goal).sum()} of {len(runs)})"


def _cells(
    row: Row, found: dict[str, list[Any]], shown: tuple[float, ...] | None
) -> defaultdict[str, str]:
    """Return the cells of a row by column; others are empty.

    Args:
        row: The row.
        found: The results of all rows of the section, by name.
        shown: The mean returns of an expert's and of random demonstrations.
    """
    goal, runs = row.goal, found[row.name]
    cells = defaultdict(str, row=f"`{row.name}`", goal="" if goal is None else f"{goal:g}")
    ended = [run for run in runs if "summary" in run]
    if not ended:
        cells["seeds at the goal"] = f"0 of {len(runs)}" if runs else "not run yet"
        return cells
    final = returns(runs)
    mean, low, high = (_number(value) for value in (final.mean(), *interval(final)))
    cells["mean return"] = f"{mean} ({low} to {high})"
    cells["worst"] = _number(final.min())
    seconds = np.median([run["summary"]["wall_seconds"] for run in ended])
    cells["time"] = f"{seconds:.0f} s"
    cells["against bc"] = compared(final, found, [row.baseline]) if row.baseline else ""
    cells["against controls"] = compared(final, found, row.controls)
    if goal is not None:
        cells["seeds at the goal"] = f"{(final >= goal).sum()} of {len(runs)}"
        cells["steps to goal"] = first_at_goal(goal, ended)
    if shown is not None:
        expert, random = shown
        cells["normalised return"] = f"{(final.mean() - random) / (expert - random):.2f}"
    return cells


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 5 else f"{value:.1f}"


def first_at_goal(goal: float, runs: list[Any]) -> str:
    """Return the median steps to the first evaluation at the goal; empty if a run has none."""
    firsts = [next((step for step, mean in run["curve"] if mean >= goal), None) for run in runs]
    known = [first for first in firsts if first is not None]
    return f"{np.median(known):,.0f}" if known and len(known) == len(runs) else ""


def interval(values: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a mean."""
    drawn = np.random.default_rng(0).choice(values, (draws, len(values))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def difference(one: np.ndarray, other: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the difference of two means."""
    rng = np.random.default_rng(0)
    drawn = [rng.choice(values, (draws, len(values))).mean(1) for values in (one, other)]
    low, high = np.quantile(drawn[0] - drawn[1], [0.025, 0.975])
    return float(low), float(high)

"""From the results of `reward_learning.py` to docs/reward_results.md and its curves."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from learning_report import draw_curves
from trials import results_of

from guerdon.data import load_demonstrations

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from reward_learning import Section
    from trials import Row

HEAD = """# Results of reward models

Written by `make results` (`benchmarks/reward_learning.py`) from the files in
[`benchmarks/results/rewards`](../benchmarks/results/rewards), after training the runs that are
missing there. Policies are trained on the learned reward alone; only curiosity is a bonus on the
environment's reward, and hindsight experience replay relabels it. Returns are the environment's,
means over 20 episodes of the *final* policy. Every seed is included. In brackets: the 95 %
bootstrap interval of the mean over seeds. *Steps to goal*: environment steps at the first
evaluation that reaches the goal, the median over seeds. *Normalised return*: 0 is the return of
random demonstrations, 1 that of the expert's.
"""


def write_report(sections: Iterable[Section], results: Path, docs: Path) -> None:
    """Write the page and its plots."""
    plots = docs / "reward_results"
    plots.mkdir(exist_ok=True)
    for number, section in enumerate(sections):
        if curves := _curves(section, results):
            draw_curves(plots / f"{number}.png", section.title, curves)
    (docs / "reward_results.md").write_text(page(sections, results))


def page(sections: Iterable[Section], results: Path) -> str:
    """Return the page; its numbers are those of the result files."""
    text = [HEAD]
    for number, section in enumerate(sections):
        text += [f"## {section.title}", "", *_filled(section.text), *table(section, results), ""]
        if _curves(section, results):
            text += [f"![{section.title}](reward_results/{number}.png)", ""]
    return "\n".join(text)


def _curves(section: Section, results: Path) -> dict[str, list[Any]]:
    curves = {
        row.name: [run["curve"] for run in results_of(row, results) if "curve" in run]
        for row in section.rows
    }
    return {name: runs for name, runs in curves.items() if runs}


def _filled(text: str) -> list[str]:
    return [*textwrap.wrap(text, 100), ""]


def table(section: Section, results: Path) -> list[str]:
    """Return the rows of a section in Markdown, and the returns of the demonstrations."""
    columns = ["row", "goal", "seeds at the goal", "mean return", "worst", "steps to goal", "time"]
    shown, said = None, []
    if section.demonstrations:
        kinds = [load_demonstrations(name) for name in section.demonstrations]
        shown = tuple(float(kind.returns.mean()) for kind in kinds)
        columns.insert(4, "normalised return")
        said = [
            f"`{name}`: {len(kind)} episodes with a mean return of {_number(mean)}"
            for name, kind, mean in zip(section.demonstrations, kinds, shown, strict=True)
        ]
        said = ["", *_filled("; ".join(said) + ".")[:-1]]
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    for row in section.rows:
        cells = _cells(row, results_of(row, results), shown)
        lines.append(" | ".join(cells[column] for column in columns))
    return [*(f"| {line} |" for line in lines), *said]


def _cells(row: Row, runs: list[Any], shown: tuple[float, ...] | None) -> defaultdict[str, str]:
    """Return the cells of a row by column; others are empty.

    Args:
        row: The row.
        runs: Its results.
        shown: The mean returns of an expert's and of random demonstrations.
    """
    goal = row.goal
    cells = defaultdict(str, row=f"`{row.name}`", goal="" if goal is None else f"{goal:g}")
    ended = [run for run in runs if "summary" in run]
    if not ended:
        cells["seeds at the goal"] = f"0 of {len(runs)}" if runs else "not run yet"
        return cells
    final = np.array([run["summary"]["eval_return_mean"] for run in ended])
    mean, low, high = (_number(value) for value in (final.mean(), *interval(final)))
    cells["mean return"] = f"{mean} ({low} to {high})"
    cells["worst"] = _number(final.min())
    seconds = np.median([run["summary"]["wall_seconds"] for run in ended])
    cells["time"] = f"{seconds:.0f} s"
    if goal is not None:
        cells["seeds at the goal"] = f"{(final >= goal).sum()} of {len(runs)}"
        cells["steps to goal"] = _first(goal, ended)
    if shown is not None:
        expert, random = shown
        cells["normalised return"] = f"{(final.mean() - random) / (expert - random):.2f}"
    return cells


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 5 else f"{value:.1f}"


def _first(goal: float, runs: list[Any]) -> str:
    """Return the median steps to the first evaluation at the goal; empty if a run has none."""
    firsts = [next((step for step, mean in run["curve"] if mean >= goal), None) for run in runs]
    known = [first for first in firsts if first is not None]
    return f"{np.median(known):,.0f}" if len(known) == len(runs) else ""


def interval(values: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a mean."""
    drawn = np.random.default_rng(0).choice(values, (draws, len(values))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)

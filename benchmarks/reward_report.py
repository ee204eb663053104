"""From the results of `reward_learning.py` to docs/reward_results.md and its curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from learning_report import draw_curves
from trials import results_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from reward_learning import Section
    from trials import Row

HEAD = """# What reward models teach

Made by `make reward-results` (`benchmarks/reward_learning.py`), which runs what is missing and
writes this page from the files in
[`benchmarks/results/rewards`](../benchmarks/results/rewards). Policies learn from the learned
reward alone; returns are the environment's own, the mean over 20 episodes of the *final* policy.
Every seed that was run is here, failed ones too. In brackets: the 95 % interval of the mean over
seeds (bootstrap). *First there* is the number of steps at the first evaluation at the goal, the
median over seeds.
"""


def write_report(sections: Iterable[Section], results: Path, docs: Path) -> None:
    """Writes the page and its pictures."""
    pictures = docs / "reward_results"
    pictures.mkdir(exist_ok=True)
    for number, section in enumerate(sections):
        if curves := _curves(section, results):
            draw_curves(pictures / f"{number}.png", section.title, curves)
    (docs / "reward_results.md").write_text(page(sections, results))


def page(sections: Iterable[Section], results: Path) -> str:
    """The page, which says nothing but what is in the files of results."""
    text = [HEAD]
    for number, section in enumerate(sections):
        text += [f"## {section.title}", "", section.text, "", *table(section.rows, results), ""]
        if _curves(section, results):
            text += [f"![{section.title}](reward_results/{number}.png)", ""]
    return "\n".join(text)


def _curves(section: Section, results: Path) -> dict[str, list[Any]]:
    curves = {
        row.name: [run["curve"] for run in results_of(row, results) if "curve" in run]
        for row in section.rows
    }
    return {name: runs for name, runs in curves.items() if runs}


def table(rows: Iterable[Row], results: Path) -> list[str]:
    """The rows of a section in Markdown."""
    lines = [
        "| row | goal | seeds at the goal | mean return | worst | first there | time |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if runs := results_of(row, results):
            lines.append(_line(row, runs))
        else:
            lines.append(f"| `{row.name}` | {_goal(row)} | not run yet | | | | |")
    return lines


def _line(row: Row, runs: list[Any]) -> str:
    ended = [run for run in runs if "summary" in run]
    if not ended:
        return f"| `{row.name}` | {_goal(row)} | 0 of {len(runs)} | | | | |"
    final = np.array([run["summary"]["eval_return_mean"] for run in ended])
    reached = "" if row.goal is None else f"{(final >= row.goal).sum()} of {len(runs)}"
    low, high = interval(final)
    sooner = "" if row.goal is None else _first(row.goal, ended)
    seconds = np.median([run["summary"]["wall_seconds"] for run in ended])
    return (
        f"| `{row.name}` | {_goal(row)} | {reached} | {final.mean():.1f} ({low:.1f} to {high:.1f}) "
        f"| {final.min():.1f} | {sooner} | {seconds:.0f} s |"
    )


def _first(goal: float, runs: list[Any]) -> str:
    """Steps until an evaluation is at the goal, the median over runs; nothing if one never is."""
    firsts = [next((step for step, mean in run["curve"] if mean >= goal), None) for run in runs]
    known = [first for first in firsts if first is not None]
    return f"{np.median(known):,.0f}" if len(known) == len(runs) else ""


def interval(values: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """The 95 % interval of a mean, by drawing the values again and again."""
    drawn = np.random.default_rng(0).choice(values, (draws, len(values))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def _goal(row: Row) -> str:
    return "" if row.goal is None else f"{row.goal:g}"

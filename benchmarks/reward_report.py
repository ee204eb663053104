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
seeds (bootstrap). *Sooner* is the first evaluation at the goal, or at 95 % of the best mean where
there is none.
"""


def write_report(sections: Iterable[Section], results: Path, docs: Path) -> None:
    """Writes the page and its pictures."""
    pictures = docs / "reward_results"
    pictures.mkdir(exist_ok=True)
    text = [HEAD]
    for number, section in enumerate(sections):
        text += [f"## {section.title}", "", section.text, "", *table(section.rows, results), ""]
        curves = {
            row.name: [run["curve"] for run in results_of(row, results) if "curve" in run]
            for row in section.rows
        }
        if drawn := {name: runs for name, runs in curves.items() if runs}:
            path = pictures / f"{number}.png"
            draw_curves(path, section.title, drawn)
            text += [f"![{section.title}](reward_results/{path.name})", ""]
    (docs / "reward_results.md").write_text("\n".join(text))


def table(rows: Iterable[Row], results: Path) -> list[str]:
    """The rows of a section in Markdown."""
    lines = [
        "| row | goal | seeds at the goal | mean return | worst | sooner | time |",
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
    goal = row.goal if row.goal is not None else 0.95 * final.max()
    firsts = [next((step for step, mean in run["curve"] if mean >= goal), None) for run in ended]
    known = [first for first in firsts if first is not None]
    sooner = f"{np.median(known):,.0f}" if len(known) == len(runs) else ""
    seconds = np.median([run["summary"]["wall_seconds"] for run in ended])
    return (
        f"| `{row.name}` | {_goal(row)} | {reached} | {final.mean():.1f} ({low:.1f} to {high:.1f}) "
        f"| {final.min():.1f} | {sooner} | {seconds:.0f} s |"
    )


def interval(values: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """The 95 % interval of a mean, by drawing the values again and again."""
    drawn = np.random.default_rng(0).choice(values, (draws, len(values))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def _goal(row: Row) -> str:
    return "" if row.goal is None else f"{row.goal:.0f}"

"""From the results of `learning.py` to docs/results.md and its curves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from trials import results_of

from guerdon.lab.curves import Curve, draw, finish, middle, on_grid

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trials import Row

HEAD = """# Results

Written by `make results` (`benchmarks/learning.py`) from the files in
[`benchmarks/results/learning`](../benchmarks/results/learning), after training the runs that are
missing there. Every seed is included; a run that ended with an error counts as below the goal, but
not in the means. Returns are the environment's, means over 20 episodes of the *final* policy
without exploration. Several runs shared the machine and some were resumed, so that steps/s and time
are rough.
"""


def write_report(
    solved: Iterable[Row], above_random: Iterable[Row], on_ray: Iterable[Row],
    results: Path, docs: Path,
) -> None:  # fmt: skip
    """Write the page and its plots."""
    (docs / "results").mkdir(exist_ok=True)
    for env, curves in _by_env((*solved, *above_random), results).items():
        names = {preset.partition("_")[2]: runs for preset, runs in curves.items()}
        draw_curves(docs / "results" / f"{env}.png", f"{env}: every seed", names)
    (docs / "results.md").write_text(page(solved, above_random, on_ray, results))


def page(
    solved: Iterable[Row], above_random: Iterable[Row], on_ray: Iterable[Row], results: Path
) -> str:
    """Return the page; its numbers are those of the result files."""
    text = [HEAD, "## Solved problems", _table(solved, results)]
    text += ["\n## Larger problems, a few minutes each", LARGER, _table(above_random, results)]
    text += ["", *_at_random(results), "", "## On Ray", ON_RAY, *_on_ray(on_ray, results)]
    return "\n".join([*text, "\n## Where it ran\n", *_machines(results)]) + "\n"


LARGER = """
These runs are shorter than the presets. The goal is to exceed random actions: it is the 97.5 %
quantile of the returns of 100 episodes with random actions.
"""


ON_RAY = """
The same presets in one process and on Ray, with `runtime.mode=async` and two collectors, whose
rollouts are some updates old; `cartpole_impala` is for this mode. With `runtime.mode=sync` a run is
bit-identical to one in one process, which tests show. Steps to goal: environment steps at the first
evaluation that reaches the goal, the median over seeds. Difference of the means: with its 95 %
bootstrap interval.

| preset | runtime | goal | seeds at the goal | mean | steps to goal | difference |
|---|---|---|---|---|---|---|"""


def _on_ray(rows: Iterable[Row], results: Path) -> list[str]:
    """Return a line for each row; one on Ray follows the same preset in one process."""
    from reward_report import difference, first_at_goal, returns  # circular import

    lines, before = [], {}
    for row in rows:
        runs = results_of(row, results)
        final, gap = returns(runs), ""
        alone = before.setdefault(row.preset, final)
        if alone is not final and len(alone) and len(final):
            low, high = difference(final, alone)
            gap = f"{final.mean() - alone.mean():+.1f} ({low:+.1f} to {high:+.1f})"
        where = "Ray, two collectors" if row.variant else "one process"
        shown = (
            f"{(final >= row.goal).sum()} of {len(runs)} | {final.mean():.1f}" if runs else " | "
        )
        steps = first_at_goal(row.goal, runs)
        lines.append(f"| `{row.preset}` | {where} | {row.goal:.0f} | {shown} | {steps} | {gap} |")
    return lines


def _at_random(results: Path) -> list[str]:
    lines = []
    for path in sorted(results.glob("*_random.json")):
        returns = np.array(json.loads(path.read_text())["returns"])
        error = 1.96 * returns.std(ddof=1) / np.sqrt(len(returns))
        lines.append(
            f"- Random actions, {path.stem.partition('_')[0]}: mean return {returns.mean():.1f} "
            f"(95 % interval {returns.mean() - error:.1f} to {returns.mean() + error:.1f})"
        )
    return lines


def _by_env(rows: Iterable[Row], results: Path) -> dict[str, dict[str, list[Any]]]:
    """Return the curves of all runs, by environment and preset."""
    found: dict[str, dict[str, list[Any]]] = {}
    for row in rows:
        if runs := results_of(row, results):
            curves = [run["curve"] for run in runs if "curve" in run]
            found.setdefault(row.preset.partition("_")[0], {})[row.preset] = curves
    return found


def _table(rows: Iterable[Row], results: Path) -> str:
    lines = [
        "",
        "| preset | steps | goal | seeds at the goal | mean | worst | best | steps/s | time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if not (runs := results_of(row, results)):
            lines.append(f"| `{row.preset}` | not run yet | | | | | | | |")
            continue
        env, goal = row.preset.partition("_")[0], row.goal
        if goal is None:
            goal = json.loads((results / f"{env}_random.json").read_text())["quantile"]
        if not (summaries := [run["summary"] for run in runs if "summary" in run]):
            lines.append(f"| `{row.preset}` | | {goal:.0f} | 0 of {len(runs)} | | | | | |")
            continue
        final = np.array([summary["eval_return_mean"] for summary in summaries])
        lines.append(
            f"| `{row.preset}` | {summaries[0]['env_steps']:,} | {goal:.0f} "
            f"| {(final >= goal).sum()} of {len(runs)} | {final.mean():.1f} | {final.min():.1f} "
            f"| {final.max():.1f} | {np.median([s['fps'] for s in summaries]):,.0f} "
            f"| {np.median([s['wall_seconds'] for s in summaries]):.0f} s |"
        )
    plots = [f"![Learning curves of {env}](results/{env}.png)" for env in _by_env(rows, results)]
    return "\n".join([*lines, "", *plots])


def draw_curves(
    path: Path, title: str, curves: dict[str, list[Any]], label: str = "return (evaluation)"
) -> None:
    """Plot returns, or another metric, over steps, with a colour for each name.

    Thin lines are runs, thick lines their interquartile means; a run that stopped early keeps its
    last value.
    """
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="environment steps", ylabel=label)
    for name, runs in curves.items():
        members = [Curve(*np.array(curve, float).T) for curve in runs]
        end = max(curve.steps[-1] for curve in members)
        steps, values = on_grid([Curve(np.append(x, end), np.append(y, y[-1])) for x, y in members])
        line = draw(axes, name, [Curve(steps, middle(values))])
        for steps, values in members if len(members) > 1 else ():
            axes.plot(steps, values, color=line.get_color(), linewidth=0.6, alpha=0.4)
    finish(figure, "thick: interquartile mean, thin: seeds")
    figure.savefig(path, dpi=110)


def _machines(results: Path) -> list[str]:
    seen: dict[str, list[str]] = {}
    for path in sorted(results.glob("*_?.json")):
        if (machine := json.loads(path.read_text()).get("machine")) is None:
            continue
        gpus = f", {', '.join(machine['gpus'])}" if machine["gpus"] else ""
        words = (
            f"{machine['cpu']} ({machine['cpu_count']} cores){gpus}; Python {machine['python']}, "
            f"torch {machine['torch']}, NumPy {machine['numpy']}"
        )
        seen.setdefault(words, []).append(path.stem)
    return [f"- {words}: {len(names)} runs" for words, names in seen.items()]

"""Results of `training.py`: as data, on the terminal, as Markdown."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from learners.rows import GOALS, ROWS, SPEED, Row
from report import OWN
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

_BARE = "bare loop"
_BEST = "the best peer"


def row_data(
    row: Row, found: dict[str, list[dict[str, Any]]], missing: dict[str, str]
) -> dict[str, Any]:
    """A row's figures.

    Args:
        row: The row.
        found: What each learner's measurements gave.
        missing: Why a learner is not in this row.
    """
    measures = {name: _summary(runs) for name, runs in found.items()}
    return {
        "key": row.key,
        "title": row.title,
        "unit": row.unit,
        "measures": measures,
        "ratios": {name: _ratio(row.unit, measures, name) for name in measures},
        "missing": missing,
    }


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    values = [math.inf if run["value"] is None else run["value"] for run in runs]
    # A run that was stopped took longer than all others, so the median is still right.
    low, median, high = (
        float(np.quantile(values, at, method="nearest")) for at in (0.25, 0.5, 0.75)
    )
    return {
        "median": _number(median),
        "quartiles": [_number(low), _number(high)],
        "done": sum(map(math.isfinite, values)),
        "runs": runs,
    }


def _number(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _ratio(unit: str, measures: dict[str, Any], name: str) -> float | None:
    """Return guerdon's speed relative to a learner's, if both have a median."""
    own, other = (measures.get(key, {}).get("median") for key in (OWN, name))
    if own is None or other is None:
        return None
    return own / other if unit == SPEED else other / own


def _bound(row: dict[str, Any], name: str) -> float | None:
    """Return a lower bound of `_ratio`, as if runs that were stopped had solved it then."""
    own = row["measures"].get(OWN, {}).get("median")
    if row["unit"] == SPEED or own is None or name not in row["measures"]:
        return None
    runs = row["measures"][name]["runs"]
    least = [
        run["value"] or max((at for _, at, _ in run["evaluations"]), default=0) for run in runs
    ]
    return float(np.quantile(least, 0.5, method="nearest")) / own


def goals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return goals and results of the rows that were measured."""
    by_key = {row["key"]: row for row in rows}
    result = []
    for key, beside, at_least in GOALS:
        if key not in by_key:
            continue
        row = by_key[key]
        names = [name for name in row["ratios"] if name != OWN] if beside == _BEST else [beside]
        ratios = [row["ratios"].get(name) or _bound(row, name) for name in names]
        reached = min((ratio for ratio in ratios if ratio is not None), default=None)
        met = reached is not None and reached >= at_least
        goal = {"row": key, "beside": beside, "at_least": at_least, "reached": reached}
        result.append(goal | {"met": met})
    return result


def merged(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Merge new rows with those of an earlier run that were not measured again."""
    if not path.exists():
        return data
    before = json.loads(path.read_text(encoding="utf-8"))
    rows = {row["key"]: row for row in (*before["rows"], *data["rows"])}
    ordered = [rows[row.key] for row in ROWS if row.key in rows]
    usage = before["usage"] | data["usage"]
    return data | {"rows": ordered, "goals": goals(ordered), "usage": usage}


def _names(data: dict[str, Any]) -> list[str]:
    present = {name for row in data["rows"] for name in row["measures"]}
    return [name for name in data["usage"] if name in present]


def _first(row: dict[str, Any]) -> str:
    """Return the fastest library; the bare loop is none."""
    sign = -1 if row["unit"] == SPEED else 1
    known = {
        name: sign * measure["median"]
        for name, measure in row["measures"].items()
        if measure["median"] is not None and name != _BARE
    }
    return min(known, key=known.__getitem__, default="")


def _cell(row: dict[str, Any], name: str) -> str:
    if name not in row["measures"]:
        return "-"
    measure, ratio = row["measures"][name], row["ratios"][name]
    value, n_runs = measure["median"], len(measure["runs"])
    if value is None:
        bound = _bound(row, name)
        over = "" if bound is None else f" (over {bound:.1f}x)"
        return f"{measure['done']} of {n_runs} solved{over}"
    text = f"{value:,.0f}" if row["unit"] == SPEED else f"{value:.1f} s"
    if measure["done"] < n_runs:
        text += f", {measure['done']} of {n_runs}"
    if name == OWN or ratio is None:
        return text
    return f"{text} ({ratio:.{1 if ratio >= 1.95 else 2}f}x)"


def _line(facts: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    machine = f"{facts['cpu']}, {facts['cores']} cores, one thread"
    return f"{facts['date'][:10]}; {machine}; Python {facts['python']}, {packages}"


def _goal_line(goal: dict[str, Any]) -> str:
    reached = "-" if goal["reached"] is None else f"{goal['reached']:.2f}"
    return f"{reached}, {'met' if goal['met'] else 'not met'}"


def to_terminal(data: dict[str, Any]) -> None:
    """Prints the table."""
    title = "Environment steps/s, or seconds (and guerdon's relative speed)"
    table = Table(title=title, title_justify="left")
    names = _names(data)
    for column in ("", *names):
        table.add_column(column, justify="right" if column else "left")
    for row in data["rows"]:
        first = _first(row)
        cells = [_cell(row, name) for name in names]
        cells = [f"[bold]{c}[/]" if n == first else c for n, c in zip(names, cells, strict=True)]
        table.add_row(row["title"], *cells)
    console = Console() if Console().is_terminal else Console(width=150)
    console.print(table)
    for goal in data["goals"]:
        console.print(
            f"{goal['row']}: {goal['at_least']} times as fast as {goal['beside']}: "
            f"{_goal_line(goal)}"
        )
    console.print(_line(data["machine"]), soft_wrap=True, highlight=False)


_HEAD = """# Benchmarks of training

```bash
make bench
```

installs the other libraries into a virtual environment of their own and measures all learners in
one run. This page is written from `benchmarks/results/training.json`. Every measurement has a
process of its own; in every round all learners of a row run, in rotating order, on one thread.
Neither warm-up (compiling, filling the buffer) nor evaluations are timed. Higher is better for
steps/s, lower for seconds; in brackets is guerdon's speed relative to that learner. The fastest
library of each row is bold; the bare loop is not a library, but shows the cost of PyTorch and
Gymnasium alone.
"""


def to_markdown(data: dict[str, Any]) -> str:
    """Return the table, the goals, the quartiles, and how each learner was used."""
    names = _names(data)
    lines = [_HEAD, f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for row in data["rows"]:
        first = _first(row)
        cells = [_cell(row, name) for name in names]
        cells = [f"**{c}**" if n == first else c for n, c in zip(names, cells, strict=True)]
        unit = ", steps/s" if row["unit"] == SPEED else ""
        lines.append(f"| {row['title']}{unit} | {' | '.join(cells)} |")
    settings = data["settings"]
    made = (
        f"Medians of {settings['rounds']} rounds of {settings['seconds']:g} seconds; of "
        f"{settings['seeds']} seeds where CartPole is solved. {_line(data['machine'])}."
    )
    lines += [
        "",
        made,
        "",
        _settings(settings),
        "## Goals",
        "",
        "| row | compared with | at least | reached |",
        "|---|---|---:|---:|",
    ]
    for goal in data["goals"]:
        cells = [goal["row"], goal["beside"], f"{goal['at_least']:g}", _goal_line(goal)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Quartiles", "", f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for row in data["rows"]:
        cells = [_spread(row, name) for name in names]
        lines.append(f"| {row['title']} | {' | '.join(cells)} |")
    lines += ["", "## How each is used", ""]
    for name in names:
        lines += [f"- {name}, {key}: {text}." for key, text in data["usage"][name].items()]
    missing = [
        f"- Not measured: {name}, {row['title']}: {why}."
        for row in data["rows"]
        for name, why in row["missing"].items()
    ]
    return "\n".join([*lines, *missing]).rstrip() + "\n"


_SETTINGS = """
- PPO: {ppo[n_steps]} steps of each environment, {ppo[epochs]} epochs of {ppo[minibatches]}
  minibatches; actor and critic are separate networks with {ppo[hidden][0]} and
  {ppo[hidden][1]} tanh units; learning rate {ppo[learning_rate]}, clip range {ppo[clip]}, entropy
  weight {ppo[entropy_weight]}, advantages normalised, gradients clipped at {ppo[max_grad_norm]}.
- DQN: an update of {dqn[batch_size]} whenever all {dqn[n_envs]} environments have stepped;
  {dqn[hidden][0]} and {dqn[hidden][1]} units; neither double nor dueling.
- SAC: an update of {sac[batch_size]} per step; {sac[hidden][0]} and {sac[hidden][1]} units; two
  critics, tuned temperature.
- Solved: seconds of training to the first of two evaluations in a row with a mean return of 475 or
  more (20 greedy episodes, every 1,000 environment steps or at the end of the iteration). Every
  library has the settings it publishes for CartPole, 500,000 steps and 120 seconds.
- Imitated: the same for the true return, which is not used for training.
- A run that exceeds these limits is stopped; *over* then marks a lower bound of the ratio.
- On 2026-11-15 the machine was not quite idle: small experiments ran beside the SAC row and the
  last seeds of the GAIL row, some tests beside the other rows of steps a second, and commands of a
  few seconds beside the two rows of CartPole solved.
"""


def _settings(settings: dict[str, Any]) -> str:
    return _SETTINGS.strip("\n").format(**settings) + "\n"


def _spread(row: dict[str, Any], name: str) -> str:
    if name not in row["measures"]:
        return "-"
    form = "{:,.0f}" if row["unit"] == SPEED else "{:.1f}"
    ends = ["∞" if v is None else form.format(v) for v in row["measures"][name]["quartiles"]]
    return f"{ends[0]} to {ends[1]}"

"""Learning curves: read from run directories, grouped over seeds, with confidence bands."""

import io
import json
import re
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from guerdon.config import registry_of, sources
from guerdon.config.errors import ConfigError, as_path, suggestion
from guerdon.data.files import atomic_file
from guerdon.extras import require
from guerdon.limits import read_lines
from guerdon.training.fit_files import is_fit
from guerdon.training.run_folder import RunFolder

Center = Literal["iqm", "mean"]
STEPS, UPDATES = "environment steps", "updates"
LARGEST = 1e100
"""Larger numbers are not shown: arithmetic with them, as for an axis, may overflow."""


class Curve(NamedTuple):
    """One metric of one run."""

    steps: np.ndarray  # environment steps, increasing; see `unit_of_steps`
    values: np.ndarray


def plot(
    runs: str | Path | Iterable[str | Path],
    metric: str = "eval/mean_reward",
    out: str | Path | None = None,
    *,
    title: str | None = None,
    smooth: float = 0.0,
    center: Center = "iqm",
) -> Any:
    """Plot a metric of runs: the center over seeds and its 95% bootstrap band.

    Offline policies take no environment steps: beside other runs, their last value is a horizontal
    line.

    Args:
        runs: Run directories; those that differ only in ``seed`` and ``run.*`` are a group.
        metric: Name of the metric.
        out: Image file to write.
        title: Title; by default none.
        smooth: Weight of earlier values in an exponential moving average, 0 (none) to below 1.
        center: ``iqm``, the mean of the middle half of the runs (of all if there are fewer than
            four), or ``mean``.

    Returns:
        The matplotlib figure.
    """
    require("matplotlib", "lab")
    # Not pyplot, which needs a display.
    figure = require("matplotlib.figure", "lab").Figure(figsize=(7, 4.5), layout="constrained")
    kinds = sorted(figure.canvas.get_supported_filetypes())
    if out is not None and Path(out).suffix.lower().removeprefix(".") not in kinds:
        raise ValueError(f"{str(out)!r} is no image file: end its name in .{', .'.join(kinds)}")
    if center not in get_args(Center):
        raise ValueError(f"center is {center!r}: choose from {', '.join(get_args(Center))}")
    several = runs if isinstance(runs, Iterable) and not isinstance(runs, str) else [runs]
    folders = [as_path(run) for run in several]
    if not folders:
        raise ConfigError("there is no run to plot")
    groups = group_runs(folders)
    units = [unit_of_steps(members[0]) for _, members in groups]
    unit = STEPS if STEPS in units else UPDATES
    axes = figure.add_subplot(title=title or "", xlabel=unit, ylabel=metric)
    if center == "iqm" and any(len(members) >= 4 for _, members in groups):
        axes.set_ylabel(f"{metric} (interquartile mean)")
    for (label, members), unit_of_group in zip(groups, units, strict=True):
        curves = [smoothed(read_curve(run, metric), smooth) for run in members]
        seeds = "1 seed" if len(members) == 1 else f"{len(members)} seeds"
        if unit_of_group == unit:
            draw(axes, textwrap.fill(f"{label}, {seeds}", 90), curves, center)
        else:
            draw_level(axes, f"{label}, {seeds}", curves, center)
    finish(figure)
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(out) as file:
            file.write(image(figure, Path(out).suffix.lower().removeprefix("."), dpi=150))
    figure._repr_png_ = partial(image, figure)  # without pyplot, notebooks show no image
    return figure


def draw(axes: Any, label: str, curves: Sequence[Curve], center: Center = "iqm") -> Any:
    """Draw the center of curves, with its band if there are several; return the line.

    Lines that share a colour differ in style.
    """
    steps, values = on_grid(curves)
    label, look = _look(axes, label)
    dot = "o" if len(steps) == 1 else None
    (line,) = axes.plot(steps, middle(values, center), label=label, marker=dot, **look)
    if len(curves) > 1:
        low, high = bootstrap_band(values, np.random.default_rng(0), center)
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.2, linewidth=0)
    return line


def draw_level(axes: Any, label: str, curves: Sequence[Curve], center: Center = "iqm") -> Any:
    """Draw the last values of curves over updates as a horizontal line; return it.

    The legend says so, with the number of updates.
    """
    updates = max(curve.steps[-1] for curve in curves)
    values = np.array([curve.values[-1:] for curve in curves])
    label, look = _look(axes, textwrap.fill(f"{label}, offline: after {updates:,.0f} updates", 90))
    line = axes.axhline(middle(values, center)[0], label=label, **look)
    if len(curves) > 1:
        (low,), (high,) = bootstrap_band(values, np.random.default_rng(0), center)
        axes.axhspan(low, high, color=look["color"], alpha=0.2, linewidth=0)
    return line


def _look(axes: Any, label: str) -> tuple[str, dict[str, str]]:
    """Return the label of a new line for the legend, and its colour and style."""
    number = len(axes.get_legend_handles_labels()[1])
    label = f" {label}" if label.startswith("_") else label  # which a legend leaves out
    style = ("-", "--", ":", "-.")[number // 10 % 4]
    return label, {"color": f"C{number % 10}", "linestyle": style}


def finish(figure: Any, title: str | None = None) -> None:
    """Add a grid, and a legend with a title below the axes, where it hides no curve."""
    (axes,) = figure.axes
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    labels = axes.get_legend_handles_labels()[1]
    columns = max(1, min(4, len(labels), 100 // (8 + max(map(len, labels), default=1))))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * max(0, rows - 1))
    legend = figure.legend(
        loc="outside lower center", ncols=columns, fontsize="small", frameon=False,
        title=title, title_fontsize="small",
    )  # fmt: skip
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label, legend.get_title()]
    for text in (*texts, *legend.get_texts()):
        text.set_parse_math(False)  # a $ in a name is a $


def image(figure: Any, kind: str = "png", **options: Any) -> bytes:
    """Return a figure as an image file."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, **options)
    return file.getvalue()


def read_metrics(run: Path) -> dict[str, Curve]:
    """Read all metrics of a run or a fit by their names; values above `LARGEST` are left out.

    A step that a resumed run writes again replaces the one before.
    """
    file = RunFolder(run).metrics
    if not file.is_file():
        raise ConfigError(f"{str(run)!r} is not a run directory: it has no {file.name}")
    found: dict[str, dict[float, float]] = {}
    damaged = 0
    for line in read_lines(file):
        if not line.endswith(b"\n"):
            break  # the last one, which a killed run may not have finished
        try:
            row = json.loads(line)
            step = float(row["step"])
            numbers = {name: float(row[name]) for name in row if row[name] is not None}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            damaged += 1
            continue
        for name in row.keys() - {"step", "time"}:
            values = found.setdefault(name, {})
            if abs(step) <= LARGEST and abs(numbers.get(name, np.nan)) <= LARGEST:
                values[step] = numbers[name]
    if damaged:
        warnings.warn(f"{file} has {damaged} damaged lines, which are left out", stacklevel=2)
    return {
        name: Curve(*np.array(sorted(values.items()), np.float64).reshape(-1, 2).T)
        for name, values in sorted(found.items())
    }


def unit_of_steps(run: Path) -> str:
    """Return what the steps of a run are: updates in a fit, or if its policy is offline."""
    if is_fit(run):
        return UPDATES
    policy = sources.read(run).get("policy") if RunFolder(run).config.is_file() else None
    kind = policy.get("type") if isinstance(policy, dict) else None
    registry = registry_of("policy")
    # `get` would import the code that other types name, which may be another user's.
    is_registered = isinstance(kind, str) and kind in registry.names()
    return UPDATES if is_registered and registry.get(str(kind)).offline else STEPS


def read_curve(run: Path, metric: str) -> Curve:
    """Read a metric of a run, for example ``eval/mean_reward``."""
    found = read_metrics(run)
    curve = found.get(metric)
    if curve is None or not len(curve.steps):
        hint = suggestion(metric, found) if curve is None else "none of its values is finite"
        raise ConfigError(f"the run {str(run)!r} has no metric {metric!r}: {hint}")
    return curve


def smoothed(curve: Curve, weight: float) -> Curve:
    """Return an exponential moving average that is not biased towards its first value.

    Args:
        curve: The curve.
        weight: Weight of earlier values, 0 (none) to below 1.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"smoothing takes a weight from 0 to below 1, not {weight}")
    values, total, weights = [], 0.0, 0.0
    for value in curve.values:
        total = weight * total + (1 - weight) * value
        weights = weight * weights + (1 - weight)
        values.append(total / weights)
    return Curve(curve.steps, np.array(values))


def group_runs(runs: Sequence[Path]) -> list[tuple[str, list[Path]]]:
    """Group runs that differ only in ``seed`` and ``run.*``, in the order of the first of each.

    Returns:
        For each group its name, with the options that differ from other groups of that name, and
        its runs.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Path]] = {}
    names: list[str] = []  # of the first run of each group
    for run in runs:
        name, values, file = run.name, {"": run.name}, RunFolder(run).config
        if file.is_file():
            content = sources.read(run)
            section = content.get("run")
            name = str(section.get("name", "run")) if isinstance(section, dict) else run.name
            values = {key: json.dumps(each) for key, each in sorted(sources.leaves(content))}
        options = [(key, values[key]) for key in values if not re.match(r"seed$|run\.", key)]
        members = groups.setdefault(tuple(options), [])
        names += [] if members else [name]
        members.append(run)
    labels = []
    for name, config in zip(names, map(dict, groups), strict=True):
        others = [dict(each) for each, one in zip(groups, names, strict=True) if one == name]
        different = [
            f"{key}={value}"
            for key, value in config.items()
            if key and any(other.get(key) != value for other in others)
        ]
        labels.append(name + (f" ({', '.join(different)})" if different else ""))
    return list(zip(labels, groups.values(), strict=True))


def on_grid(curves: Sequence[Curve], points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate curves linearly at the same steps, over the range that all of them cover.

    Curves of a single point, which may be at different steps, become a point at the mean step.

    Returns:
        The steps [points], and the values [curves, points].
    """
    if all(len(curve.steps) == 1 for curve in curves):
        return np.mean([curve.steps for curve in curves], 0), np.stack([c.values for c in curves])
    first = max(curve.steps[0] for curve in curves)
    last = min(curve.steps[-1] for curve in curves)
    if first > last:
        raise ConfigError(
            f"a run has the metric until step {last:,.0f} and another from step {first:,.0f} on, "
            "so that they have no mean: plot them one by one"
        )
    grid = np.linspace(first, last, points if last > first else 1)
    return grid, np.stack([np.interp(grid, curve.steps, curve.values) for curve in curves])


def middle(values: np.ndarray, center: Center = "iqm") -> np.ndarray:
    """Return the interquartile mean or the mean over runs [..., runs, points].

    The interquartile mean leaves out the lowest and the highest quarter of the runs, rounded down:
    https://arxiv.org/abs/2108.13264.
    """
    cut = values.shape[-2] // 4 if center == "iqm" else 0
    kept = np.sort(values, axis=-2)[..., cut : values.shape[-2] - cut, :]
    found: np.ndarray = kept.mean(-2)
    return found


def bootstrap_band(
    values: np.ndarray,
    rng: np.random.Generator,
    center: Center = "iqm",
    level: float = 0.95,
    samples: int = 2_000,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of a bootstrap confidence band of the center over runs [runs, points]."""
    rows = rng.integers(len(values), size=(samples, len(values)))
    parts = np.array_split(rows, 20)  # limits memory
    drawn = np.concatenate([middle(values[part], center) for part in parts])
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high

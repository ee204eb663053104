"""Learning curves: read from run directories, grouped over seeds, with confidence bands."""

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from guerdon.config import sources
from guerdon.config.errors import ConfigError, suggestion
from guerdon.extras import require
from guerdon.training.run_folder import RunFolder


class Curve(NamedTuple):
    """One metric of one run."""

    steps: np.ndarray  # environment steps, rising
    values: np.ndarray


def plot(
    runs: str | Path | Iterable[str | Path],
    metric: str = "eval/mean_reward",
    out: str | Path | None = None,
) -> Any:
    """Plot a metric of runs: the mean over seeds and its 95% bootstrap band.

    Args:
        runs: Run directories; those that differ only in their seed are a group.
        metric: Name of the metric.
        out: Image file to write.

    Returns:
        The matplotlib figure.
    """
    require("matplotlib", "lab")
    # Not pyplot, which needs a screen.
    figure = require("matplotlib.figure", "lab").Figure(figsize=(7, 4.5), layout="constrained")
    kinds = sorted(figure.canvas.get_supported_filetypes())
    if out is not None and Path(out).suffix.lower().removeprefix(".") not in kinds:
        raise ValueError(f"an image ends in .{', .'.join(kinds)}, which {str(out)!r} does not")
    axes = figure.add_subplot(xlabel="environment steps", ylabel=metric)
    axes.grid(alpha=0.3)
    folders = [runs] if isinstance(runs, str | Path) else runs
    for label, members in group_runs([Path(run) for run in folders]):
        steps, values = on_grid([read_curve(run, metric) for run in members])
        seeds = "1 seed" if len(members) == 1 else f"{len(members)} seeds"
        dot = "o" if len(steps) == 1 else None
        (line,) = axes.plot(steps, values.mean(0), marker=dot, label=f"{label}, {seeds}")
        if len(members) > 1:
            low, high = bootstrap_band(values, np.random.default_rng(0))
            axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.legend()
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=150)
    figure._repr_png_ = partial(_png, figure)  # without pyplot, notebooks show no image
    return figure


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file)
    return file.getvalue()


def read_curve(run: Path, metric: str) -> Curve:
    """Read a metric of a run, for example ``eval/mean_reward``."""
    file = RunFolder(run).metrics
    if not file.is_file():
        raise ConfigError(f"{str(run)!r} is not a run directory: it has no {file.name}")
    found: dict[float, float] = {}
    names: set[str] = set()
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(text)
        except json.JSONDecodeError:
            continue  # a line that a killed run did not finish
        names |= row.keys()
        value = row.get(metric)
        if value is not None and np.isfinite(value):
            found[row["step"]] = value
    if not found:
        hint = suggestion(metric, names - {"step", "time"})
        raise ConfigError(f"the run {str(run)!r} has no metric {metric!r}: {hint}")
    return Curve(np.array([*found], np.float64), np.array([*found.values()], np.float64))


def group_runs(runs: Sequence[Path]) -> list[tuple[str, list[Path]]]:
    """Group runs that differ only in their seed, in the order of the first of each.

    Returns:
        For each group its name, with the options that differ from other groups of that name, and
        its runs.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Path]] = {}
    for run in runs:
        values, file = {"run.name": run.name}, RunFolder(run).config
        if file.is_file():
            values = dict(_flat(sources.read(file)))
        values = {key: values[key] for key in sorted(values) if key not in ("seed", "run.dir")}
        groups.setdefault(tuple(values.items()), []).append(run)
    configs, labels = [dict(identity) for identity in groups], []
    for config in configs:
        name = config.get("run.name", "run")
        others = [other for other in configs if other.get("run.name", "run") == name]
        different = [
            f"{key}={value}"
            for key, value in config.items()
            if any(other.get(key) != value for other in others)
        ]
        labels.append(name.strip('"') + (f" ({', '.join(different)})" if different else ""))
    return list(zip(labels, groups.values(), strict=True))


def _flat(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", json.dumps(value)


def on_grid(curves: Sequence[Curve], points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate curves linearly at the same steps, over the range that all of them cover.

    Returns:
        The steps [points], and the values [curves, points].
    """
    first = max(curve.steps[0] for curve in curves)
    last = min(curve.steps[-1] for curve in curves)
    if first > last:
        raise ConfigError("the runs have no steps in common: plot them one by one")
    grid = np.linspace(first, last, points if last > first else 1)
    return grid, np.stack([np.interp(grid, curve.steps, curve.values) for curve in curves])


def bootstrap_band(
    values: np.ndarray, rng: np.random.Generator, level: float = 0.95, samples: int = 2_000
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of a bootstrap confidence band of the mean over runs [runs, points]."""
    rows = rng.integers(len(values), size=(samples, len(values)))
    counts = (rows[:, :, None] == np.arange(len(values))).sum(1)
    means = counts @ values / len(values)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high

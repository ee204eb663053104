"""Learning curves: read from run directories, grouped over seeds, with confidence bands."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from guerdon.config import sources
from guerdon.config.errors import ConfigError, suggestion

METRICS, CONFIG = "metrics.jsonl", "config.yaml"


class Curve(NamedTuple):
    """One metric of one run."""

    steps: np.ndarray
    """Environment steps, rising."""
    values: np.ndarray
    """The metric at each of them."""


class Group(NamedTuple):
    """Runs that differ only in their seed."""

    label: str
    """Name of the runs, and options that differ from other groups of that name."""
    runs: list[Path]


class Band(NamedTuple):
    """Mean over runs with a confidence band."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def read_curve(run: Path, metric: str) -> Curve:
    """Read a metric of a run.

    Args:
        run: The run directory.
        metric: Name of the metric, for example ``eval/mean_reward``.
    """
    file = run / METRICS
    if not file.is_file():
        raise ConfigError(f"{str(run)!r} is no run's folder: it has no {file.name}")
    found: dict[float, float] = {}
    names: set[str] = set()
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(text)
        except json.JSONDecodeError:
            continue  # a line that a killed run did not finish
        if not isinstance(row, dict) or "step" not in row:
            continue
        names |= row.keys()
        value = row.get(metric)
        if isinstance(value, int | float) and np.isfinite(value):
            # A resumed run continues from its last checkpoint and repeats later steps.
            while found and next(reversed(found)) >= row["step"]:
                found.popitem()
            found[row["step"]] = value
    if not found:
        hint = suggestion(metric, names - {"step", "time"})
        raise ConfigError(f"the run {str(run)!r} has no metric {metric!r}: {hint}")
    return Curve(np.array([*found], np.float64), np.array([*found.values()], np.float64))


def group_runs(runs: Sequence[Path]) -> list[Group]:
    """Group runs that differ only in their seed, in the order of the first of each.

    Args:
        runs: Run directories.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Path]] = {}
    for run in runs:
        values = {"run.name": run.name}
        if (run / CONFIG).is_file():
            values = dict(_flat(sources.read(run / CONFIG)))
        values = {key: values[key] for key in sorted(values) if key not in ("seed", "run.dir")}
        groups.setdefault(tuple(values.items()), []).append(run)
    configs = [dict(identity) for identity in groups]
    return [
        Group(_label(config, configs), found)
        for config, found in zip(configs, groups.values(), strict=True)
    ]


def _flat(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", json.dumps(value)


def _label(config: dict[str, str], configs: Sequence[dict[str, str]]) -> str:
    name = config.get("run.name", "run")
    others = [other for other in configs if other.get("run.name", "run") == name]
    different = [
        f"{key}={value}"
        for key, value in config.items()
        if any(other.get(key) != value for other in others)
    ]
    name = name.strip('"')
    return f"{name} ({', '.join(different)})" if different else name


def on_grid(curves: Sequence[Curve], points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate curves linearly at the same steps, over the range that all of them cover.

    Args:
        curves: One or more.
        points: Number of steps.

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
    """Return a bootstrap confidence band of the mean over rows.

    Args:
        values: One row for each run [runs, points].
        rng: Draws whole rows with replacement.
        level: Confidence level.
        samples: Number of bootstrap samples.

    Returns:
        The lower and the upper end at each point.
    """
    rows = rng.integers(len(values), size=(samples, len(values)))
    counts = (rows[:, :, None] == np.arange(len(values))).sum(1)
    means = counts @ values / len(values)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def mean_and_band(curves: Sequence[Curve], rng: np.random.Generator, points: int = 200) -> Band:
    """Return the mean of curves with its 95% band.

    Args:
        curves: One for each run; a single one is its own band.
        rng: Draws the bootstrap samples.
        points: Number of steps.
    """
    steps, values = on_grid(curves, points)
    return Band(steps, values.mean(0), *bootstrap_band(values, rng))

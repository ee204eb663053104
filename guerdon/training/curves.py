"""Learning curves: read from run folders, grouped over seeds, with confidence bands."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from guerdon.config import sources
from guerdon.config.errors import ConfigError, suggestion

METRICS = "metrics.jsonl"
CONFIG = "config.yaml"


class Curve(NamedTuple):
    """One metric of one run."""

    steps: np.ndarray
    """Environment steps, rising."""
    values: np.ndarray
    """The metric at each of them."""


class Group(NamedTuple):
    """Runs that differ only in their seed."""

    label: str
    """The runs' name, and what sets them apart from other groups of that name."""
    runs: list[Path]


class Band(NamedTuple):
    """The mean over runs, and where it lies with some confidence."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def read_curve(run: Path, metric: str) -> Curve:
    """A metric of a run.

    Args:
        run: The run's folder.
        metric: Its name, for example ``eval/mean_reward``.
    """
    steps: list[float] = []
    values: list[float] = []
    seen: set[str] = set()
    for row in _rows(run / METRICS):
        seen |= row.keys()
        value = row.get(metric)
        if not isinstance(value, int | float) or not np.isfinite(value):
            continue
        # A resumed run goes back to its last checkpoint and writes the rest again.
        while steps and steps[-1] >= row["step"]:
            del steps[-1], values[-1]
        steps.append(row["step"])
        values.append(value)
    if not steps:
        hint = suggestion(metric, seen - {"step", "time"})
        raise ConfigError(f"the run {str(run)!r} has no metric {metric!r}: {hint}")
    return Curve(np.array(steps, np.float64), np.array(values, np.float64))


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    if not file.is_file():
        raise ConfigError(f"{str(file.parent)!r} is no run's folder: it has no {file.name}")
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(text)
        except json.JSONDecodeError:
            continue  # a line that a killed run did not finish
        if isinstance(row, dict) and "step" in row:
            yield row


def group_runs(runs: Sequence[Path]) -> list[Group]:
    """Runs that differ only in their seed, together, in the order of the first of each.

    Args:
        runs: Folders of runs.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Path]] = {}
    for run in runs:
        groups.setdefault(_identity(run), []).append(run)
    labels = _labels([dict(identity) for identity in groups])
    return [Group(label, list(found)) for label, found in zip(labels, groups.values(), strict=True)]


def _identity(run: Path) -> tuple[tuple[str, str], ...]:
    """All values of a run's configuration but its seed and its folder, by dotted key."""
    if not (run / CONFIG).is_file():
        return (("run.name", run.name),)
    values = dict(_flat(sources.read(run / CONFIG)))
    return tuple(sorted((k, v) for k, v in values.items() if k not in ("seed", "run.dir")))


def _flat(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", json.dumps(value)


def _labels(groups: Sequence[dict[str, str]]) -> Iterator[str]:
    for group in groups:
        name = group.get("run.name", "run").strip('"')
        rivals = [other for other in groups if other.get("run.name") == group.get("run.name")]
        apart = [
            f"{key}={value}"
            for key, value in group.items()
            if any(other.get(key) != value for other in rivals)
        ]
        yield f"{name} ({', '.join(apart)})" if apart else name


def on_grid(curves: Sequence[Curve], points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Curves at the same steps, those that all of them cover.

    Args:
        curves: One or more.
        points: How many steps.

    Returns:
        The steps [points], and the values [curves, points], interpolated linearly.
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
    """Where the mean over rows lies, by drawing whole rows with replacement.

    Args:
        values: One row for each run, [runs, points].
        rng: Draws the rows.
        level: The share of drawn means inside the band.
        samples: How often to draw.

    Returns:
        The lower and the upper end at each point.
    """
    rows = rng.integers(len(values), size=(samples, len(values)))
    counts = (rows[:, :, None] == np.arange(len(values))).sum(1)
    means = counts @ values / len(values)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def mean_and_band(curves: Sequence[Curve], rng: np.random.Generator, points: int = 200) -> Band:
    """The mean of curves over the steps they share, with its 95% band.

    Args:
        curves: One for each run; a single one is its own band.
        rng: Draws the bootstrap.
        points: How many steps.
    """
    steps, values = on_grid(curves, points)
    return Band(steps, values.mean(0), *bootstrap_band(values, rng))

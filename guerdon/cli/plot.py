"""``guerdon plot``: learning curves of runs."""

from pathlib import Path
from typing import Annotated

import typer

from guerdon.cli.common import count


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    out: Annotated[Path, typer.Option(help="Image file.")] = Path("curves.png"),
    metric: Annotated[str, typer.Option(help="Metric to plot over steps.")] = "eval/mean_reward",
) -> None:
    """Plots runs: the mean over seeds and its 95% bootstrap band."""
    import numpy as np

    from guerdon.extras import require
    from guerdon.training import curves

    require("matplotlib", "lab")
    # Not pyplot: a figure of its own needs no screen.
    figure = require("matplotlib.figure", "lab").Figure(figsize=(7, 4.5), layout="constrained")
    kinds = sorted(figure.canvas.get_supported_filetypes())
    if out.suffix.lower().removeprefix(".") not in kinds:
        raise ValueError(f"an image ends in .{', .'.join(kinds)}, which {str(out)!r} does not")
    groups = curves.group_runs(runs)
    axes = figure.add_subplot(xlabel="environment steps", ylabel=metric)
    axes.grid(alpha=0.3)
    for label, members in groups:
        found = [curves.read_curve(run, metric) for run in members]
        band = curves.mean_and_band(found, np.random.default_rng(0))
        seeds = count(len(found), "seed")
        dot = "o" if len(band.steps) == 1 else None
        (line,) = axes.plot(band.steps, band.mean, marker=dot, label=f"{label}, {seeds}")
        if len(found) > 1:
            axes.fill_between(
                band.steps, band.low, band.high, color=line.get_color(), alpha=0.2, linewidth=0
            )
    axes.legend()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    counts = f"{count(len(runs), 'run')} in {count(len(groups), 'group')}"
    typer.echo(f"wrote {out}: {metric} of {counts}")

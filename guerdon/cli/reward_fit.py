"""``guerdon reward fit``: a success classifier from collected frames."""

import json
import shlex
from functools import partial
from typing import Annotated, Any

import typer

from guerdon.cli.common import INTERRUPTED, AsJson, Display, progress, show_table, split

ROWS = (
    ("PR-AUC", "pr_auc", ".4f"),
    ("precision", "precision", ".1%"),
    ("recall", "recall", ".1%"),
    ("false positives, of frames without success", "false_positive_rate", ".2%"),
    ("false positives, of episodes without success", "episode_false_positive_rate", ".1%"),
    ("calibration error", "calibration_error", ".4f"),
    ("  before the temperature", "calibration_error_before", ".4f"),
    ("threshold", "threshold", ".4f"),
    ("temperature", "temperature", ".3f"),
    ("frames with success, of all", "base_rate", ".1%"),
)


def fit(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="PRESET|FILE|KEY=VALUE",
            help="Preset (`guerdon list fits`) or file, and overrides: "
            "reach_classifier reward.optim.lr=3e-4",
        ),
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the fit in reward.save_dir.")
    ] = False,
    as_json: AsJson = False,
    display: Display = "auto",
) -> None:
    """Fits a classifier of success to collected frames, for `guerdon train` to learn from.

    Ctrl-C saves before it stops.
    """
    from guerdon.compat.layouts import translated_fit
    from guerdon.training.fit import fit as fitted
    from guerdon.training.fit import read_frames
    from guerdon.training.fit_files import compose_fit

    source, overrides = split(arguments)
    config = compose_fit(*translated_fit(source, overrides))
    with progress(files=None) as update:
        frames = read_frames(config, partial(update, "files"))
    mode = "none" if as_json else display
    result = fitted(config, overwrite=overwrite, display=mode, frames=frames)
    if as_json:
        typer.echo(json.dumps(result, indent=1))
    else:
        _show(result, source)
    if result["stop_reason"] == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _show(result: dict[str, Any], source: str | None) -> None:
    from guerdon.config import sources

    numbers, folder = result["validation"], shlex.quote(result["save_dir"])
    typer.echo(
        f"on {numbers['frames']:,} frames of {numbers['episodes']:,} held-out episodes, "
        f"step {result['best_step']:,} of {result['steps']:,}:"
    )
    show_table(
        (name, "-" if numbers[key] is None else format(numbers[key], form))
        for name, key, form in ROWS
    )
    if result["stop_reason"] == "interrupted":
        typer.echo(
            f"interrupted after {result['steps']:,} steps; the best so far is in {folder}. To fit "
            "to the end, start again with --overwrite"
        )
        return
    preset = f"{(source or '').removesuffix('_classifier')}_ppo"
    known = preset in sources.options("preset")
    typer.echo(
        f"fitted in {result['seconds']:.0f} s; next: guerdon train {preset if known else 'PRESET'} "
        f"reward=classifier reward.checkpoint_path={folder}"
    )

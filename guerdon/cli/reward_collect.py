"""``guerdon reward collect``: what cameras see of the policy of a run."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guerdon.cli.collect import noise_levels
from guerdon.cli.eval import checkpoint_of
from guerdon.cli.train import INTERRUPTED, trajectories_in_words

if TYPE_CHECKING:
    from guerdon.training.collect_frames import CollectedFrames


class Format(StrEnum):
    """What can be written."""

    NPZ = "npz"
    NPY = "npy"


def collect(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Where to: DIR/positive and DIR/negative.", show_default=False
        ),
    ],
    episodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many to play at most, of each policy; until both folders are full if left "
            "out.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        str,
        typer.Option(metavar="best|latest|STEP,...", help="Which policies of the run, in turns."),
    ] = "best",
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="P,P,...",
            help="Play with each of these shares of random actions in turns: 0,0.25,0.5",
            show_default=False,
        ),
    ] = None,
    positive: Annotated[
        int, typer.Option(min=0, help="Trajectories with a success at which they are enough.")
    ] = 500,
    negative: Annotated[int, typer.Option(min=0, help="The same, without.")] = 500,
    image_keys: Annotated[
        str, typer.Option(metavar="NAME,...", help="The cameras.")
    ] = "base_camera",
    image_size: Annotated[
        str | None,
        typer.Option(
            metavar="C,H,W",
            help="Channels, height and width that pictures are resized to: 3,64,64",
            show_default=False,
        ),
    ] = None,
    written: Annotated[
        Format, typer.Option("--format", help="npy: uncompressed, as of RLinf.")
    ] = Format.NPZ,
    seed: Annotated[int, typer.Option(min=0, help="Of the environments.")] = 0,
) -> None:
    """Plays with the policy of a run, and keeps what cameras see, for `guerdon reward fit`.

    Goes on from what DIR holds. Ctrl-C ends it after the episodes that are being played.
    """
    levels = noise_levels(noise)
    checkpoints = [checkpoint_of(each) for each in checkpoint.split(",")]
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from guerdon.config import sources
    from guerdon.config.schema import DataCollectionConfig
    from guerdon.config.validation import validated
    from guerdon.training.collect_frames import collect_frames

    data = {
        "positive_dir": str(out / "positive"),
        "negative_dir": str(out / "negative"),
        "image_keys": image_keys.split(","),
        "image_size": _size(image_size),
        "max_positive_trajectories": positive,
        "max_negative_trajectories": negative,
        "format": written.value,
    }
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(*columns, transient=True, console=console, disable=hidden) as bar:
        tasks = [
            bar.add_task(kind, total=wanted)
            for kind, wanted in (("positive", positive), ("negative", negative))
        ]

        def show(*numbers: int) -> None:
            for task, number in zip(tasks, numbers, strict=True):
                bar.update(task, completed=number)

        found = collect_frames(
            run,
            validated(DataCollectionConfig, data),
            episodes,
            checkpoint=checkpoints,
            noise=levels,
            seed=seed,
            progress=show,
        )
    name = sources.read(run)["run"]["name"]
    more = f" ({found.new:,} new, of {found.episodes:,} episodes{_hint(found)})"
    typer.echo(trajectories_in_words(name, data, found.positive, found.negative, more))
    if found.stop_reason == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _size(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){2}", text):
        raise ValueError(
            f"--image-size takes channels, height and width, as in 3,64,64, not {text!r}"
        )
    return [int(number) for number in text.split(",")]


def _hint(found: "CollectedFrames") -> str:
    if found.stop_reason != "nothing_new":
        return ""
    return (
        ", the last of which brought nothing new: try other policies with --noise or --checkpoint"
    )

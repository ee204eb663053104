"""``guerdon collect``: demonstrations of the policy of a run."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guerdon.cli.eval import checkpoint_of

if TYPE_CHECKING:
    from guerdon.data.demonstrations import Demonstrations


class Format(StrEnum):
    """What can be written."""

    GUERDON = "guerdon"
    MINARI = "minari"


def collect(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)
    ],
    out: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="Where to; for minari, an id: cartpole/mine-v0.", show_default=False
        ),
    ],
    episodes: Annotated[int, typer.Option(min=1, help="How many to play, of each policy.")] = 10,
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="best|latest|STEP,...",
            help="Which policy of the run; of several, the episodes are kept in that order.",
        ),
    ] = "best",
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="P,P,...",
            help="Play as many with each of these shares of random actions: 0,0.25,0.5",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the environments.")] = 0,
    written: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.GUERDON,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace demonstrations that DIR holds.")
    ] = False,
) -> None:
    """Plays episodes with the policy of a run, and keeps them as demonstrations."""
    levels = noise_levels(noise)
    if written is Format.MINARI:
        if levels:
            raise ValueError("Minari has no place for the level of noise: leave out --noise")
    elif not overwrite and (Path(out) / "meta.json").exists():
        raise ValueError(f"{out} holds demonstrations: add --overwrite to replace them")
    from rich.progress import Progress

    from guerdon.training.experts import collect_run

    with Progress(transient=True) as bar:
        task = bar.add_task("episodes", total=None)
        played = collect_run(
            run,
            episodes,
            checkpoint=[checkpoint_of(each) for each in checkpoint.split(",")],
            noise=levels,
            seed=seed,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if written is Format.MINARI:
        _write_minari(played, out)
    else:
        from guerdon.data.demonstrations import save_demonstrations

        save_demonstrations(played, out, overwrite=overwrite)
    typer.echo(_in_words(played, out))


def noise_levels(text: str | None) -> list[float]:
    """The shares of random actions that an option names.

    Args:
        text: Shares with commas between them.
    """
    try:
        levels = [] if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        levels = [-1.0]
    if not all(0 <= level <= 1 for level in levels):
        raise ValueError(f"--noise takes shares between 0 and 1, as in 0,0.25,0.5, not {text!r}")
    return levels


def _write_minari(played: "Demonstrations", out: str) -> None:
    from guerdon.data.minari import to_minari

    try:
        to_minari(played, out)
    except ValueError as error:  # of an id that is taken, or is none
        raise ValueError(f"Minari does not take {out!r}: {error}") from error


def _in_words(played: "Demonstrations", out: str) -> str:
    returns, lengths = played.returns, played.lengths
    return (
        f"wrote {len(played)} episode{'s' * (len(played) != 1)} ({lengths.sum():,} steps, return "
        f"{returns.mean():.2f} ± {returns.std():.2f}) to {out}"
    )

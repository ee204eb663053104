"""``guerdon collect``: demonstrations of the policy of a run."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from guerdon.cli import common


def collect(
    run: common.Run,
    out: Annotated[
        str,
        typer.Option(metavar="DIR", help="Output directory; for minari, an id: cartpole/mine-v0."),
    ],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of each policy.")] = 10,
    checkpoint: common.Checkpoints = "best",
    noise: common.Noise = None,
    seed: common.Seed = 0,
    written: Annotated[
        Literal["guerdon", "minari"], typer.Option("--format", help="File format.")
    ] = "guerdon",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace demonstrations in DIR.")
    ] = False,
) -> None:
    """Plays episodes with the policy of a run, and saves them as demonstrations."""
    levels, minari = common.noise_levels(noise), written == "minari"
    if minari and levels:
        raise ValueError("Minari has no place for the level of noise: leave out --noise")
    from guerdon.data.demonstrations import check_folder, save_demonstrations
    from guerdon.data.minari import to_minari
    from guerdon.training.experts import collect_run

    if not minari:
        check_folder(Path(out), overwrite)
    with common.progress(episodes=None) as update:
        played = collect_run(
            run,
            episodes,
            checkpoint=[common.checkpoint_of(each) for each in checkpoint.split(",")],
            noise=levels,
            seed=seed,
            progress=partial(update, "episodes"),
        )
    if not minari:
        save_demonstrations(played, out, overwrite=overwrite)
    else:
        try:
            to_minari(played, out)
        except ValueError as error:  # of an id that is taken, or is none
            raise ValueError(f"Minari does not take {out!r}: {error}") from error
    returns = played.returns
    typer.echo(
        f"wrote {common.count(len(played), 'episode')} ({played.lengths.sum():,} steps, return "
        f"{returns.mean():.2f} ± {returns.std():.2f}) to {out}"
    )

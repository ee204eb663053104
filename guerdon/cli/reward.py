"""``guerdon reward``: what there is to do with a reward alone."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guerdon.cli.reward_collect import collect
from guerdon.cli.train import INTERRUPTED, Shown, split

if TYPE_CHECKING:
    from guerdon.training.probe import Probe

app = typer.Typer(no_args_is_help=True)
app.command("collect")(collect)


@app.callback()
def _options() -> None:
    """Looks at rewards, collects pictures of success, and fits classifiers of it."""


@app.command("probe")
def probe(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="PRESET|FILE|KEY=VALUE",
            help="What to run, and changes to it, as for `guerdon train`.",
            show_default=False,
        ),
    ],
    episodes: Annotated[int, typer.Option(min=1, help="Of each kind that is played.")] = 10,
    steps: Annotated[int, typer.Option(min=0, help="Transitions to train the reward on.")] = 5_000,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Shows what a reward says of good and bad behaviour, before any policy learns from it."""
    import json
    from dataclasses import asdict

    from guerdon.config import compose, explain
    from guerdon.training.probe import probe as probed

    config = compose(*split(arguments))
    found = probed(config, episodes=episodes, steps=steps, display="none" if as_json else "auto")
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    typer.echo(explain(config))
    _show(found)
    typer.echo(f"{found.ranking}\n{found.verdict}")


def _show(found: "Probe") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(
        ("", "a step", "an episode", "lowest", "highest", "length", "true return")
    ):
        table.add_column(name, justify="right" if number else "left")
    for row in found.rows:
        values = (row.per_step, row.per_episode, row.lowest, row.highest)
        texts = [f"{value:.3f}" for value in values]
        table.add_row(row.name, *texts, f"{row.length:.1f}", f"{row.true_return:.1f}")
    Console().print(table)


@app.command("fit")
def fit(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="PRESET|FILE|KEY=VALUE",
            help="What to fit, and changes to it: reach_classifier reward.optim.lr=3e-4",
            show_default=False,
        ),
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a fit that reward.save_dir holds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON, alone.")] = False,
    display: Annotated[
        Shown, typer.Option(help="auto: live on a terminal, else lines.")
    ] = Shown.AUTO,
) -> None:
    """Fits a classifier that sees success in collected frames, for `guerdon train` to learn from.

    Ctrl-C saves before it stops.
    """
    import json

    from rich.console import Console
    from rich.progress import Progress

    from guerdon.training.fit import fit as fitted
    from guerdon.training.fit import read_frames
    from guerdon.training.fit_files import compose_fit

    source, overrides = split(arguments)
    config = compose_fit(source, overrides)
    console = Console(stderr=True)
    with Progress(transient=True, disable=not console.is_terminal, console=console) as bar:
        task = bar.add_task("files", total=None)
        frames = read_frames(config, lambda n, total: bar.update(task, completed=n, total=total))
    mode = Shown.NONE if as_json else display
    result = fitted(config, overwrite=overwrite, display=mode.value, frames=frames)
    if as_json:
        typer.echo(json.dumps(result, indent=1))
    else:
        _show_fit(result, source)
    if result["stop_reason"] == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _show_fit(result: dict[str, Any], source: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from guerdon.config import sources

    numbers = result["validation"]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right", style="bold")
    for name, key, form in (
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
    ):
        value = numbers[key]
        table.add_row(name, "-" if value is None else format(value, form))
    typer.echo(
        f"on {numbers['frames']:,} frames of {numbers['episodes']:,} held-out episodes, "
        f"step {result['best_step']:,} of {result['steps']:,}:"
    )
    Console().print(table)
    folder = shlex.quote(result["save_dir"])
    if result["stop_reason"] == "interrupted":
        typer.echo(
            f"interrupted after {result['steps']:,} steps, which are saved in {folder}. To fit it "
            "to the end, start again with --overwrite"
        )
        return
    preset = f"{(source or '').removesuffix('_classifier')}_ppo"
    known = preset in sources.options("preset")
    typer.echo(
        f"fitted in {result['seconds']:.0f} s; next: guerdon train {preset if known else 'PRESET'} "
        f"reward=classifier reward.checkpoint_path={folder}"
    )

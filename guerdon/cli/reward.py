"""``guerdon reward``: what there is to do with a reward alone."""

from typing import TYPE_CHECKING, Annotated

import typer

from guerdon.cli.train import split

if TYPE_CHECKING:
    from guerdon.training.probe import Probe

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _options() -> None:
    """Looks at rewards."""


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

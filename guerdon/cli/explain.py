"""``guerdon explain``: what reward a configuration really learns from."""

from typing import Annotated

import typer

from guerdon.cli.train import split


def explain(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="PRESET|FILE|KEY=VALUE",
            help="What to run, and changes to it, as for `guerdon train`.",
            show_default=False,
        ),
    ],
    full: Annotated[bool, typer.Option("--full", help="Show the whole configuration too.")] = False,
) -> None:
    """Shows the resolved reward pipeline in one line."""
    from guerdon import config

    resolved = config.compose(*split(arguments))
    typer.echo(config.explain(resolved))
    if full:
        typer.echo(f"\n{config.to_yaml(resolved)}", nl=False)

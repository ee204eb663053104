"""``guerdon explain``: what reward a configuration learns from."""

from typing import Annotated

import typer

from guerdon.cli.common import Arguments, split


def explain(
    arguments: Arguments,
    full: Annotated[bool, typer.Option("--full", help="Show the whole configuration too.")] = False,
) -> None:
    """Shows the resolved reward pipeline in one line."""
    from guerdon import config
    from guerdon.entry import compose

    resolved = compose(*split(arguments))
    typer.echo(config.explain(resolved))
    if full:
        typer.echo(f"\n{config.to_yaml(resolved)}", nl=False)

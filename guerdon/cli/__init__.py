"""The command line: one file per verb."""

from typing import Annotated

import typer

from guerdon import __version__
from guerdon.cli import demo

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"guerdon {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-v", callback=_show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Reinforcement learning for people whose reward has to be learned."""


app.command("demo")(demo.demo)


def main() -> None:
    """The entry point of the command ``guerdon``."""
    app()

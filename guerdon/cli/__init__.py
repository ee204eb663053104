"""The command line."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from guerdon import __version__
from guerdon.cli import errors, info, rewards, runs, sweep

Mode = Literal["serial", "parallel", "eval"]

app = typer.Typer(
    cls=errors.Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)
reward = typer.Typer(
    no_args_is_help=True, help="Probes rewards, collects images, and fits success classifiers."
)
app.command("train")(runs.train)
app.command("sweep")(sweep.search)
app.command("eval")(runs.evaluate)
app.command("collect")(runs.collect)
app.add_typer(reward, name="reward")
reward.command("collect")(rewards.collect)
reward.command("fit")(rewards.fit)
reward.command("probe")(rewards.probe)
app.command("list")(info.list_options)
app.command("plot")(runs.plot)
app.command("explain")(info.explain)
app.command("demo")(rewards.demo)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"guerdon {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    mode: Annotated[
        Mode | None, Option("--mode", "-m", help="Without a command: train, or evaluate.")
    ] = None,
    config: Annotated[
        str | None,
        Option("--config", "-c", metavar="FILE", help="With -m: a config file, or a run."),
    ] = None,
    seed: Annotated[int | None, Option("--seed", "-s", min=0, help="With -m: random seed.")] = None,
    _version: Annotated[
        bool,
        Option("--version", "-v", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Reinforcement learning for people whose reward has to be learned."""
    if mode is None and config is None and seed is None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())
        return
    if context.invoked_subcommand is not None:
        raise ValueError(
            f"-m, -c and -s stand alone: leave them out, or `{context.invoked_subcommand}`"
        )
    mode = mode or "serial"
    if mode == "parallel":
        raise ValueError("-m parallel is not there yet: use -m serial")
    if config is None:
        raise ValueError(f"-m {mode} needs a config: add -c FILE")
    if mode == "serial":
        runs.train([config, *([] if seed is None else [f"seed={seed}"])])
    else:
        runs.evaluate(_run_of(config), seed=seed or 0)


def _run_of(config: str) -> Path:
    """Return the run directory of a config file: its folder, or its ``run.dir``."""
    from guerdon.entry import compose

    path = Path(config)
    folder = path if path.is_dir() else path.parent
    if (folder / "checkpoints").is_dir():
        return folder
    named = compose(config).run.dir
    if named is None:
        raise ValueError(
            f"{config} belongs to no run that could be evaluated: give a run directory, as in "
            f"-m eval -c RUN"
        )
    return Path(named)


def main() -> None:
    """The entry point of the command ``guerdon``."""
    app(prog_name="guerdon")

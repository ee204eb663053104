"""The command line: one file per verb."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from guerdon import __version__
from guerdon.cli import demo, errors, explain, plot, reward_collect, reward_fit, reward_probe, train
from guerdon.cli.collect import collect
from guerdon.cli.eval import evaluate
from guerdon.cli.list import list_options

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


Mode = Literal["serial", "parallel", "eval"]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"guerdon {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    mode: Annotated[
        Mode | None, typer.Option("--mode", "-m", help="Without a command: train, or evaluate.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", metavar="FILE", help="With -m: a config file, or a run."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", "-s", min=0, help="With -m: random seed.")
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", "-v", callback=_show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Reinforcement learning for people whose reward has to be learned."""
    asked = [value for value in (mode, config, seed) if value is not None]
    if context.invoked_subcommand is not None:
        if asked:
            raise ValueError(
                f"-m, -c and -s stand alone: leave them out, or `{context.invoked_subcommand}`"
            )
    elif asked:
        _run_mode(mode or "serial", config, seed)
    else:
        typer.echo(context.get_help())


def _run_mode(mode: Mode, config: str | None, seed: int | None) -> None:
    """Runs ``guerdon -m serial -c FILE -s SEED``."""
    if mode == "parallel":
        raise ValueError("-m parallel is not there yet: use -m serial")
    if config is None:
        raise ValueError(f"-m {mode} needs a config: add -c FILE")
    if mode == "serial":
        train.run(config, seed=seed)
    else:
        evaluate(_run_of(config), seed=seed or 0)


def _run_of(config: str) -> Path:
    """The run of a config file: its folder, or its ``run.dir``."""
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


app.command("train")(train.train)
app.command("eval")(evaluate)
app.command("collect")(collect)
app.add_typer(reward, name="reward")
reward.command("collect")(reward_collect.collect)
reward.command("fit")(reward_fit.fit)
reward.command("probe")(reward_probe.probe)
app.command("list")(list_options)
app.command("plot")(plot.plot)
app.command("explain")(explain.explain)
app.command("demo")(demo.demo)


def main() -> None:
    """The entry point of the command ``guerdon``."""
    app(prog_name="guerdon")

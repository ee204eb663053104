"""The command line."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from guerdon import __version__, startup
from guerdon.cli import common, errors, info, rewards, runs, sweep

Mode = Literal["serial", "parallel", "eval"]

app = typer.Typer(
    cls=errors.Group,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
reward = typer.Typer(
    no_args_is_help=True, help="Probe and compare rewards, and fit success classifiers."
)
app.add_typer(reward, name="reward")


def _add(group: typer.Typer, name: str, verb: Callable[..., None], *examples: str) -> None:
    """Add a command, with examples at the end of its help."""
    lines = [f"  guerdon {example}" for example in examples]
    group.command(name, epilog="\n".join(["\b", "Examples:", *lines]))(verb)


_add(
    app, "train", runs.train,
    "train cartpole_ppo run.max_steps=20_000",
    "train env=pendulum policy=sac policy.gamma=0.98 seed=3",
    "train env=cartpole seed=0,1,2 policy.learning_rate=1e-3,3e-4 --jobs 2",
    "train --resume runs/cartpole_ppo/20260101-120000-0",
)  # fmt: skip
_add(
    app, "sweep", sweep.search,
    "sweep cartpole_ppo policy.gamma=0.9,0.99 --trials 10",
    "sweep cartpole_ppo 'policy.learning_rate=tag(log,interval(1e-4,1e-2))' seed=0,1,2",
)  # fmt: skip
_add(app, "eval", runs.evaluate, "eval RUN --episodes 50", "eval RUN --checkpoint latest --video")
_add(
    app, "collect", runs.collect,
    "collect RUN --out demos --episodes 20",
    "collect RUN --out cartpole/mine-v0 --format minari",
)  # fmt: skip
_add(
    reward, "collect", rewards.collect,
    "reward collect RUN --out frames --noise 0,0.25,0.5",
)  # fmt: skip
_add(reward, "fit", rewards.fit, "reward fit reach_classifier reward.optim.lr=3e-4")
_add(reward, "probe", rewards.probe, "reward probe cartpole_ppo_gail --episodes 20")
_add(
    reward, "compare", rewards.compare,
    "reward compare RUN RUN env --out comparison",
    "reward compare RUN RUN --on demos --json",
)  # fmt: skip
_add(reward, "serve", rewards.serve, "reward serve cartpole_ppo_gail --port 8000")
_add(app, "list", info.list_options, "list presets", "list envs --all")
_add(app, "plot", runs.plot, "plot runs/cartpole_ppo/* --title CartPole --smooth 0.6")
_add(app, "report", runs.report, "report RUN", "report reward_models/reach_classifier")
_add(
    app, "export", runs.export,
    "export RUN --onnx policy.onnx",
    "export RUN --part reward --onnx reward.onnx",
)  # fmt: skip
_add(
    app, "explain", info.explain,
    "explain policy.gamma",
    "explain policy.clip_range policy=ppo",
    "explain reward.terms.gail.form",
    "explain cartpole_ppo_gail reward.clip=[-1,1] --full",
)  # fmt: skip
_add(app, "demo", rewards.demo, "demo --out demo")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"guerdon {__version__}")
        raise typer.Exit


_HOST = "With -m parallel: its host."


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
    seed: Annotated[
        int | None, Option("--seed", "-s", metavar="INT", min=0, help="With -m: random seed.")
    ] = None,
    platform: Annotated[
        common.Platform, Option("--platform", "-p", help="With -m parallel: where to run.")
    ] = "local",
    coordinator_host: Annotated[
        str | None, Option("--coordinator_host", "-ch", metavar="HOST", help=_HOST)
    ] = None,
    learner_host: Annotated[
        str | None, Option("--learner_host", "-lh", metavar="HOST", help=_HOST)
    ] = None,
    actor_host: Annotated[
        str | None, Option("--actor_host", "-ah", metavar="HOST", help=_HOST)
    ] = None,
    _version: Annotated[
        bool,
        Option("--version", "-v", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Reinforcement learning for people whose reward has to be learned."""
    hosts = (coordinator_host, learner_host, actor_host)
    parallel = mode == "parallel" or platform != "local" or any(hosts)
    if mode is None and config is None and seed is None and not parallel:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())
        return
    if context.invoked_subcommand is not None:
        raise ValueError(
            f"-m, -c and -s take no command: leave them out, or `{context.invoked_subcommand}`"
        )
    if parallel and mode not in (None, "parallel"):
        raise ValueError(f"-p, -ch, -lh and -ah are for -m parallel, not -m {mode}: leave them out")
    mode = mode or ("parallel" if parallel else "serial")
    if config is None:
        raise ValueError(f"-m {mode} needs a config: add -c FILE")
    seeds = [] if seed is None else [f"seed={seed}"]
    if mode == "serial":
        from guerdon.compat.nervex.worker.learner import SerialLearner

        runs.run(config, seeds, callback=SerialLearner())
    elif mode == "parallel":
        runs.run_on(platform, config, seeds, hosts)
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
            f"{config} does not belong to a run: give a run directory, as in -m eval -c RUN"
        )
    return Path(named)


def main() -> None:
    """Run the command ``guerdon``."""
    startup.install()
    try:
        app(prog_name="guerdon")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or startup.interrupted():
            sys.exit(startup.INTERRUPTED)  # also for what an interrupted function raised instead
        raise
    finally:  # everything is written; nothing is left to interrupt
        signal.signal(signal.SIGINT, signal.SIG_IGN)

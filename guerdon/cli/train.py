"""``guerdon train``: from a preset, a file or overrides to a finished run."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from guerdon.cli.common import INTERRUPTED, Display, split
from guerdon.cli.reward_collect import trajectories_in_words


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PRESET|FILE|KEY=VALUE",
            help="Preset (`guerdon list presets`) or file, and overrides: cartpole_ppo seed=3",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run directory to resume.")
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Resume from the last scheduled checkpoint, to repeat the run bit for bit.",
        ),
    ] = False,
    from_reward: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Learn from the reward of this run, frozen.")
    ] = None,
    display: Display = "auto",
) -> None:
    """Trains a policy, and writes a run directory.

    Ctrl-C saves before it stops; `--resume RUN` continues from there.
    """
    source, overrides = split(arguments or [])
    if source is None and not overrides and resume is None:
        raise ValueError(
            "nothing to train is named: give a preset (`guerdon list presets` shows them), "
            "a config file, or env=NAME policy=NAME"
        )
    run(
        source, overrides,
        resume=resume, exact=exact, from_reward=from_reward, display=display,
    )  # fmt: skip


def run(source: str | None, overrides: Sequence[str] = (), **options: Any) -> None:
    """Trains, and prints the result and the next command.

    Args:
        source: A preset or a file.
        overrides: Changes to it.
        **options: Of `guerdon.train`.
    """
    from guerdon.config import sources
    from guerdon.entry import train

    summary = train(source, *overrides, **options)
    steps, folder = f"{summary['env_steps']:,}", shlex.quote(summary["run_dir"])
    if summary["stop_reason"] == "interrupted":
        typer.echo(f"interrupted at step {steps}; resume with: guerdon train --resume {folder}")
        raise typer.Exit(INTERRUPTED)
    typer.echo(
        f"return {summary['eval_return_mean']:.2f} ± {summary['eval_return_std']:.2f} after "
        f"{steps} steps, in {folder}; next: guerdon eval {folder}, guerdon plot {folder}"
    )
    if "trajectories" in summary:
        config = sources.read(Path(summary["run_dir"]))
        data = config["reward"]["data_collection"]
        typer.echo(trajectories_in_words(config["run"]["name"], data, **summary["trajectories"]))

"""``guerdon train``: from a preset, a file or overrides to a finished run."""

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

INTERRUPTED = 130  # as a shell has it: 128 and the number of the signal
_OVERRIDE = re.compile(r"~|[+]{0,2}[\w.]+=")


class Shown(StrEnum):
    """What can be shown while a run goes on."""

    AUTO = "auto"
    LIVE = "live"
    LINES = "lines"
    NONE = "none"


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PRESET|FILE|KEY=VALUE",
            help="What to run (`guerdon list presets`), and changes to it: cartpole_ppo seed=3",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with the run in this folder.", show_default=False),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Resume from the last scheduled checkpoint, to repeat the run bit for bit.",
        ),
    ] = False,
    from_reward: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Learn from the reward of this run, as it is.", show_default=False
        ),
    ] = None,
    display: Annotated[
        Shown, typer.Option(help="auto: live on a terminal, else lines.")
    ] = Shown.AUTO,
) -> None:
    """Trains a policy, and leaves a run folder.

    Ctrl-C saves before it stops; `--resume RUN` goes on from there.
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
    """Trains, and says how it went and what to do next.

    Args:
        source: A preset or a file.
        overrides: Changes to it.
        **options: Of `guerdon.train`.
    """
    from guerdon.training.run import train

    summary = train(source, *overrides, **options)
    steps, folder = f"{summary['env_steps']:,}", shlex.quote(summary["run_dir"])
    if summary["stop_reason"] == "interrupted":
        typer.echo(f"interrupted at step {steps}; go on with: guerdon train --resume {folder}")
        raise typer.Exit(INTERRUPTED)
    typer.echo(
        f"return {summary['eval_return_mean']:.2f} ± {summary['eval_return_std']:.2f} after "
        f"{steps} steps, in {folder}; next: guerdon eval {folder}, guerdon plot {folder}"
    )
    if "trajectories" in summary:
        from guerdon.config import sources

        config = sources.read(Path(summary["run_dir"]))
        data = config["reward"]["data_collection"]
        typer.echo(trajectories_in_words(config["run"]["name"], data, **summary["trajectories"]))


def trajectories_in_words(
    name: str, data: Mapping[str, Any], positive: int, negative: int, more: str = ""
) -> str:
    """How many trajectories there are, and how to fit a classifier to them.

    Args:
        name: Of the run that they come from.
        data: Of them: ``positive_dir``, ``negative_dir`` and ``image_keys``.
        positive: Positive ones.
        negative: Negative ones.
        more: To say of them.
    """
    from guerdon.config import sources

    folders = {kind: shlex.quote(data[kind]) for kind in ("positive_dir", "negative_dir")}
    said = f"{positive:,} positive and {negative:,} negative trajectories are in " + " and ".join(
        folders.values()
    )
    if not positive + negative:
        return (
            f"{said}{more}: no episode ended; checkpoints break them off, so let more steps be "
            f"between these ('run.checkpoint_every')"
        )
    if not positive:
        return f"{said}{more}; a classifier has to be shown successes: collect until there are some"
    if not negative:
        more += (
            " (without failures false positives go unseen: `guerdon reward collect --noise 0.5`)"
        )
    known = sources.options("fit")
    presets = [fit for fit in known if name.startswith(fit.removesuffix("classifier"))]
    options = [f"reward.data.{kind}={folder}" for kind, folder in folders.items()]
    if data["image_keys"] != ["base_camera"]:
        cameras = f"reward.model.image_keys=[{','.join(data['image_keys'])}]"
        options.append(shlex.quote(cameras))
    from guerdon.nn.classifier import ClassifierConfig

    size = _size_of_frames(data)
    if size is not None and size != ClassifierConfig().image_size:
        options.append(shlex.quote(f"reward.model.image_size=[{','.join(map(str, size))}]"))
    return f"{said}{more}; next: {' '.join(['guerdon reward fit', *presets[:1], *options])}"


def _size_of_frames(data: Mapping[str, Any]) -> list[int] | None:
    """Channels, height and width of collected frames, by the first file that can be read."""
    from guerdon.data.trajectory_files import read_trajectory

    for kind in ("positive_dir", "negative_dir"):
        for path in sorted(Path(data[kind]).glob("*.np[yz]")):
            with suppress(OSError, ValueError, KeyError):
                return list(read_trajectory(path).images[data["image_keys"][0]].shape[1:])
    return None


def split(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The preset or file among arguments, and the overrides.

    Args:
        arguments: In any order.
    """
    sources = [argument for argument in arguments if not _OVERRIDE.match(argument)]
    if len(sources) > 1:
        raise ValueError(
            f"one preset or file is run at a time, not {' and '.join(map(repr, sources))}: "
            f"write changes as KEY=VALUE"
        )
    overrides = [argument for argument in arguments if argument not in sources]
    return sources[0] if sources else None, overrides

"""``guerdon reward collect``: camera frames of the policy of a run."""

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from guerdon.cli import common


def collect(
    run: common.Run,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Output: DIR/positive and DIR/negative.")
    ],
    episodes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most episodes of each policy; until both folders are full if left out."
        ),
    ] = None,
    checkpoint: common.Checkpoints = "best",
    noise: common.Noise = None,
    positive: Annotated[
        int, typer.Option(min=0, help="Trajectories with a success at which to stop.")
    ] = 500,
    negative: Annotated[
        int, typer.Option(min=0, help="Trajectories without a success at which to stop.")
    ] = 500,
    image_keys: Annotated[str, typer.Option(metavar="NAME,...", help="Cameras.")] = "base_camera",
    image_size: Annotated[
        str | None,
        typer.Option(
            metavar="C,H,W", help="Channels, height and width to resize images to: 3,64,64"
        ),
    ] = None,
    written: Annotated[
        Literal["npz", "npy"], typer.Option("--format", help="npy: uncompressed, as of RLinf.")
    ] = "npz",
    seed: common.Seed = 0,
) -> None:
    """Plays with the policy of a run, and saves camera frames for `guerdon reward fit`.

    Continues from what DIR holds. Ctrl-C stops after the current episodes.
    """
    levels = common.noise_levels(noise)
    checkpoints = [common.checkpoint_of(each) for each in checkpoint.split(",")]
    from guerdon.config import sources
    from guerdon.config.schema import DataCollectionConfig
    from guerdon.config.validation import validated
    from guerdon.training.collect_frames import collect_frames

    data = {
        "positive_dir": str(out / "positive"),
        "negative_dir": str(out / "negative"),
        "image_keys": image_keys.split(","),
        "image_size": _size(image_size),
        "max_positive_trajectories": positive,
        "max_negative_trajectories": negative,
        "format": written,
    }
    with common.progress(positive=positive, negative=negative) as update:

        def show(*numbers: int) -> None:
            for kind, number in zip(("positive", "negative"), numbers, strict=True):
                update(kind, number)

        found = collect_frames(
            run,
            validated(DataCollectionConfig, data),
            episodes,
            checkpoint=checkpoints,
            noise=levels,
            seed=seed,
            progress=show,
        )
    hint = ""
    if found.stop_reason == "nothing_new":
        hint = ", the last of which brought nothing new: try other policies with --noise or "
        hint += "--checkpoint"
    more = f" ({found.new:,} new, of {found.episodes:,} episodes{hint})"
    name = sources.read(run)["run"]["name"]
    typer.echo(trajectories_in_words(name, data, found.positive, found.negative, more))
    if found.stop_reason == "interrupted":
        raise typer.Exit(common.INTERRUPTED)


def _size(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){2}", text):
        raise ValueError(
            f"--image-size takes channels, height and width, as in 3,64,64, not {text!r}"
        )
    return [int(number) for number in text.split(",")]


def trajectories_in_words(
    name: str, data: Mapping[str, Any], positive: int, negative: int, more: str = ""
) -> str:
    """The numbers of trajectories, and the command that fits a classifier to them.

    Args:
        name: Name of the run that they come from.
        data: ``positive_dir``, ``negative_dir`` and ``image_keys``.
        positive: Number of positive ones.
        negative: Number of negative ones.
        more: Text after the numbers.
    """
    from guerdon.config import sources
    from guerdon.nn.classifier import ClassifierConfig

    folders = {kind: shlex.quote(data[kind]) for kind in ("positive_dir", "negative_dir")}
    where = " and ".join(folders.values())
    said = f"{positive:,} positive and {negative:,} negative trajectories are in {where}"
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

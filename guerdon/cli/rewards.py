"""``guerdon reward collect``, ``fit``, ``probe`` and ``compare``, and ``guerdon demo``."""

import json
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from guerdon.cli import common
from guerdon.startup import INTERRUPTED

METRICS = (
    ("PR-AUC", "pr_auc", ".4f"),
    ("precision", "precision", ".1%"),
    ("recall", "recall", ".1%"),
    ("false positives, of frames without success", "false_positive_rate", ".2%"),
    ("false positives, of episodes without success", "episode_false_positive_rate", ".1%"),
    ("calibration error", "calibration_error", ".4f"),
    ("  before the temperature", "calibration_error_before", ".4f"),
    ("threshold", "threshold", ".4f"),
    ("temperature", "temperature", ".3f"),
    ("frames with success, of all", "base_rate", ".1%"),
)
# Stages of the demo, shorter than the presets.
DEMO: dict[str, Any] = {
    "collect": ("run.max_steps=40_000",),
    "fit": ("reward.num_epochs=4", "reward.save_interval=250"),
    "learn": ("run.max_steps=60_000",),
    "both": ("eval.episodes=50", "eval.n_envs=50", "eval.every=15_000"),
}


NEW_RUN = ("reward.collect_data=false", "run.dir=null")
"""Overrides with which a run directory or a file is the source of another run."""


def collect(
    run: common.Run,
    out: Annotated[Path, Option(metavar="DIR", help="Output: DIR/positive and DIR/negative.")],
    episodes: Annotated[
        int | None,
        Option(metavar="INT", min=1, help="Most episodes of each policy. Default: no limit."),
    ] = None,
    checkpoint: common.Checkpoints = "best",
    noise: common.Noise = None,
    positive: Annotated[
        int, Option(metavar="INT", min=0, help="Stop at so many trajectories with a success.")
    ] = 500,
    negative: Annotated[
        int, Option(metavar="INT", min=0, help="Stop at so many trajectories without.")
    ] = 500,
    image_keys: Annotated[str, Option(metavar="NAME,...", help="Cameras.")] = "base_camera",
    image_size: Annotated[
        str | None,
        Option(metavar="C,H,W", help="Channels, height and width to resize images to: 3,64,64"),
    ] = None,
    written: Annotated[
        Literal["npz", "npy"], Option("--format", help="npy: uncompressed, as of RLinf.")
    ] = "npz",
    seed: common.Seed = 0,
    trust: common.Trust = False,
) -> None:
    """Save camera frames of the policy of a run, for `reward fit`.

    Adds to the files in DIR. Ctrl-C stops after the current episodes.
    """
    levels = common.noise_levels(noise)
    checkpoints = [common.checkpoint_of(each) for each in checkpoint.split(",")]
    if image_size is not None and not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){2}", image_size):
        raise ValueError(
            f"--image-size takes channels, height and width, as in 3,64,64, not {image_size!r}"
        )
    from guerdon.config import sources
    from guerdon.config.schema import DataCollectionConfig
    from guerdon.config.trust import code_of
    from guerdon.config.validation import validated
    from guerdon.training.replay import collect_frames

    data = {
        "positive_dir": str(out / "positive"),
        "negative_dir": str(out / "negative"),
        "image_keys": image_keys.split(","),
        "image_size": image_size and [int(number) for number in image_size.split(",")],
        "max_positive_trajectories": positive,
        "max_negative_trajectories": negative,
        "format": written,
    }
    bars = common.progress(positive=positive, negative=negative)
    with bars as update, code_of(run, trust=trust):

        def show(n_positive: int, n_negative: int) -> None:
            update("positive", n_positive)
            update("negative", n_negative)

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
    if found["stop_reason"] == "nothing_new":
        hint = ", the last of which brought nothing new: try other policies with --noise or "
        hint += "--checkpoint"
    more = f" ({found['new']:,} new, of {found['episodes']:,} episodes{hint})"
    name = sources.read(run)["run"]["name"]
    words = [str(run), *NEW_RUN]
    numbers = found["positive"], found["negative"]
    typer.echo(trajectories_in_words(name, data, *numbers, words=words, more=more))
    if found["stop_reason"] == "interrupted":
        raise typer.Exit(INTERRUPTED)


def trajectories_in_words(
    name: str,
    data: Mapping[str, Any],
    positive: int,
    negative: int,
    *,
    words: Sequence[str] = (),
    more: str = "",
) -> str:
    """Return the numbers of trajectories, and the command that fits a classifier to them.

    Args:
        name: Name of the run that they come from.
        data: ``positive_dir``, ``negative_dir`` and ``image_keys``.
        positive: Number of positive ones.
        negative: Number of negative ones.
        words: Arguments of `guerdon train` for the environment that they come from.
        more: Text after the numbers.
    """
    from guerdon.config import sources
    from guerdon.data.frames import read_trajectory
    from guerdon.nn.classifier import ClassifierConfig

    folders = {kind: shlex.quote(data[kind]) for kind in ("positive_dir", "negative_dir")}
    where = " and ".join(folders.values())
    said = f"{positive:,} positive and {negative:,} negative trajectories are in {where}{more}"
    if not positive + negative:
        return (
            f"{said}: no episode ended; checkpoints truncate them, so let more steps be between "
            "these ('run.checkpoint_every')"
        )
    if not positive:
        return f"{said}; a classifier has to be shown successes: collect until there are some"
    if not negative:
        said += (
            " (without failures false positives go unseen: `guerdon reward collect --noise 0.5`)"
        )
    presets = [
        fit for fit in sources.options("fit") if name.startswith(fit.removesuffix("classifier"))
    ]
    options = [f"reward.data.{kind}={folder}" for kind, folder in folders.items()]
    if not presets:
        own = re.sub(r"\W+", "_", name).strip("_")
        options.append(f"reward.save_dir=reward_models/{own}_classifier")
    if words and [*words] != [f"{fit.removesuffix('classifier')}ppo" for fit in presets[:1]]:
        # As a YAML string: the arguments may have brackets and colons.
        options.append(shlex.quote(f"train={json.dumps(shlex.join(words))}"))
    keys = data["image_keys"]
    if keys != ["base_camera"]:
        options.append(shlex.quote(f"reward.model.image_keys=[{','.join(keys)}]"))
    for path in (path for kind in folders for path in sorted(Path(data[kind]).glob("*.np[yz]"))):
        with suppress(OSError, ValueError, KeyError):  # the first file that can be read
            size = list(read_trajectory(path).images[keys[0]].shape[1:])
            if size != ClassifierConfig().image_size:
                options.append(shlex.quote(f"reward.model.image_size=[{','.join(map(str, size))}]"))
            break
    return f"{said}; next: {' '.join(['guerdon reward fit', *presets[:1], *options])}"


def fit(
    arguments: Annotated[
        list[str] | None, Argument(metavar=common.SOURCE, help="Preset or file, and overrides.")
    ] = None,
    resume: Annotated[
        Path | None, Option(metavar="DIR", help="Continue the fit in DIR, its reward.save_dir.")
    ] = None,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace the fit in reward.save_dir at the end.")
    ] = False,
    as_json: common.AsJson = False,
    display: common.Display = "auto",
) -> None:
    """Fit a success classifier to collected frames.

    Presets: `guerdon list fits`; overrides: reward.optim.lr=3e-4. Ctrl-C saves before it stops;
    `--resume DIR` continues, also after a kill, and the result is the same bit for bit.
    """
    from guerdon.compat.layouts import translated_fit
    from guerdon.training import fit as fitting
    from guerdon.training.fit_files import compose_fit, resumed_config

    source, overrides = common.split(arguments or [])
    if resume is not None and (arguments or overwrite):
        raise ValueError("a fit is resumed with its own config: give --resume DIR alone")
    if resume is None and not arguments:
        raise ValueError("nothing to fit is named: give a preset (`guerdon list fits`) or a file")
    if resume is not None:
        config = resumed_config(resume)
    else:
        config = compose_fit(*translated_fit(source, overrides))
    with common.progress(files=None) as update:
        frames = fitting.read_frames(config, partial(update, "files"))
    mode = "none" if as_json else display
    result = fitting.fit(
        config, overwrite=overwrite, resume=resume is not None, display=mode, frames=frames
    )
    if as_json:
        typer.echo(json.dumps(result, indent=1))
    else:
        _show_fit(result, source, config.train)
    if result["stop_reason"] == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _show_fit(result: dict[str, Any], source: str | None, train: str | None) -> None:
    from guerdon.config import sources

    numbers, folder = result["test"], shlex.quote(result["save_dir"])
    typer.echo(
        f"on {numbers['frames']:,} frames of {numbers['episodes']:,} test episodes, "
        f"step {result['best_step']:,} of {result['steps']:,}:"
    )
    common.show_table(
        (name, "-" if numbers[key] is None else format(numbers[key], form))
        for name, key, form in METRICS
    )
    if result["stop_reason"] == "interrupted":
        typer.echo(
            f"interrupted after {result['steps']:,} steps, which are saved; continue with: guerdon "
            f"reward fit --resume {folder}"
        )
        return
    _show_checks(result)
    known = f"{(source or '').removesuffix('_classifier')}_ppo"
    words = train or (known if known in sources.options("preset") else None)
    command = f"reward=classifier reward.checkpoint_path={folder}"
    following = f"guerdon train {words} {command}"
    if words is None:
        following = f"the `guerdon train` that collected the frames, with {command} instead of "
        following += "reward.collect_data=true"
    typer.echo(
        f"fitted in {result['seconds']:.0f} s; next: {following}\nreport: guerdon report {folder}"
    )


def _show_checks(result: dict[str, Any]) -> None:
    """Show the probes of a fit, and its suspected labels."""
    from guerdon.training.fit_checks import PROBE_COLUMNS, probe_cells

    typer.echo("predicted success of changed frames, and the share accepted at the threshold:")
    common.show_table(map(probe_cells, result["probes"]), PROBE_COLUMNS)
    if labels := result["labels"]:
        typer.echo(
            f"labels that look wrong, by cross-validation on {labels['checked']:,} frames: "
            f"{labels['suspected']:.1%}"
        )


def probe(
    arguments: common.Arguments,
    episodes: Annotated[int, Option(metavar="INT", min=1, help="Episodes of each kind.")] = 10,
    steps: Annotated[
        int, Option(metavar="INT", min=0, help="Transitions to train the reward on.")
    ] = 5_000,
    as_json: common.AsJson = False,
    trust: common.Trust = False,
) -> None:
    """Show the reward of good and bad behaviour before training."""
    from guerdon.config import explain, override_values, sources
    from guerdon.config.trust import code_of
    from guerdon.entry import compose
    from guerdon.lab import probe as probing

    source, overrides = common.split(arguments)
    own = override_values(overrides)
    with code_of(sources.run_dir_of(source), trust=trust, own=own):
        config = compose(source, overrides)
        found = probing.probe(
            config, episodes=episodes, steps=steps, display="none" if as_json else "auto"
        )
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    typer.echo(explain(config))
    rows = []
    for row in found.rows:
        values = (row.per_step, row.per_episode, row.lowest, row.highest)
        texts = [f"{value:.3f}" for value in values]
        rows.append([row.name, *texts, f"{row.length:.1f}", f"{row.true_return:.1f}"])
    columns = ("", "per step", "per episode", "lowest", "highest", "length", "true return")
    common.show_table(rows, columns)
    typer.echo(f"{found.ranking}\n{found.conclusion}")


def compare(
    rewards: Annotated[
        list[str],
        Argument(metavar="REWARD...", help="Runs, fits, or env: the environment's reward."),
    ],
    on: Annotated[
        str | None,
        Option(metavar="RUN|DEMOS", help="Where transitions are from. Default: the first run."),
    ] = None,
    gamma: Annotated[float, Option(metavar="0..1", help="Discount factor of shaping.")] = 0.99,
    episodes: Annotated[
        int, Option(metavar="INT", min=1, help="Episodes of a run at each level of noise.")
    ] = 10,
    noise: Annotated[
        str, Option(metavar="P,P,...", help="Probabilities of a random action in these episodes.")
    ] = "0,0.5,1",
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Write comparison.json and comparison.png to DIR.")
    ] = None,
    seed: common.Seed = 0,
    as_json: common.AsJson = False,
    trust: common.Trust = False,
) -> None:
    """Compare rewards on the same transitions.

    EPIC distance: 0 if rewards differ by a positive scale and potential shaping only, 0.71 if they
    are unrelated, 1 if opposite. Rank correlation: of the returns of episodes.
    """
    levels = common.noise_levels(noise)
    from guerdon.lab.compare import compare_rewards

    found = compare_rewards(
        *rewards, on=on, gamma=gamma, episodes=episodes, noise=levels, seed=seed, out=out,
        trust=trust,
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    typer.echo(f"{found.transitions:,} transitions, {common.count(found.episodes, 'episode')}")
    for title, matrix in (
        ("EPIC distance", found.epic_distance),
        ("rank correlation", found.rank_correlation),
    ):
        rows = zip(found.names, matrix, strict=True)
        texts = ([name, *("-" if v is None else f"{v:.2f}" for v in row)] for name, row in rows)
        common.show_table(texts, (title, *found.names))
    for note in found.notes:
        typer.echo(note)
    if out is not None:
        typer.echo(f"wrote {out / 'comparison.json'} and {out / 'comparison.png'}")


def demo(
    seed: common.Seed = 0,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="Output directory. Default: temporary.")
    ] = None,
) -> None:
    """Learn a reward from images, and a policy from it alone."""
    from guerdon.lab.report import workflow_table, write_report
    from guerdon.training.workflow import Workflow, run_workflow

    if out is not None and out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: name a new folder")
    folder = out or Path(tempfile.mkdtemp(prefix="guerdon_demo_"))
    try:
        result = run_workflow(
            folder, Workflow(**DEMO), seed=seed,
            tell=lambda text: typer.secho(f"\n{text}", bold=True),
        )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo(f"interrupted; the finished stages are in {folder}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo()
    common.show_table(workflow_table(result))
    report = write_report(folder)
    typer.echo(
        f"\nThe report is {report}. Try next:\n"
        f"  guerdon eval {shlex.quote(str(folder / 'learn'))} --video\n"
        f"  guerdon train reach_loophole_ppo reward=classifier "
        f"reward.checkpoint_path={shlex.quote(str(folder / 'classifier'))}\n"
        f"  guerdon train cartpole_fixed_ppo_gail\n"
        f"  guerdon list presets"
    )


def serve(
    run: common.Run,
    port: Annotated[int, Option(metavar="INT", min=0, max=65535, help="Port; 0: a free one.")] = 0,
    host: Annotated[
        str, Option(metavar="ADDRESS", help="Address to listen at; 0.0.0.0: all of this machine.")
    ] = "127.0.0.1",
    trust: common.Trust = False,
) -> None:
    """Serve a learned reward over HTTP.

    Requests need the token: that of the variable GUERDON_TOKEN, or else a new one, which is shown.
    Ctrl-C stops the server.
    """
    import logging
    import os
    import secrets

    from guerdon.parallel.logs import LogFile
    from guerdon.parallel.serve import RewardServer, log
    from guerdon.training.replay import load_reward
    from guerdon.training.run_folder import RunFolder

    given = os.environ.get("GUERDON_TOKEN")
    token = given or secrets.token_urlsafe(16)
    reward, handler = load_reward(run, trust=trust), LogFile(RunFolder(run).served)
    server = RewardServer(reward, token, host, port)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    shown = "that of GUERDON_TOKEN" if given else token
    typer.echo(f"serving {', '.join(server.terms)} at {server.url}, token {shown}")
    try:
        server.serve()
    finally:
        log.info("%s", server.stats())
        log.removeHandler(handler)
        handler.close()

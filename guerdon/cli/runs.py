"""``guerdon train``, ``eval``, ``collect``, ``plot``, ``report`` and ``export``."""

import json
import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from guerdon.cli import common
from guerdon.cli.rewards import NEW_RUN, trajectories_in_words
from guerdon.startup import INTERRUPTED


def train(
    arguments: Annotated[
        list[str] | None,
        Argument(
            metavar=common.SOURCE,
            help="Preset (`guerdon list presets`) or file, and overrides.",
            autocompletion=common.complete,
        ),
    ] = None,
    resume: Annotated[Path | None, Option(metavar="RUN", help="Run directory to resume.")] = None,
    exact: Annotated[
        bool,
        Option("--exact", help="Resume from the last scheduled checkpoint: the same bit for bit."),
    ] = False,
    from_reward: Annotated[
        Path | None, Option(metavar="RUN", help="Learn from the reward of this run, frozen.")
    ] = None,
    platform: Annotated[
        common.Platform,
        Option("--platform", help="With runtime=ray: slurm or k8s write a job, to be submitted."),
    ] = "local",
    sweep_dir: common.SweepDir = None,
    jobs: common.Jobs = 1,
    display: common.Display = "auto",
    trust: common.Trust = False,
) -> None:
    """Train a policy, and write a run directory.

    Ctrl-C saves before it stops; `--resume RUN` continues from there. Several values, as in
    seed=0,1,2, train a run for each combination, and end with a table and a plot.
    """
    source, overrides = common.split(arguments or [])
    if source is None and not overrides and resume is None:
        raise ValueError(
            "nothing to train: give a preset (`guerdon list presets` shows them), a config file, "
            "or env=NAME policy=NAME"
        )
    from guerdon.cli import sweep
    from guerdon.config.compose import parse

    if any(parse(text).is_sweep_override() for text in overrides):
        if resume is not None or exact:
            raise ValueError(
                "--resume and --exact are for a single run: leave them out, or give one value of "
                "each option"
            )
        options = [] if from_reward is None else ["--from-reward", str(from_reward)]
        options += ["--trust"] * trust
        sweep.run_grid(arguments or [], options, sweep_dir, jobs)
        return
    if sweep_dir is not None:
        raise ValueError("--sweep-dir is for several runs: give a list, as in seed=0,1,2")
    if platform != "local":
        if resume is not None or from_reward is not None:
            raise ValueError(
                "--platform is for a new run: add --resume or --from-reward to the command in the "
                "job that it writes"
            )
        run_on(platform, source, overrides)
        return
    run(
        source, overrides,
        resume=resume, exact=exact, from_reward=from_reward, trust=trust, display=display,
    )  # fmt: skip


def run_on(
    platform: str, source: str | None, overrides: list[str], hosts: Sequence[str | None] = ()
) -> None:
    """Train on this machine, or write a job that trains on a cluster.

    Args:
        platform: ``local``, ``slurm`` or ``k8s``.
        source: A preset or file.
        overrides: ``key=value``.
        hosts: Nodes to run on; the same may be there several times.
    """
    chosen = list(dict.fromkeys(filter(None, hosts)))
    if not any(each.startswith("runtime=") for each in overrides):
        overrides = ["runtime=ray", *overrides]
    if platform == "local":
        if chosen:
            raise ValueError("-ch, -lh and -ah are for -p slurm: leave them out, or add -p slurm")
        run(source, overrides)
        return
    from guerdon.entry import compose
    from guerdon.parallel.platforms import write_job

    arguments = [*([] if source is None else [source]), *overrides]
    typer.echo(f"submit with: {write_job(platform, compose(source, overrides), arguments, chosen)}")


def run(source: str | None, overrides: list[str], **options: Any) -> None:
    """Train with options of `guerdon.train`, and print the result."""
    from guerdon import entry
    from guerdon.config import sources

    summary = entry.train(source, *overrides, **options).summary
    steps, folder = summary["env_steps"], shlex.quote(summary["run_dir"])
    amount = f"{steps:,} steps" if steps else f"{summary['updates']:,} updates"
    if summary["stop_reason"] == "interrupted":
        typer.echo(
            f"interrupted after {amount}, which are saved in {folder}; resume with: guerdon train "
            f"--resume {folder}"
        )
        raise typer.Exit(INTERRUPTED)
    learned = summary.get("eval_learned_return_mean")
    also = "" if learned is None else f", learned return {learned:.2f},"
    typer.echo(
        f"return {summary['eval_return_mean']:.2f} ± {summary['eval_return_std']:.2f}{also} after "
        f"{amount}, in {folder}\n"
        f"next: guerdon eval {folder}, guerdon plot {folder}, guerdon report {folder}"
    )
    if "trajectories" in summary:
        config = sources.read(Path(summary["run_dir"]))
        data = config["reward"]["data_collection"]
        # Those of the reward and of the run's folder are not for the next stage.
        own = [
            text for text in overrides if not re.match(r"[+~]*(reward\b|run\.(dir|name)=)", text)
        ]
        words = [summary["run_dir"], *NEW_RUN]
        if options.get("resume") is None:
            named = [] if source is None else [str(source)]
            words = [
                *named,
                *own,
                *([] if source is None or sources.is_preset(source) else NEW_RUN),
            ]
        name, numbers = config["run"]["name"], summary["trajectories"]
        typer.echo(trajectories_in_words(name, data, **numbers, words=words))


def evaluate(
    run: common.Run,
    episodes: Annotated[int, Option(metavar="INT", min=1, help="Number of episodes.")] = 20,
    checkpoint: Annotated[
        str, Option(metavar="best|latest|STEP", help="Policy of the run.")
    ] = "best",
    seed: common.Seed = 0,
    video: Annotated[
        bool, Option("--video", help="Record the first episodes to RUN/videos.")
    ] = False,
    as_json: common.AsJson = False,
    trust: common.Trust = False,
) -> None:
    """Evaluate the policy of a run."""
    from guerdon.config.trust import code_of
    from guerdon.training.replay import evaluate_run

    which = common.checkpoint_of(checkpoint)
    with code_of(run, trust=trust):
        result = evaluate_run(run, checkpoint=which, episodes=episodes, seed=seed, video=video)
    if as_json:
        typer.echo(json.dumps(result, indent=1))
        return
    audit = result["audit"] or {}
    shares = {
        "success at the last step" if audit else "success": result["success_rate"],
        "predicted success": audit.get("reward/success_rate"),
        "true success at prediction": audit.get("eval/success_at_prediction"),
    }
    learned = result["learned_return_mean"]
    numbers = [
        f"return {result['return_mean']:.2f} ± {result['return_std']:.2f}",
        f"min {result['return_min']:.2f}",
        f"max {result['return_max']:.2f}",
        *([] if learned is None else [f"learned return {learned:.2f}"]),
        f"length {result['length_mean']:.1f}",
        *(f"{name} {share:.0%}" for name, share in shares.items() if share is not None),
    ]
    typer.echo(
        f"{result['env']} · {result['policy']} · step {result['step']:,} · "
        f"{common.count(result['episodes'], 'episode')} · seed {result['seed']}"
    )
    typer.echo("   ".join(numbers))
    for path in result["videos"]:
        typer.echo(f"wrote {path}")


def collect(
    run: common.Run,
    out: Annotated[
        str, Option(metavar="DIR", help="Output directory; for minari, an id: cartpole/mine-v0.")
    ],
    episodes: Annotated[int, Option(metavar="INT", min=1, help="Episodes of each policy.")] = 10,
    checkpoint: common.Checkpoints = "best",
    noise: common.Noise = None,
    seed: common.Seed = 0,
    written: Annotated[
        Literal["guerdon", "minari"], Option("--format", help="File format.")
    ] = "guerdon",
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace demonstrations in DIR.")
    ] = False,
    trust: common.Trust = False,
) -> None:
    """Save episodes of the policy of a run as demonstrations."""
    levels, minari = common.noise_levels(noise), written == "minari"
    if minari and levels:
        raise ValueError("Minari datasets cannot store the noise level: leave out --noise")
    from guerdon.config.trust import code_of
    from guerdon.data.demonstrations import check_folder, save_demonstrations
    from guerdon.data.minari import to_minari
    from guerdon.training.replay import collect_run

    if not minari:
        check_folder(Path(out), overwrite)
    with common.progress(episodes=None) as update, code_of(run, trust=trust):
        played = collect_run(
            run,
            episodes,
            checkpoint=[common.checkpoint_of(each) for each in checkpoint.split(",")],
            noise=levels,
            seed=seed,
            progress=partial(update, "episodes"),
        )
    if not minari:
        save_demonstrations(played, out, overwrite=overwrite)
    else:
        try:
            to_minari(played, out)
        except ValueError as error:  # of an id that is taken, or not valid
            raise ValueError(f"Minari does not take {out!r}: {error}") from error
    returns = played.returns
    typer.echo(
        f"wrote {common.count(len(played), 'episode')} ({played.lengths.sum():,} steps, return "
        f"{returns.mean():.2f} ± {returns.std():.2f}) to {out}"
    )


def plot(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Run directories.")],
    out: Annotated[Path, Option(metavar="FILE", help="Image file.")] = Path("curves.png"),
    metric: Annotated[
        str, Option(metavar="NAME", help="Metric to plot over steps.")
    ] = "eval/mean_reward",
    title: Annotated[str | None, Option(metavar="TEXT", help="Title of the plot.")] = None,
    smooth: Annotated[
        float, Option(metavar="0..1", help="Smooth curves; 0.6 to 0.9 for noisy metrics.")
    ] = 0.0,
    center: Annotated[
        Literal["iqm", "mean"], Option(help="Over seeds: interquartile mean, or mean.")
    ] = "iqm",
) -> None:
    """Plot learning curves with confidence bands.

    A curve is the interquartile mean of all runs that differ only in `seed` and `run.*`, with its
    95% bootstrap band.
    """
    from guerdon.lab import curves

    figure = curves.plot(runs, metric, out, title=title, smooth=smooth, center=center)
    groups = common.count(len(figure.axes[0].lines), "group")
    typer.echo(f"wrote {out}: {metric} of {common.count(len(runs), 'run')} in {groups}")


def report(
    run: Annotated[
        Path, Argument(metavar="RUN", help="Directory of a run, of a fit, or of `guerdon demo`.")
    ],
    out: Annotated[
        Path | None, Option(metavar="FILE", help="HTML file. Default: RUN/report.html.")
    ] = None,
) -> None:
    """Write an HTML page about a run or a fit.

    It has curves, warnings, statistics of the reward, images and the configuration.
    """
    from guerdon.lab.report import write_report

    typer.echo(f"wrote {write_report(run, out)}")


def export(
    run: Annotated[Path, Argument(metavar="RUN", help="Run directory, or a fitted classifier.")],
    onnx: Annotated[Path, Option(metavar="FILE", help="File to write: policy.onnx")],
    part: Annotated[
        Literal["policy", "reward"], Option(help="The policy, or the learned reward.")
    ] = "policy",
    checkpoint: Annotated[
        str | None,
        Option(metavar="best|latest|STEP", help="Policy of the run.", show_default="best"),
    ] = None,
    trust: common.Trust = False,
) -> None:
    """Export the policy or the learned reward of a run to ONNX."""
    from guerdon.config.trust import code_of
    from guerdon.lab.export import export

    which = None if checkpoint is None else common.checkpoint_of(checkpoint)
    with code_of(run, trust=trust):
        described = export(run, onnx, part=part, checkpoint=which)
    *inputs, output = [f"{name} {shape}" for name, shape in described.items()]
    typer.echo(f"wrote {onnx}: {', '.join(inputs)} -> {output}")

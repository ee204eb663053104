"""``guerdon demo``: a reward learned from images, and a policy trained on that reward alone."""

import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from guerdon.cli.common import INTERRUPTED, Seed, show_table

# Shorter than the presets.
_COLLECT = ("run.max_steps=40_000",)
_FIT = ("reward.num_epochs=4",)
_LEARN = ("run.max_steps=60_000",)
_BOTH = ("eval.episodes=50", "eval.n_envs=50", "eval.every=15_000")


def demo(
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Output directory; temporary if left out.")
    ] = None,
) -> None:
    """Collects images, fits a success classifier to them, and trains a policy on it alone."""
    from guerdon.lab.workflow_report import table, write_report
    from guerdon.training.workflow import Workflow, run_workflow

    if out is not None and out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: name a new folder")
    folder = out or Path(tempfile.mkdtemp(prefix="guerdon_demo_"))
    workflow = Workflow(collect=_COLLECT, fit=_FIT, learn=_LEARN, both=_BOTH)
    try:
        result = run_workflow(
            folder, workflow, seed=seed, tell=lambda text: typer.secho(f"\n{text}", bold=True)
        )
    except KeyboardInterrupt:
        typer.echo(f"interrupted; the finished stages are in {folder}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo()
    show_table(table(result))
    report = write_report(folder, result)
    typer.echo(
        f"\nThe report is {report}. Try next:\n"
        f"  guerdon eval {shlex.quote(str(folder / 'learn'))} --video\n"
        f"  guerdon train reach_loophole_ppo reward=classifier "
        f"reward.checkpoint_path={shlex.quote(str(folder / 'classifier'))}\n"
        f"  guerdon train cartpole_fixed_ppo_gail\n"
        f"  guerdon list presets"
    )

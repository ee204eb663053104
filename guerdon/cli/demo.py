"""``guerdon demo``: a reward is learned from pictures, and a policy from that reward alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guerdon.cli.train import INTERRUPTED

if TYPE_CHECKING:
    from guerdon.training.workflow import WorkflowResult

# Shorter than the presets, which are made for results and not for an audience.
_COLLECT = ("run.max_steps=40_000",)
_FIT = ("reward.num_epochs=4",)
_LEARN = ("run.max_steps=60_000",)
_BOTH = ("eval.episodes=50", "eval.n_envs=50", "eval.every=15_000")


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for all of it; a temporary one if left out.", show_default=False
        ),
    ] = None,
) -> None:
    """Collects pictures, learns from them what success is, and trains a policy on that alone."""
    import shlex
    import tempfile

    from guerdon.lab.workflow_report import write_report
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
        typer.echo(f"stopped; what was done by then is in {folder}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _show(result)
    report = write_report(folder, result)
    typer.echo(
        f"\nThe report is {report}. Try next:\n"
        f"  guerdon eval {shlex.quote(str(folder / 'learn'))} --video\n"
        f"  guerdon train reach_loophole_ppo reward=classifier "
        f"reward.checkpoint_path={shlex.quote(str(folder / 'classifier'))}\n"
        f"  guerdon train cartpole_fixed_ppo_gail\n"
        f"  guerdon list presets"
    )


def _show(result: "WorkflowResult") -> None:
    from rich.console import Console
    from rich.table import Table

    from guerdon.lab.workflow_report import table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("")
    shown.add_column("", justify="right")
    for name, value in table(result):
        shown.add_row(name, value)
    console = Console()
    console.print()
    console.print(shown)

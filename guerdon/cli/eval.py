"""``guerdon eval``: how good the policy of a run is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from guerdon.training.replay import Checkpoint


def evaluate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)
    ],
    episodes: Annotated[int, typer.Option(min=1, help="How many to play.")] = 20,
    checkpoint: Annotated[
        str, typer.Option(metavar="best|latest|STEP", help="Which policy of the run.")
    ] = "best",
    seed: Annotated[int, typer.Option(min=0, help="Of the environments.")] = 0,
    video: Annotated[
        bool, typer.Option("--video", help="Film the first episodes into RUN/videos.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Plays episodes with the policy of a run, in its evaluation environments."""
    import json

    from guerdon.training.replay import evaluate_run

    result = evaluate_run(
        run, checkpoint=checkpoint_of(checkpoint), episodes=episodes, seed=seed, video=video
    )
    typer.echo(json.dumps(result, indent=1) if as_json else _in_words(result))


def checkpoint_of(text: str) -> "Checkpoint":
    """The checkpoint that an option names.

    Args:
        text: ``best``, ``latest`` or a number of steps.
    """
    if text in ("best", "latest"):
        return cast("Checkpoint", text)
    digits = text.removeprefix("step_")
    if not digits.isdecimal():
        raise ValueError(f"a checkpoint is 'best', 'latest' or a number of steps, not {text!r}")
    return int(digits)


def _in_words(result: dict[str, Any]) -> str:
    values = {
        "return": f"{result['return_mean']:.2f} ± {result['return_std']:.2f}",
        "min": f"{result['return_min']:.2f}",
        "max": f"{result['return_max']:.2f}",
        "length": f"{result['length_mean']:.1f}",
    }
    if result["success_rate"] is not None:
        values["success"] = f"{result['success_rate']:.0%}"
    if result["audit"] is not None:
        values["the model says"] = f"{result['audit']['reward/success_rate']:.0%}"
        if "eval/success_at_verdict" in result["audit"]:
            values["truly at that moment"] = f"{result['audit']['eval/success_at_verdict']:.0%}"
    title = (
        f"{result['env']} · {result['policy']} · step {result['step']:,} · "
        f"{result['episodes']} episode{'s' * (result['episodes'] != 1)} · seed {result['seed']}"
    )
    numbers = "   ".join(f"{name} {value}" for name, value in values.items())
    return "\n".join([title, numbers, *(f"wrote {path}" for path in result["videos"])])

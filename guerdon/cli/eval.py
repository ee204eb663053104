"""``guerdon eval``: how good the policy of a run is."""

import json
from typing import Annotated, Any

import typer

from guerdon.cli.common import AsJson, Run, Seed, checkpoint_of, count


def evaluate(
    run: Run,
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 20,
    checkpoint: Annotated[
        str, typer.Option(metavar="best|latest|STEP", help="Policy of the run.")
    ] = "best",
    seed: Seed = 0,
    video: Annotated[
        bool, typer.Option("--video", help="Record the first episodes to RUN/videos.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Evaluates the policy of a run in its evaluation environments."""
    from guerdon.training.replay import evaluate_run

    result = evaluate_run(
        run, checkpoint=checkpoint_of(checkpoint), episodes=episodes, seed=seed, video=video
    )
    typer.echo(json.dumps(result, indent=1) if as_json else _in_words(result))


def _in_words(result: dict[str, Any]) -> str:
    audit = result["audit"] or {}
    values = {
        "return": f"{result['return_mean']:.2f} ± {result['return_std']:.2f}",
        "min": f"{result['return_min']:.2f}",
        "max": f"{result['return_max']:.2f}",
        "length": f"{result['length_mean']:.1f}",
    }
    for name, share in {
        "success": result["success_rate"],
        "predicted success": audit.get("reward/success_rate"),
        "true success": audit.get("eval/success_at_verdict"),
    }.items():
        if share is not None:
            values[name] = f"{share:.0%}"
    title = (
        f"{result['env']} · {result['policy']} · step {result['step']:,} · "
        f"{count(result['episodes'], 'episode')} · seed {result['seed']}"
    )
    numbers = "   ".join(f"{name} {value}" for name, value in values.items())
    return "\n".join([title, numbers, *(f"wrote {path}" for path in result["videos"])])

"""``guerdon demo``: a policy before and after some seconds of training."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to train.")] = 15.0,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder; a temporary one where left out.", show_default=False),
    ] = None,
) -> None:
    """Trains cartpole_ppo for some seconds, and shows what that is good for."""
    import shlex
    import tempfile

    from guerdon.config import compose
    from guerdon.training.evaluation import evaluate
    from guerdon.training.parts import make_parts
    from guerdon.training.replay import evaluate_run, evaluation
    from guerdon.training.run import train

    folder = out or Path(tempfile.mkdtemp(prefix="guerdon_demo_")) / "cartpole_ppo"
    config = compose("cartpole_ppo", [f"seed={seed}", f"run.max_seconds={seconds}"])
    config = config.model_copy(update={"run": config.run.model_copy(update={"dir": str(folder)})})
    parts = make_parts(config)
    before = evaluation(evaluate(parts.policy, parts.eval_env, config.eval.episodes))
    parts.close()
    summary = train(config)
    after = evaluate_run(folder, episodes=config.eval.episodes)
    run = shlex.quote(str(folder))
    typer.echo(
        f"\nbefore training  return {before['return_mean']:6.1f} ± {before['return_std']:.1f}\n"
        f"after training   return {after['return_mean']:6.1f} ± {after['return_std']:.1f}, of "
        f"500.0 at most; {summary['env_steps']:,} steps in {summary['wall_seconds']:.0f} s\n\n"
        f"The run is in {run}. Try next:\n"
        f"  guerdon eval {run} --video\n"
        f"  guerdon train pendulum_sac\n"
        f"  guerdon list presets"
    )

"""The three stages in one call: collect images, fit a success classifier, train on it alone.

Each stage is also a command: ``guerdon train ... reward.collect_data=true``,
``guerdon reward fit``, and ``guerdon train ... reward=classifier``.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from guerdon.data.frames import count_trajectories
from guerdon.training.display import Mode
from guerdon.training.fit import fit
from guerdon.training.fit_files import compose_fit
from guerdon.training.run import train
from guerdon.training.run_folder import write_json

RESULT = "workflow.json"


@dataclass(frozen=True)
class Workflow:
    """Presets and overrides of the stages."""

    preset: str = "reach_ppo"  # of the first and the third stage
    classifier: str = "reach_classifier"  # of the second
    collect: Sequence[str] = ()
    fit: Sequence[str] = ()
    learn: Sequence[str] = ()
    both: Sequence[str] = ()  # overrides of the first and the third


@dataclass(frozen=True)
class WorkflowResult:
    """Results of the stages, as in ``workflow.json``."""

    seed: int
    collect: dict[str, Any]  # summary of the run that collected, with the environment's reward
    trajectories: dict[str, int]  # number of positive and negative ones
    fit: dict[str, Any]  # metrics of the classifier on held-out episodes
    learn: dict[str, Any]  # summary of the run with the classifier as reward
    seconds: dict[str, float] = field(default_factory=dict)  # duration of each stage


def run_workflow(
    out: str | Path,
    workflow: Workflow | None = None,
    *,
    seed: int = 0,
    display: Mode = "auto",
    tell: Callable[[str], None] = lambda _: None,
) -> WorkflowResult:
    """Run the three stages.

    Args:
        out: Folder for ``collect``, ``data``, ``classifier``, ``learn`` and the result.
        workflow: Presets and overrides.
        seed: Random seed.
        display: Display of progress.
        tell: Called with a sentence before each stage.

    Raises:
        KeyboardInterrupt: A stage was interrupted; its folder has the results so far.
    """
    out, stages = Path(out), workflow or Workflow()
    folders = {kind: str(out / "data" / kind) for kind in ("positive", "negative")}
    seconds: dict[str, float] = {}

    def timed(stage: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        summary = function(*args, display=display, **options)
        seconds[stage] = time.perf_counter() - start
        if summary["stop_reason"] == "interrupted":  # the next stage would use half the data
            raise KeyboardInterrupt
        return summary

    tell("1 of 3: train a policy on the environment's own success, and keep its images")
    collected = timed(
        "collect", train, stages.preset, "reward.collect_data=true",
        *(f"reward.data_collection.{kind}_dir={path}" for kind, path in folders.items()),
        *stages.both, *stages.collect, f"run.dir={out / 'collect'}", seed=seed,
    )  # fmt: skip
    tell("2 of 3: fit a classifier of success to these images")
    overrides = [
        *(f"reward.data.{kind}_dir={path}" for kind, path in folders.items()),
        f"reward.save_dir={out / 'classifier'}", f"seed={seed}", *stages.fit,
    ]  # fmt: skip
    fitted = timed("fit", fit, compose_fit(stages.classifier, overrides))
    tell("3 of 3: train a new policy on the classifier alone")
    learned = timed(
        "learn", train, stages.preset, "reward=classifier",
        f"reward.checkpoint_path={out / 'classifier'}",
        *stages.both, *stages.learn, f"run.dir={out / 'learn'}", seed=seed,
    )  # fmt: skip
    numbers = {kind: count_trajectories(path) for kind, path in folders.items()}
    result = WorkflowResult(
        seed, collected.summary, numbers, fitted["test"], learned.summary, seconds
    )
    write_json(out / RESULT, asdict(result))
    return result

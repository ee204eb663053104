"""The three stages in one call: collect pictures, fit a classifier of success, learn from it alone.

Each stage is what a command does by itself: ``guerdon train ... reward.collect_data=true``,
``guerdon reward fit``, and ``guerdon train ... reward=classifier``.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.data.files import atomic_file
from guerdon.data.trajectory_files import count_trajectories
from guerdon.training.fit import fit
from guerdon.training.fit_files import compose_fit
from guerdon.training.run import train

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from guerdon.training.display import Mode

RESULT = "workflow.json"


@dataclass(frozen=True)
class Workflow:
    """What the stages are told."""

    preset: str = "reach_ppo"
    """Who collects, and who learns from the classifier."""
    classifier: str = "reach_classifier"
    """The preset of the fit."""
    collect: Sequence[str] = ()
    """Overrides of the first stage."""
    fit: Sequence[str] = ()
    """Overrides of the second."""
    learn: Sequence[str] = ()
    """Overrides of the third."""
    both: Sequence[str] = ()
    """Overrides of the first and the third."""


@dataclass(frozen=True)
class WorkflowResult:
    """How the stages went; ``workflow.json`` holds the same."""

    seed: int
    collect: dict[str, Any]
    """The summary of the run that collected: a policy that learned from the environment."""
    trajectories: dict[str, int]
    """Positive and negative ones."""
    fit: dict[str, Any]
    """The numbers of the classifier on episodes that it has not seen."""
    learn: dict[str, Any]
    """The summary of the run that learned from the classifier alone."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each stage took."""


def run_workflow(
    out: str | Path,
    workflow: Workflow | None = None,
    *,
    seed: int = 0,
    display: Mode = "auto",
    tell: Callable[[str], None] = lambda _: None,
) -> WorkflowResult:
    """Runs the three stages.

    Args:
        out: Their folder; it gets ``collect``, ``data``, ``classifier``, ``learn`` and the result.
        workflow: What they are told.
        seed: Of everything random.
        display: How progress is shown.
        tell: Called with a sentence before each stage.

    Raises:
        KeyboardInterrupt: A stage was asked to stop; what it did by then is in its folder.
    """
    out, told = Path(out), workflow or Workflow()
    data, classifier = out / "data", out / "classifier"
    folders = {kind: str(data / kind) for kind in ("positive", "negative")}
    seconds, start = {}, time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal start
        now = time.perf_counter()
        seconds[stage], start = now - start, now

    tell("1 of 3: a policy learns from the environment's own success, and its pictures are kept")
    collected = train(
        told.preset,
        "reward.collect_data=true",
        *(f"reward.data_collection.{kind}_dir={path}" for kind, path in folders.items()),
        *told.both, *told.collect, f"run.dir={out / 'collect'}",
        seed=seed, display=display,
    )  # fmt: skip
    _check_finished(collected["stop_reason"])
    lap("collect")
    tell("2 of 3: a classifier learns from these pictures what success looks like")
    config = compose_fit(
        told.classifier,
        [
            *(f"reward.data.{kind}_dir={path}" for kind, path in folders.items()),
            f"reward.save_dir={classifier}", f"seed={seed}", *told.fit,
        ],
    )  # fmt: skip
    fitted = fit(config, display=display)
    _check_finished(fitted.stop_reason)
    lap("fit")
    tell("3 of 3: a new policy learns from the classifier alone")
    learned = train(
        told.preset, "reward=classifier", f"reward.checkpoint_path={classifier}",
        *told.both, *told.learn, f"run.dir={out / 'learn'}",
        seed=seed, display=display,
    )  # fmt: skip
    _check_finished(learned["stop_reason"])
    lap("learn")
    result = WorkflowResult(
        seed=seed,
        collect=collected,
        trajectories={kind: count_trajectories(path) for kind, path in folders.items()},
        fit=fitted.validation,
        learn=learned,
        seconds=seconds,
    )
    with atomic_file(out / RESULT) as file:
        file.write(json.dumps(asdict(result), indent=1).encode() + b"\n")
    return result


def _check_finished(stop_reason: str) -> None:
    """Sees that a stage went to its end: the next one would make something of half the data."""
    if stop_reason == "interrupted":
        raise KeyboardInterrupt

"""From the results of `workflow_learning.py` to docs/workflow_results.md and its curves."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from learning_report import draw_curves
from workflow_learning import PUSH, PUSHCUBE, REACH, results_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from workflow_learning import Chain

HEAD = """# What a reward from images teaches

Made by `make results` (`benchmarks/workflow_learning.py`), which runs what is missing and writes
this page from the files in [`benchmarks/results/workflow`](../benchmarks/results/workflow): 3
seeds, each of which is shown. Every policy is the *final* one, played for 100 episodes without
exploration. Success is the environment's own word, which no policy has heard that learns from a
classifier: *at the last step* of an episode of 50, and *at the prediction*, the frame at which the
classifier takes an episode for a success, and which is the last one for the learner. *The
classifier says* is the share of episodes that it takes for a success. A mean, and every seed.
A first round with these seeds had shown that refitting unlearned true successes, that one policy of
three did not find the loophole, and that policies of images learned too slowly; what was changed
for that was tried with seeds 10 to 13, but for what refitting remembers, which was chosen after
seed 1 of these.
"""
CLASSIFIERS = """A classifier of single images (ResNet-10), fitted to what a policy saw while it
learned from the environment's reward; measured on held-out episodes, at its threshold."""
ON_REACH = """Reach, 64 environments. *environment*: the reward is the environment's success
(60,000 steps). *learned*: it is the classifier of width 16, and nothing else (80,000 steps).
*wide*: the same with the full width of 64. *images*: policies that see the image and nothing else
(300,000 steps); the classifier then pays for every frame (`reward.reward_mode=per_step`), as the
environment does, and nothing ends an episode."""
ON_PUSH = """Push, 400,000 steps. *environment*: the environment's dense reward. *learned*: the
classifier alone, from scratch, which pays once, at the prediction: what comes after is nothing to the
policy, and the cube may be pushed on. *per_step*: the same, but paid for every frame, with which a
policy learns to leave the cube where it is. *with_dense*: the classifier, once, and a tenth of the
dense reward, which does know of success.
*demonstrated*: the classifier alone, fitted to episodes of the trained policy with four shares of
random actions, instead of what it saw while it learned."""
ON_PUSHCUBE = """ManiSkill's PushCube: a robot arm pushes a cube into a circle. Two simulations on a
CPU, episodes of 25 steps, 100,000 steps. *environment*: ManiSkill's dense reward, while images of
64 x 64 are kept. *learned*: a new policy from the classifier of these images alone, paid for every
frame. Policies observe the simulation's state; 20 episodes are played."""
ON_LOOPHOLE = """Reach with a planted flaw: in one corner, mostly nearer than the goal, the goal
looks as if it were reached. The classifier has never seen that. *loophole*: it is used as it is,
and the run says while it happens that the policy cheats. *refitted*: the same with
`reward.cotrain=true`, and longer, since the policy has to find the goal anew: a second opinion,
refitted every 2,000 steps, doubts successes that are like none that was collected."""

Column = tuple[str, "Callable[[dict[str, Any]], Any]"]


def _of(*keys: str) -> Callable[[dict[str, Any]], Any]:
    def find(result: dict[str, Any]) -> Any:
        for key in keys:
            result = (result or {}).get(key)  # type: ignore[assignment]
        return result

    return find


FITTED: tuple[Column, ...] = (
    ("PR-AUC", _of("summary", "validation", "pr_auc")),
    ("precision", _of("summary", "validation", "precision")),
    ("recall", _of("summary", "validation", "recall")),
    ("calibration error", _of("summary", "validation", "calibration_error")),
    ("episodes with a false positive", _of("summary", "validation", "episode_false_positive_rate")),
)
PLAYED: tuple[Column, ...] = (
    ("at the last step", _of("summary", "eval_success_rate")),
    ("at the prediction", _of("summary", "eval_success_at_prediction")),
    ("the classifier says", _of("summary", "eval_model_success_rate")),
)
LOOPHOLE = ("loophole", "refitted")


def write_report(docs: Path) -> None:
    """Writes the page and its images."""
    pictures = docs / "workflow_results"
    pictures.mkdir(exist_ok=True)
    for name, title, curves in _pictures():
        draw_curves(pictures / f"{name}.png", title, curves, label="share of episodes")
    (docs / "workflow_results.md").write_text(page())


def page() -> str:
    """The page, which says nothing but what is in the files of results."""
    reach = ("environment", "learned", "wide_learned", "images_environment", "images_learned")
    push = ("environment", "learned", "per_step", "with_dense", "demonstrated")
    fitted = (
        *((REACH, name) for name in ("classifier", "wide_classifier")),
        *((PUSH, name) for name in ("classifier", "demonstrated_classifier")),
    )
    shown = {name: f"![{title}](workflow_results/{name}.png)" for name, title, _ in _pictures()}
    parts = [
        HEAD,
        "## Classifiers\n",
        _filled(CLASSIFIERS),
        _table(fitted, FITTED, digits=3),
        "## Reach\n",
        _filled(ON_REACH),
        _table([(REACH, name) for name in reach], PLAYED),
        _below(shown, "reach"),
        "## When the policy cheats\n",
        _filled(ON_LOOPHOLE),
        _table([(REACH, name) for name in LOOPHOLE], PLAYED),
        *(_below(shown, name) for name in LOOPHOLE),
        "## Push\n",
        _filled(ON_PUSH),
        _table([(PUSH, name) for name in push], PLAYED),
    ]
    if results_of(PUSHCUBE, "learned"):
        parts += [
            "## PushCube\n",
            _filled(ON_PUSHCUBE),
            _table([(PUSHCUBE, "classifier")], FITTED, digits=3),
            _table([(PUSHCUBE, name) for name in ("environment", "learned")], PLAYED),
        ]
    return "\n".join(part for part in parts if part) + "\n"


def _below(shown: dict[str, str], name: str) -> str:
    return f"{shown[name]}\n" if name in shown else ""


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 100) + "\n"


def _table(rows: Any, columns: tuple[Column, ...], digits: int = 2) -> str:
    names = ["", *(name for name, _ in columns)]
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    for chain, stage in rows:
        found = results_of(chain, stage)
        cells = [f"`{chain.name}` {stage.replace('_', ' ')}"]
        none = ["not run yet", *[""] * (len(columns) - 1)]
        cells += [_cell(found, find, digits) for _, find in columns] if found else none
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def _cell(
    results: list[dict[str, Any]], find: Callable[[dict[str, Any]], Any], digits: int = 2
) -> str:
    """The value of every seed, and their mean; one that failed says so."""
    values = ["failed" if "error" in result else find(result) for result in results]
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return "failed" if "failed" in values else ""
    each = ", ".join(f"{value:.{digits}f}" if value in numbers else str(value) for value in values)
    return f"{np.mean(numbers):.3f} ({each})"


def _pictures() -> list[tuple[str, str, dict[str, list[Any]]]]:
    """Name, title and curves of every image that there are results for."""
    at_prediction, last, claimed = (
        "eval/success_at_prediction",
        "eval/success_rate",
        "reward/success_rate",
    )
    reach = {
        "environment: true success at the last step": _curves(REACH, "environment", last),
        "learned: true success at the prediction": _curves(REACH, "learned", at_prediction),
    }
    both = [
        (name, f"{name}: what the classifier says, and what is true", {
            "the classifier says": _curves(REACH, name, claimed),
            "true": _curves(REACH, name, at_prediction),
        })
        for name in LOOPHOLE
    ]  # fmt: skip
    found = [("reach", "Reach: success by steps", reach), *both]
    return [
        (name, title, {label: runs for label, runs in curves.items() if runs})
        for name, title, curves in found
        if any(curves.values())
    ]


def _curves(chain: Chain, stage: str, metric: str) -> list[Any]:
    return [
        result["curves"][metric]
        for result in results_of(chain, stage)
        if metric in result.get("curves", {})
    ]

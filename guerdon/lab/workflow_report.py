"""The report of the three stages: a table, curves and images, on one page."""

import base64
import html
import io
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.data.files import atomic_file
from guerdon.data.frames import load_frames
from guerdon.extras import MissingExtraError, require
from guerdon.lab.curves import read_curve
from guerdon.reward.success_classifier import ClassifierReward
from guerdon.training.fit_files import read_classifier
from guerdon.training.workflow import WorkflowResult

REPORT, PICTURE = "report.html", "report.png"
HOW = (
    "Success is measured with the deterministic policy: at the last step of an episode, and at the "
    "first frame with predicted success, where the episode ends for the learner. The policy of the "
    "third stage never sees the environment's reward or success."
)
_CURVES = (
    ("collect", "eval/success_rate", "environment reward: true success at the last step"),
    ("learn", "eval/success_rate", "classifier reward: true success at the last step"),
    ("learn", "eval/success_at_verdict", "classifier reward: true success where predicted"),
    ("learn", "reward/success_rate", "classifier reward: predicted success"),
)
_SHOWN = 8  # frames of each kind


def table(result: WorkflowResult) -> list[tuple[str, str]]:
    """The results, as names and values."""
    fit, collect, learn, kept = result.fit, result.collect, result.learn, result.trajectories
    success = "eval_success_rate"
    return [
        ("Trajectories with and without success", f"{kept['positive']}, {kept['negative']}"),
        ("Classifier on held-out episodes: PR-AUC", _numbers(fit, "pr_auc")),
        ("  precision, recall at its threshold", _numbers(fit, "precision", "recall")),
        ("  calibration error", _numbers(fit, "calibration_error")),
        ("True success at the last step, no exploration:", ""),
        (f"  environment reward, {collect['env_steps']:,} steps", _percent(collect, success)),
        (f"  classifier alone, {learn['env_steps']:,} steps", _percent(learn, success)),
        ("True success where predicted", _percent(learn, "eval_success_at_verdict")),
        ("  predicted success", _percent(learn, "eval_model_success_rate")),
        ("Seconds per stage", " + ".join(f"{each:.0f}" for each in result.seconds.values())),
    ]


def _numbers(fit: dict[str, Any], *keys: str) -> str:
    return ", ".join("-" if fit[key] is None else f"{fit[key]:.3f}" for key in keys)


def _percent(summary: dict[str, Any], key: str) -> str:
    return f"{summary[key]:.0%}" if key in summary else "-"


def write_report(folder: str | Path, result: WorkflowResult) -> Path:
    """Writes ``report.html`` and its image ``report.png`` into the folder of the stages.

    Args:
        folder: The output directory of `run_workflow`.
        result: Its result.

    Returns:
        The report's path.
    """
    folder = Path(folder)
    try:
        image = _image(folder)
    except MissingExtraError as error:
        shown = f"<p>There are no curves here: {html.escape(str(error))}.</p>"
    else:
        with atomic_file(folder / PICTURE) as file:
            file.write(image)
        code = base64.b64encode(image).decode()
        shown = f'<img alt="curves and images" src="data:image/png;base64,{code}">'
    rows = "\n".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
        for name, value in table(result)
    )
    commands = [
        shlex.join(["guerdon", "eval", str(folder / name)]) for name in ("collect", "learn")
    ]
    page = _PAGE.format(
        rows=rows, shown=shown, how=HOW, commands=html.escape("\n".join(commands)),
        seed=result.seed,
    )  # fmt: skip
    with atomic_file(folder / REPORT) as file:
        file.write(page.encode())
    return folder / REPORT


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>guerdon: a reward learned from images</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
td {{ padding: .1rem 2rem .1rem 0; white-space: pre }}
td + td {{ text-align: right; font-variant-numeric: tabular-nums }}
img {{ max-width: 100% }}
pre {{ background: #f4f4f4; padding: .5rem 1rem; overflow: auto }}
</style>
<h1>A reward learned from images</h1>
<p>A policy was trained on the environment's reward and its camera images were saved, a classifier
was fitted to them, and a new policy was trained on that classifier alone. Seed {seed}.</p>
<table>
{rows}
</table>
<p>{how}</p>
{shown}
<pre>{commands}</pre>
</html>
"""


def _image(folder: Path) -> bytes:
    require("matplotlib", "lab")
    figure = require("matplotlib.figure", "lab").Figure(figsize=(10, 8), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
    axes = above.add_subplot(xlabel="environment steps", ylabel="share of episodes", ylim=(0, 1.05))
    axes.grid(alpha=0.3)
    for run, metric, label in _CURVES:
        curve = read_curve(folder / run, metric)
        axes.plot(curve.steps, curve.values, marker=".", label=label)
    axes.legend(loc="lower right")
    kinds = _frames(folder)
    grid = below.subplots(len(kinds), _SHOWN, squeeze=False)
    for row, (title, images, probabilities) in zip(grid, kinds, strict=True):
        row[0].set_title(title, loc="left", fontsize=9)
        for place, image, probability in zip(row, images, probabilities, strict=True):
            place.axis("off")
            place.imshow(image)
            place.text(2, 60, f"{probability:.2f}", color="white", fontsize=7)
    out = io.BytesIO()
    figure.savefig(out, dpi=110, format="png")
    return out.getvalue()


def _frames(folder: Path) -> list[tuple[str, Sequence[np.ndarray], np.ndarray]]:
    """Frames with and without success, and their predicted probabilities."""
    model = ClassifierReward({})
    model.load_training_state(read_classifier(folder / "classifier"))
    frames = load_frames(folder / "data/positive", folder / "data/negative", model.image_keys)
    generator = np.random.default_rng(0)
    kinds = []
    for title, mask in (("success", frames.labels), ("no success", ~frames.labels)):
        rows = generator.choice(np.flatnonzero(mask), _SHOWN)
        images = {key: part[rows] for key, part in frames.images.items()}
        first = np.moveaxis(images[model.image_keys[0]], 1, -1)
        kinds.append((f"{title}, predicted probability", first, model.probability(images)))
    return kinds

"""Checks of a fit that need no environment: probes of the classifier, and suspected labels."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from guerdon.data.frames import Frames
from guerdon.nn.augment import PROBES
from guerdon.nn.classifier import BinaryRewardClassifier
from guerdon.nn.init import seeded
from guerdon.ops import classification as measure
from guerdon.training.fit_files import FitSection
from guerdon.training.fit_steps import Inputs, Learner, all_logits, capped

FRAMES = 128  # of each label that are changed
NOTHING, HARM, LOST, CLIPPED = 0.01, 0.05, 0.2, 0.2
"""Shares at which to warn: of accepted frames that show nothing, of failures that are newly
accepted, of accepted successes that are lost, and of episodes accepted before their success."""
FOLDS, FOLD_STEPS, FOLD_FRAMES = 3, 150, 4_000
WRONG, WRONG_OF_LABEL = 0.1, 0.15
"""Shares of suspected labels at which to warn: of all frames, and of those with one label."""
INVERTED = 0.5  # share of trajectories with success that begin with it, at which to warn
LISTED = 24  # suspected frames
CLIPPED_EPISODES = "clipped episodes"
PROBE_COLUMNS = ("", "success", "accepted", "failure", "accepted", "trained")
_CHUNK = 256  # frames of one call


# --- probes


def probe_frames(
    members: Sequence[BinaryRewardClassifier],
    frames: Frames,
    rows: np.ndarray,
    temperature: float,
    threshold: float,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """Predict success of changed frames, and of episodes that are cut.

    Args:
        members: Fitted classifiers.
        frames: The frames.
        rows: Rows of whole episodes that the classifiers were not fitted to.
        temperature: Divides the logits.
        threshold: Minimum probability that is accepted.
        device: Device of the members.

    Returns:
        For each kind of change: ``kind``, ``keeps`` (see `Probe`; None for frames as they are),
        ``trained`` (whether training uses it), and of successes and failures the mean predicted
        probability and the share accepted (``success_mean``, ``success_accepted``,
        ``failure_mean``, ``failure_accepted``; None if there is none).
    """
    evaluated = [member.eval() for member in members]

    def probability(images: dict[str, torch.Tensor]) -> np.ndarray:
        total = len(next(iter(images.values())))
        logits = []
        with torch.no_grad():
            for start in range(0, total, _CHUNK):
                part = {
                    key: each[start : start + _CHUNK].to(device) for key, each in images.items()
                }
                logits.append(torch.stack([member(part) for member in evaluated]).cpu())
        found = measure.ensemble_probability(torch.cat(logits, 1).numpy(), temperature)
        return found.astype(np.float32)

    def row(kind: str, keeps: str | None, trained: bool, *found: np.ndarray) -> dict[str, Any]:
        sides = dict(zip(("success", "failure"), found, strict=True))
        values = {
            f"{side}_{name}": float(value) if len(scores) else None
            for side, scores in sides.items()
            for name, value in (
                ("mean", scores.mean() if len(scores) else 0),
                ("accepted", (scores >= threshold).mean() if len(scores) else 0),
            )
        }
        return {"kind": kind, "keeps": keeps, "trained": trained, **values}

    generator, draw = np.random.default_rng(0), torch.Generator().manual_seed(0)
    labels = frames.labels[rows]
    chosen = [
        generator.permutation(rows[labels == label])[:FRAMES] for label in (True, False)
    ]  # successes and failures
    both = np.concatenate(chosen)
    images = {key: torch.from_numpy(part[both]) for key, part in frames.images.items()}
    n_success, none = len(chosen[0]), np.zeros(0, np.float32)
    scores = probability(images)
    table = [row("unchanged", None, False, scores[:n_success], scores[n_success:])]
    for kind, change in PROBES.items():
        scores = probability({key: change.change(part, draw) for key, part in images.items()})
        parts = (none, scores)
        if change.keeps != "nothing":
            parts = scores[:n_success], scores[n_success:]
        table.append(row(kind, change.keeps, change.trained, *parts))
    highest = _clipped(frames, rows, probability)
    return [*table, row(CLIPPED_EPISODES, "label", False, *highest)]


def _clipped(
    frames: Frames, rows: np.ndarray, probability: Callable[[dict[str, torch.Tensor]], np.ndarray]
) -> list[np.ndarray]:
    """Return the highest probability in episodes cut at, and just before, their first success."""
    found: list[list[float]] = [[], []]
    for episode in np.unique(frames.episodes[rows])[:FRAMES]:
        own = np.flatnonzero(frames.episodes == episode)
        first = int(np.argmax(frames.labels[own]))
        if first == 0:  # no success, or from the start
            continue
        own = own[: first + 1]
        images = {key: torch.from_numpy(part[own]) for key, part in frames.images.items()}
        scores = probability(images)
        found[0].append(float(scores.max()))
        found[1].append(float(scores[:-1].max()))
    return [np.array(each, np.float32) for each in found]


def probe_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row of `probe_frames` as text, for `PROBE_COLUMNS`."""
    names = [f"{side}_{name}" for side in ("success", "failure") for name in ("mean", "accepted")]
    shown = [
        "-" if row[name] is None else format(row[name], ".3f" if "mean" in name else ".1%")
        for name in names
    ]
    return row["kind"], *shown, "yes" if row["trained"] else ""


def probe_warnings(table: Sequence[dict[str, Any]], synthetic: bool = True) -> list[str]:
    """Return a warning for each kind of frames that the classifier gets wrong.

    Args:
        table: What `probe_frames` returns.
        synthetic: Whether it was fitted with synthetic failures.
    """
    if not table:
        return []
    option = "" if synthetic else "leave reward.data.synthetic_failures on, or "
    usual, found = table[0], []
    for row in table[1:]:
        kind, success, failure = row["kind"], row["success_accepted"], row["failure_accepted"]
        before = usual["failure_accepted"] or 0.0
        lost = 0.0
        if success is not None and usual["success_accepted"]:
            lost = 1 - success / usual["success_accepted"]
        if row["keeps"] == "nothing":
            if failure > NOTHING:
                found.append(
                    f"{failure:.0%} of frames of the kind {kind!r} are accepted as success, "
                    "although they show nothing: a policy may exploit that; "
                    f"{option}collect such frames as failures"
                )
        elif kind == CLIPPED_EPISODES:
            if failure is not None and failure > CLIPPED:
                found.append(
                    f"in {failure:.0%} of successful episodes a frame before the first success is "
                    "accepted: collect more frames just before success, or lower reward.target_fpr"
                )
        elif failure is not None and failure - before > HARM:
            found.append(
                f"{failure:.0%} of failures are accepted as success when they are {kind} "
                f"({before:.0%} as they are): collect such frames as failures"
            )
        elif row["keeps"] == "label" and lost > LOST:
            found.append(
                f"{lost:.0%} of the accepted successes are lost when they are {kind}: collect "
                "successes under such conditions, too"
            )
    return found


# --- labels


def suspected_labels(
    frames: Frames,
    section: FitSection,
    seed: int,
    device: str = "cpu",
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Find labels that small classifiers, fitted to other episodes, contradict with confidence.

    As in confident learning (https://arxiv.org/abs/1911.00068), a label is suspected if the
    probability of the other one is at least its mean over the frames that have that other label.

    Args:
        frames: The frames; of many, a sample is checked.
        section: Options of the fit.
        seed: Random seed.
        device: Device to fit on.
        stop: Returns whether to give up.

    Returns:
        Number of frames ``checked``, share ``suspected`` of all frames (at the data's base rate),
        ``suspected_successes`` and ``suspected_failures`` of the frames with that label, and the
        most suspected ``frames``: ``row``, ``file``, ``frame`` in its episode, ``label`` and
        ``probability``. None if there are too few episodes, or if it was stopped.
    """
    generator = np.random.default_rng([seed, 1])
    labels = frames.labels
    succeeds = np.zeros(len(frames.from_positive), bool)
    succeeds[frames.episodes[labels]] = True
    order = generator.permutation(len(succeeds))
    order = order[np.argsort(succeeds[order], kind="stable")]
    fold = np.empty(len(order), int)
    fold[order] = np.arange(len(order)) % FOLDS
    rows = capped(np.arange(len(labels)), labels, FOLD_FRAMES, generator)
    probability = np.empty(len(rows))
    small = section.model.model_copy(
        update={
            "width": min(section.model.width, 8),
            "hidden_dim": min(section.model.hidden_dim, 64),
            "pretrained_encoder_path": None,
            "freeze_encoder": False,
        }
    )
    section = section.model_copy(
        update={"model": small, "optim": section.optim.model_copy(update={"lr": 1e-3})}
    )
    inputs = Inputs(frames, device, section.data.augment)
    for place, stream in enumerate(np.random.SeedSequence([seed, 1]).spawn(FOLDS)):
        is_held_out = fold[frames.episodes[rows]] == place
        train, held_out = rows[~is_held_out], rows[is_held_out]
        own, there = labels[train], np.unique(frames.episodes[labels]).size
        if own.all() or not own.any() or there < FOLDS:
            return None
        log_odds = math.log(own.sum() / (~own).sum())
        with seeded(seed, device):  # dropout
            learner = Learner(section, stream, train, own, log_odds, device)
            for step in range(FOLD_STEPS):
                if stop():
                    return None
                learner.step(inputs, 1e-3 * (1 - step / FOLD_STEPS))
        logits = all_logits([learner.member], inputs, held_out)
        probability[is_held_out] = measure.ensemble_probability(logits)
    return _suspects(frames, rows, probability)


def _suspects(frames: Frames, rows: np.ndarray, probability: np.ndarray) -> dict[str, Any]:
    """Return what `suspected_labels` returns, from held-out probabilities of rows."""
    labels = frames.labels[rows]
    of_success = max(0.5, float(probability[labels].mean()))
    of_failure = max(0.5, float(1 - probability[~labels].mean()))
    suspected = np.where(labels, 1 - probability >= of_failure, probability >= of_success)
    shares = [float(suspected[labels == label].mean()) for label in (True, False)]
    base = float(frames.labels.mean())
    doubt = np.where(labels, 1 - probability, probability)
    first = np.searchsorted(frames.episodes, frames.episodes[rows])
    listed = [place for place in np.argsort(-doubt, kind="stable") if suspected[place]][:LISTED]
    return {
        "checked": len(rows),
        "suspected": base * shares[0] + (1 - base) * shares[1],
        "suspected_successes": shares[0],
        "suspected_failures": shares[1],
        "frames": [
            {
                "row": int(rows[place]),
                "file": str(frames.paths[frames.episodes[rows[place]]]) if frames.paths else None,
                "frame": int(rows[place] - first[place]),
                "label": int(labels[place]),
                "probability": float(probability[place]),
            }
            for place in listed
        ],
    }


def label_warnings(found: dict[str, Any] | None, frames: Frames) -> list[str]:
    """Return warnings about labels; `found`: what `suspected_labels` returns."""
    warnings = []
    episodes, first = np.unique(frames.episodes, return_index=True)
    succeeds = np.isin(episodes, frames.episodes[frames.labels])
    if (begin := float(frames.labels[first[succeeds]].mean())) > INVERTED:
        warnings.append(
            f"{begin:.0%} of the trajectories with success begin with a frame with label 1: see "
            "whether 0 and 1 are inverted"
        )
    if frames.from_positive.all():
        warnings.append(
            "there is no negative trajectory, so that it cannot be checked whether labels "
            "contradict their folders: collect failures, too"
        )
    if found is None:
        return warnings
    share, one, zero = (
        found[name] for name in ("suspected", "suspected_successes", "suspected_failures")
    )
    if share >= WRONG or max(one, zero) >= WRONG_OF_LABEL:
        warnings.append(
            f"about {share:.0%} of the labels look wrong to classifiers fitted to other episodes "
            f"({one:.0%} of label 1, {zero:.0%} of label 0): look at the suspected frames in the "
            "report, and correct their labels; or the cameras do not show what success depends on"
        )
    return warnings

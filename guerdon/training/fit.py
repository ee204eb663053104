"""Fit a success classifier to labelled frames, and choose its temperature and threshold."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from guerdon.data.frames import Frames, load_frames
from guerdon.nn.classifier import BinaryRewardClassifier
from guerdon.nn.init import seeded
from guerdon.nn.optimizer import Optimizer
from guerdon.ops import classification as measure
from guerdon.training.checkpoints import save_checkpoint
from guerdon.training.display import Mode, make_display
from guerdon.training.fit_files import PART, FitConfig, FitSection, ScheduleConfig, begin_folder
from guerdon.training.parts import find_device
from guerdon.training.process import interrupts, threads
from guerdon.training.run_folder import Recorder, finite, write_json

GOOD_PR_AUC, GOOD_PRECISION, GOOD_RECALL = 0.9, 0.8, 0.5
FEW_FRAMES, FEW_EPISODES = 50, 5
_CHUNK = 256  # frames of one call without gradients
_SHOWN = {"loss": "train/loss", "PR-AUC": "reward/pr_auc"}


def fit(
    config: FitConfig,
    *,
    overwrite: bool = False,
    display: Mode = "auto",
    frames: Frames | None = None,
) -> dict[str, Any]:
    """Fit a classifier or an ensemble, and save checkpoints.

    Args:
        config: See `compose_fit`.
        overwrite: Whether to replace a fit in ``save_dir``.
        display: ``auto``, ``live``, ``lines`` or ``none``.
        frames: The frames, if they are in memory; else they are read from the config's folders.

    Returns:
        The content of ``summary.json``: ``save_dir``, ``steps`` taken, ``best_step``,
        ``stop_reason`` (``finished`` or ``interrupted``), ``seconds``, ``validation`` metrics of
        the best checkpoint (see `validate`), ``warnings``, ``data`` (hash, folders and numbers of
        frames) and ``seed``.
    """
    frames = read_frames(config) if frames is None else frames
    with threads(config.threads):
        # Before the folder is made: a fit that cannot begin must not replace another.
        process = _Fit(config, frames)
        folder = begin_folder(config, overwrite)
        title = f"fit · {config.reward.save_dir} · seed {config.seed}"
        shown = make_display(process.total, sys.stdout, display, title=title, shown=_SHOWN)
        with Recorder(folder, shown) as recorder, interrupts(recorder.interrupt) as interrupted:
            for line in (*frames.report().splitlines(), process.note):
                recorder.text(line)
            with seeded(config.seed, process.device):  # dropout
                result = process.run(recorder, interrupted)
            write_json(folder.summary, result)
            for warning in result["warnings"]:
                recorder.text(f"Warning: {warning}")
    return result


def read_frames(config: FitConfig, progress: Callable[[int, int], None] | None = None) -> Frames:
    """Read the frames of a config; `progress` gets the number of files read, and of all."""
    data, model = config.reward.data, config.reward.model
    return load_frames(
        data.positive_dir, data.negative_dir, model.image_keys, model.image_size, progress=progress
    )


class _Fit:
    """State of a fit."""

    def __init__(self, config: FitConfig, frames: Frames) -> None:
        self.config, self.frames = config, frames
        section, labels = config.reward, frames.labels
        # The seed and share in a checkpoint are enough to repeat the split.
        generator = np.random.default_rng(config.seed)
        train, self.held_out = frames.split(section.data.validation_share, generator)
        for side in (labels[train], labels[self.held_out]):
            if side.all() or not side.any():
                kind = "without" if side.any() else "with"
                raise ValueError(
                    f"frames {kind} success are in too few of the {len(frames.from_positive)} "
                    "trajectories to learn from some and validate on others: collect more of them"
                )
        self.rows = capped(train, labels[train], section.data.max_frames, generator)
        per_epoch = steps_per_epoch(labels[self.rows], section.global_batch_size)
        self.total = section.num_epochs * per_epoch
        self.device = find_device(config.device or "cpu", "device")
        self.note = (
            f"learning from {len(self.rows)} frames, validating on {len(self.held_out)} of other "
            f"episodes ({labels[self.held_out].mean():.1%} with label 1)"
        )
        log_odds = math.log(labels[train].sum() / (~labels[train]).sum())
        self.learners = [
            _Learner(section, stream, self.rows, labels[self.rows], log_odds, self.device)
            for stream in np.random.SeedSequence(config.seed).spawn(section.members)
        ]
        self.data = {
            "hash": frames.hash,
            "digests": frames.digests,
            # Absolute, since a refit beside a policy reads them again.
            "positive_dir": str(Path(section.data.positive_dir).resolve()),
            "negative_dir": str(Path(section.data.negative_dir).resolve()),
            "frames": len(labels),
            "trajectories": len(frames.from_positive),
        }

    def run(self, recorder: Recorder, interrupted: Callable[[], bool]) -> dict[str, Any]:
        """Take all steps, or stop at an interrupt; validate and save at intervals."""
        section, start = self.config.reward, time.perf_counter()
        inputs = Inputs(self.frames, self.device, section.data.augment)
        if section.model.freeze_encoder:
            inputs.encode(self.learners[0].member, np.union1d(self.rows, self.held_out))
        best: dict[str, Any] = {}
        best_step = 0
        for step in range(1, self.total + 1):
            rate = learning_rate(section.optim.lr, section.lr_sched, step, self.total)
            taken = [learner.step(inputs, rate) for learner in self.learners]
            stop = interrupted()
            saves = step % section.save_interval == 0 or step == self.total or stop
            if not saves and step % section.log_interval:
                recorder.progress(step)
                continue
            loss, norm = (float(torch.stack(part).mean()) for part in zip(*taken, strict=True))
            metrics = {"train/loss": loss, "train/grad_norm": norm, "train/learning_rate": rate}
            metrics["time/fps"] = step / (time.perf_counter() - start)
            if saves:
                found, state = self._validate(inputs)
                metrics |= {f"reward/{name}": value for name, value in found.items()}
            recorder.log(step, metrics)
            if saves:
                rank = (found["pr_auc"], -found["loss"])
                mark = "best" if not best or rank > (best["pr_auc"], -best["loss"]) else None
                if mark:
                    best, best_step = found, step
                save_checkpoint(section.save_dir, step, {PART: state}, keep=section.keep, mark=mark)
            if stop:
                break
        return {
            "save_dir": section.save_dir,
            "steps": step,
            "best_step": best_step,
            "stop_reason": "interrupted" if step < self.total else "finished",
            "seconds": time.perf_counter() - start,
            "validation": {name: finite(value) for name, value in best.items()},
            "warnings": warnings_of(best),
            "data": self.data,
            "seed": self.config.seed,
        }

    def _validate(self, inputs: "Inputs") -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the metrics on held-out episodes, and the state for a checkpoint."""
        section, members = self.config.reward, [learner.member for learner in self.learners]
        labels, episodes = self.frames.labels[self.held_out], self.frames.episodes[self.held_out]
        logits = all_logits(members, inputs, self.held_out)
        found = validate(logits, labels, episodes, section.target_fpr)
        meta = {
            "model": section.model.model_dump(),
            "threshold": found["threshold"],
            "temperature": found["temperature"],
            "target_fpr": section.target_fpr,
            "validation": {name: finite(value) for name, value in found.items()},
            "held_out": {"logits": logits.astype(np.float32), "labels": labels},
            "data": self.data,
            "seed": self.config.seed,
            "split": section.data.validation_share,
        }
        return found, {"members": [dict(member.state_dict()) for member in members], "meta": meta}


class _Learner:
    """One classifier and its optimizer.

    Half of each batch is positive. The log odds of the data are subtracted from the logits in the
    loss, so that probabilities are calibrated at the data's base rate.
    """

    def __init__(
        self,
        section: FitSection,
        stream: np.random.SeedSequence,
        rows: np.ndarray,
        labels: np.ndarray,
        log_odds: float,
        device: str,
    ) -> None:
        seed = int(stream.generate_state(1, np.uint64)[0] >> 1)
        self.generator = torch.Generator().manual_seed(seed)
        with seeded(self.generator):
            self.member = BinaryRewardClassifier(section.model)
        self.member.begin_at(log_odds)
        self.member.to(device)
        self.optimizer = Optimizer(
            self.member.parameters(),
            section.optim.lr,
            max_grad_norm=section.optim.clip_grad or math.inf,
            **section.optim.model_dump(include={"betas", "eps", "weight_decay"}),
        )
        self.batches = balanced_batches(rows, labels, section.global_batch_size, self.generator)
        self.device, self.log_odds = device, log_odds

    def step(self, inputs: "Inputs", learning_rate: float) -> tuple[Tensor, Tensor]:
        """Take one gradient step; return the loss and the norm of its gradient."""
        rows, labels = next(self.batches)
        logits = inputs.logits(self.member, rows, self.generator) - self.log_odds
        loss = functional.binary_cross_entropy_with_logits(logits, labels.to(self.device))
        self.optimizer.learning_rate = learning_rate
        norm = self.optimizer.step(loss)
        assert norm is not None
        return loss.detach(), norm


def learning_rate(highest: float, schedule: ScheduleConfig, step: int, total: int) -> float:
    """Return the learning rate of a step, 1 to `total`."""
    warmup = schedule.warmup_steps
    if step <= warmup:
        return highest * step / warmup
    if schedule.type == "constant":
        return highest
    done = (step - warmup) / max(total - warmup, 1)
    left = 1 - done if schedule.type == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return schedule.min_lr + (highest - schedule.min_lr) * left


# --- inputs and batches


class Inputs:
    """Images of frames on a device, or the features of a frozen encoder.

    Args:
        frames: The frames; not copied on the CPU.
        device: Device of the images.
        augment: Whether to augment images where `logits` is given a generator.
    """

    def __init__(self, frames: Frames, device: str, augment: bool) -> None:
        self._parts = {
            key: torch.from_numpy(part).to(device) for key, part in frames.images.items()
        }
        self._augment = augment
        self._encoded: Tensor | None = None  # rows of the features

    @torch.no_grad()
    def encode(self, member: BinaryRewardClassifier, rows: np.ndarray) -> None:
        """Replace the images by features, computed once.

        Args:
            member: Has the frozen encoder, which all members share.
            rows: Rows that will be read, in order.
        """
        chosen = torch.from_numpy(rows)
        parts = [member.encode(self.take(chunk)) for chunk in torch.split(chosen, _CHUNK)]
        self._parts = {key: torch.cat([part.pop(key) for part in parts]) for key in [*parts[0]]}
        self._encoded = chosen

    def take(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the images or features of rows [B, ...] by camera."""
        if self._encoded is not None:
            rows = torch.searchsorted(self._encoded, rows)
        # Measured six times as fast as indexing with brackets.
        return {
            key: part.index_select(0, rows.to(part.device)) for key, part in self._parts.items()
        }

    def logits(
        self, member: BinaryRewardClassifier, rows: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the logits [B] of rows; with a generator, images may be augmented."""
        chosen = self.take(rows)
        if self._encoded is not None:
            return member.decide(chosen)
        logits: Tensor = member(chosen, generator if self._augment else None)
        return logits


@torch.no_grad()
def all_logits(
    members: list[BinaryRewardClassifier], inputs: Inputs, rows: np.ndarray
) -> np.ndarray:
    """Return the logits [members, N] of rows [N], without dropout or augmentation."""
    found = []
    for member in members:
        member.eval()
        chunks = torch.split(torch.from_numpy(rows), _CHUNK)
        found.append(torch.cat([inputs.logits(member, chunk) for chunk in chunks]))
        member.train()
    return torch.stack(found).numpy(force=True).astype(np.float64)


def capped(
    rows: np.ndarray, labels: np.ndarray, most: int | None, generator: np.random.Generator
) -> np.ndarray:
    """Draw at most `most` of the rows [N], half of them positive if there are enough, in order."""
    if most is None or len(rows) <= most:
        return rows
    positive, negative = rows[labels], rows[~labels]
    n_negative = min(len(negative), most - min(len(positive), most // 2))
    chosen = [
        generator.choice(part, number, replace=False)
        for part, number in ((positive, most - n_negative), (negative, n_negative))
    ]
    return np.sort(np.concatenate(chosen))


def steps_per_epoch(labels: np.ndarray, batch_size: int) -> int:
    """Return the number of balanced batches that hold every row of the rarer label once."""
    rarer = min(int(labels.sum()), int((~labels).sum()))
    return max(1, math.ceil(2 * rarer / batch_size))


def balanced_batches(
    rows: np.ndarray, labels: np.ndarray, batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows and labels without end, the first half (or one more) positive, in random order."""
    n_negative = batch_size // 2
    n_positive = batch_size - n_negative
    positives = _in_turn(torch.from_numpy(rows[labels]), n_positive, generator)
    negatives = _in_turn(torch.from_numpy(rows[~labels]), n_negative, generator)
    targets = torch.cat([torch.ones(n_positive), torch.zeros(n_negative)])
    while True:
        yield torch.cat([next(positives), next(negatives)]), targets


def _in_turn(rows: Tensor, number: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield `number` rows at a time; none is repeated before all others were yielded."""
    waiting = rows[:0]
    while True:
        while len(waiting) < number:
            waiting = torch.cat([waiting, rows[torch.randperm(len(rows), generator=generator)]])
        yield waiting[:number]
        waiting = waiting[number:]


# --- validation


def validate(
    logits: np.ndarray, labels: np.ndarray, episodes: np.ndarray, target_fpr: float
) -> dict[str, Any]:
    """Choose temperature and threshold, and compute metrics over held-out frames.

    The threshold is 0.5, or as much higher as it takes for a share of `target_fpr` of the frames
    without success to pass it at most.

    Args:
        logits: [members, N].
        labels: bool [N].
        episodes: [N], the episode of each frame.
        target_fpr: Maximum false-positive rate.

    Returns:
        Metrics by name; NaN where there is nothing to count.
    """
    temperature = measure.fit_temperature(logits, labels)
    exact = measure.ensemble_probability(logits, temperature)
    # In the dtype of the networks, so that a threshold between two scores stays there.
    scores = exact.astype(np.float32)
    threshold = measure.threshold_for(scores, labels, target_fpr)
    uncalibrated = measure.ensemble_probability(logits)
    return {
        "pr_auc": measure.pr_auc(exact, labels),
        "precision": measure.precision(scores, labels, threshold),
        "recall": measure.recall(scores, labels, threshold),
        "false_positive_rate": measure.false_positive_rate(scores, labels, threshold),
        # Share of episodes without success of which a frame passes.
        "episode_false_positive_rate": measure.episode_false_positive_rate(
            scores >= threshold, labels, episodes
        ),
        "calibration_error": measure.expected_calibration_error(scores, labels),
        "calibration_error_before": measure.expected_calibration_error(uncalibrated, labels),
        "loss": measure.negative_log_likelihood(logits, labels, temperature),
        "base_rate": float(labels.mean()),
        "frames": len(labels),
        "positives": int(labels.sum()),
        "episodes": len(np.unique(episodes)),
        "positive_episodes": len(np.unique(episodes[labels])),
        "threshold": threshold,
        "temperature": temperature,
    }


def warnings_of(found: dict[str, Any]) -> list[str]:
    """Return a sentence for each thing to know before using a classifier; see `validate`."""
    positives, episodes = found["positives"], found["positive_episodes"]
    pr_auc, recall, precision = (found[name] for name in ("pr_auc", "recall", "precision"))
    passing = f"the threshold {found['threshold']:.3g}"
    sentences = {
        "validation has no failed episode: nothing can be said of false positives of episodes; "
        "collect failures, too": math.isnan(found["episode_false_positive_rate"]),
        f"validation has only {positives} frames with success, from {episodes} episodes: these "
        "numbers are rough; collect more successes": (
            positives < FEW_FRAMES or episodes < FEW_EPISODES
        ),
        f"PR-AUC is {pr_auc:.3f}, below {GOOD_PR_AUC}: see whether labels belong to the frames "
        "they are on and whether the cameras show success, then collect more or fit longer": (
            pr_auc < GOOD_PR_AUC
        ),
        f"only {recall:.0%} of the frames with success pass {passing}: collect more data or raise "
        "reward.target_fpr": recall < GOOD_RECALL,
        f"only {precision:.0%} of the frames that pass {passing} show success: collect more "
        "failures or lower reward.target_fpr": precision < GOOD_PRECISION,
    }
    return [sentence for sentence, holds in sentences.items() if holds]

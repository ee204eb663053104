"""`fit`: from labelled frames to a success classifier with a threshold."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from guerdon.data.files import atomic_file
from guerdon.data.frames import load_frames
from guerdon.nn.classifier import BinaryRewardClassifier
from guerdon.nn.init import seeded
from guerdon.nn.optimizer import Optimizer
from guerdon.training.checkpoints import save_checkpoint
from guerdon.training.display import Status, make_display
from guerdon.training.fit_data import (
    FeatureSource,
    FrameSource,
    Source,
    all_logits,
    balanced_batches,
    capped,
    steps_per_epoch,
)
from guerdon.training.fit_files import PART, begin_folder
from guerdon.training.fit_validation import Validation, validate, warnings_of
from guerdon.training.parts import find_device
from guerdon.training.recorder import Recorder
from guerdon.training.run import interrupts
from guerdon.training.threads import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from guerdon.data.frames import Frames
    from guerdon.training.display import Mode
    from guerdon.training.fit_config import FitConfig, ScheduleConfig

FINISHED, INTERRUPTED = "finished", "interrupted"


@dataclass(frozen=True)
class FitResult:
    """How a fit ended; ``summary.json`` holds the same."""

    save_dir: str
    """Where the checkpoints are."""
    steps: int
    """Gradient steps taken."""
    best_step: int
    """The step of the best checkpoint."""
    stop_reason: str
    """``finished`` or ``interrupted``."""
    seconds: float
    """How long it took, without reading the files."""
    validation: dict[str, Any]
    """The best checkpoint's numbers; see `Validation`."""
    warnings: list[str]
    """What to know before using it."""
    data: dict[str, Any]
    """Which frames: ``hash``, folders, and how many."""
    seed: int
    """Of everything random."""


def fit(
    config: FitConfig,
    *,
    overwrite: bool = False,
    display: Mode = "auto",
    frames: Frames | None = None,
) -> FitResult:
    """Fits a classifier, or an ensemble, and leaves checkpoints.

    Args:
        config: See `compose_fit`.
        overwrite: Whether a fit that ``save_dir`` holds is replaced.
        display: What to show: ``auto``, ``live``, ``lines`` or ``none``.
        frames: The frames, if they are in memory; else they are read from the config's folders.
    """
    section = config.reward
    frames = read_frames(config) if frames is None else frames
    with threads(config.threads):
        # Before the folder: what cannot be fitted leaves nothing behind, and replaces nothing.
        made = _Fit(config, frames)
        folder = begin_folder(config, overwrite)
        title = f"fit · {section.save_dir} · seed {config.seed}"
        shown = make_display(_Progress(made.total), sys.stdout, display, title=title)
        with Recorder(folder, shown) as recorder, interrupts() as interrupted:
            for line in (*frames.report().splitlines(), *made.notes()):
                recorder.text(line)
            with seeded(config.seed, made.device):  # dropout
                result = made.run(recorder, interrupted)
            with atomic_file(folder.summary) as file:
                file.write(json.dumps(asdict(result), indent=1, allow_nan=False).encode() + b"\n")
            for warning in result.warnings:
                recorder.text(f"Warning: {warning}")
    return result


def read_frames(config: FitConfig, progress: Callable[[int, int], None] | None = None) -> Frames:
    """Reads the frames that a config names.

    Args:
        config: Of a fit.
        progress: Called with the number of files read, and of all.
    """
    data, model = config.reward.data, config.reward.model
    return load_frames(
        data.positive_dir, data.negative_dir, model.image_keys, model.image_size, progress=progress
    )


class _Fit:
    """A fit that is under way."""

    def __init__(self, config: FitConfig, frames: Frames) -> None:
        self.config, self.frames = config, frames
        section = config.reward
        # What a checkpoint says, seed and share, is enough to split the same data again.
        generator = np.random.default_rng(config.seed)
        train, self.held_out = frames.split(section.data.validation_share, generator)
        _check_split(frames, train, self.held_out)
        natural = frames.labels[train]
        self.train_rows = capped(train, natural, section.data.max_frames, generator)
        labels = frames.labels[self.train_rows]
        self.total = section.num_epochs * steps_per_epoch(labels, section.global_batch_size)
        self.device, self.device_note = _device(config)
        log_odds = math.log(natural.sum() / (~natural).sum())
        self.learners = [
            _Learner(config, self.device, stream, self.train_rows, labels, log_odds)
            for stream in np.random.SeedSequence(config.seed).spawn(section.members)
        ]
        self.data = {
            "hash": frames.hash,
            "digests": frames.digests,
            # From everywhere: whoever refits it beside a policy reads them again.
            "positive_dir": str(Path(section.data.positive_dir).resolve()),
            "negative_dir": str(Path(section.data.negative_dir).resolve()),
            "frames": len(frames.labels),
            "trajectories": len(frames.from_positive),
        }

    def notes(self) -> list[str]:
        """What else to say at the start."""
        split = (
            f"learning from {len(self.train_rows)} frames, validating on {len(self.held_out)} of "
            f"other episodes ({self.frames.labels[self.held_out].mean():.1%} with label 1)"
        )
        return [split] if self.device_note is None else [self.device_note, split]

    def run(self, recorder: Recorder, interrupted: Callable[[], bool]) -> FitResult:
        """Takes all steps, or as many as it is let."""
        section, start = self.config.reward, time.perf_counter()
        source = self._source()
        best: tuple[Validation, int] | None = None
        for step in range(1, self.total + 1):
            rate = learning_rate(section.optim.lr, section.lr_sched, step, self.total)
            taken = [learner.step(source, rate) for learner in self.learners]
            stop = interrupted()
            saves = step % section.save_interval == 0 or step == self.total or stop
            metrics: dict[str, Any] = {}
            if step % section.log_interval == 0 or saves:
                loss, norm = (float(torch.stack(part).mean()) for part in zip(*taken, strict=True))
                speed = step / (time.perf_counter() - start)
                metrics = {"train/loss": loss, "train/grad_norm": norm}
                metrics |= {"train/learning_rate": rate, "time/fps": speed}
            if saves:
                found = self._validated(source)
                metrics |= {f"reward/{name}": value for name, value in asdict(found).items()}
                better = best is None or found.rank > best[0].rank
                best = (found, step) if best is None or better else best
            if metrics:
                recorder.log(step, metrics)
            else:
                recorder.progress(step)
            if saves:
                state = {PART: {"members": self._weights(), "meta": self._meta(found)}}
                mark = "best" if better else None
                save_checkpoint(section.save_dir, step, state, keep=section.keep, mark=mark)
            if stop:
                break
        assert best is not None
        return FitResult(
            save_dir=section.save_dir,
            steps=step,
            best_step=best[1],
            stop_reason=INTERRUPTED if step < self.total else FINISHED,
            seconds=time.perf_counter() - start,
            validation=best[0].numbers(),
            warnings=warnings_of(best[0]),
            data=self.data,
            seed=self.config.seed,
        )

    def _source(self) -> Source:
        section = self.config.reward
        source = FrameSource(self.frames, self.device, section.data.augment)
        if section.model.freeze_encoder:
            rows = np.union1d(self.train_rows, self.held_out)
            return FeatureSource(source, self.learners[0].member, rows)
        return source

    def _validated(self, source: Source) -> Validation:
        rows, frames = self.held_out, self.frames
        logits = all_logits([learner.member for learner in self.learners], source, rows)
        found = validate(
            logits, frames.labels[rows], frames.episodes[rows], self.config.reward.target_fpr
        )
        self.said = {"logits": logits.astype(np.float32), "labels": frames.labels[rows]}
        return found

    def _weights(self) -> list[dict[str, torch.Tensor]]:
        return [dict(learner.member.state_dict()) for learner in self.learners]

    def _meta(self, found: Validation) -> dict[str, Any]:
        section = self.config.reward
        return {
            "model": section.model.model_dump(),
            "threshold": found.threshold,
            "temperature": found.temperature,
            "target_fpr": section.target_fpr,
            "validation": found.numbers(),
            "held_out": self.said,
            "data": self.data,
            "seed": self.config.seed,
            "split": section.data.validation_share,
        }


class _Learner:
    """One classifier, with what trains it.

    Half of each batch is positive, whatever the data is. The log odds of the data are taken off the
    logits in the loss, so that probabilities are right at the data's own base rate.
    """

    def __init__(
        self,
        config: FitConfig,
        device: str,
        stream: np.random.SeedSequence,
        rows: np.ndarray,
        labels: np.ndarray,
        log_odds: float,
    ) -> None:
        optim = config.reward.optim
        seed = int(stream.generate_state(1, np.uint64)[0] >> 1)
        self.generator = torch.Generator().manual_seed(seed)
        with seeded(self.generator):
            self.member = BinaryRewardClassifier(config.reward.model)
        self.member.begin_at(log_odds)
        self.member.to(device)
        self.optimizer = Optimizer(
            self.member.parameters(),
            optim.lr,
            max_grad_norm=optim.clip_grad or math.inf,
            betas=optim.betas,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
        )
        self.batches = balanced_batches(
            rows, labels, config.reward.global_batch_size, self.generator
        )
        self.device, self.log_odds = device, log_odds

    def step(self, source: Source, learning_rate: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Learns from the next batch.

        Returns:
            The loss, and the norm of its gradient.
        """
        rows, labels = next(self.batches)
        logits = source.logits(self.member, rows, self.generator)
        loss = functional.binary_cross_entropy_with_logits(
            logits - self.log_odds, labels.to(self.device)
        )
        self.optimizer.learning_rate = learning_rate
        norm = self.optimizer.step(loss)
        assert norm is not None
        return loss.detach(), norm


def learning_rate(highest: float, schedule: ScheduleConfig, step: int, total: int) -> float:
    """The step size of a step.

    Args:
        highest: After the warmup.
        schedule: How it changes.
        step: From 1 to `total`.
        total: All steps.
    """
    warmup = schedule.warmup_steps
    if step <= warmup:
        return highest * step / warmup
    done = (step - warmup) / max(total - warmup, 1)
    left = {
        "constant": 1.0,
        "linear": 1 - done,
        "cosine": 0.5 * (1 + math.cos(math.pi * done)),
    }[schedule.type]
    return highest if left == 1.0 else schedule.min_lr + (highest - schedule.min_lr) * left


def _check_split(frames: Frames, train: np.ndarray, held_out: np.ndarray) -> None:
    """Sees that both sides have frames of both labels."""
    for rows in (train, held_out):
        labels = frames.labels[rows]
        if labels.all() or not labels.any():
            kind = "without" if labels.any() else "with"
            raise ValueError(
                f"frames {kind} success are in too few of the {len(frames.from_positive)} "
                "trajectories to learn from some and validate on others: collect more of them"
            )


def _device(config: FitConfig) -> tuple[str, str | None]:
    """The device to fit on, and what to tell the user about it, if anything."""
    gpu = config.reward.gpu_id
    if config.device is not None:
        try:
            return find_device(config.device), None
        except ValueError:
            raise ValueError(
                f"device is {config.device!r}, but torch finds no such device: use device=cpu"
            ) from None
    if gpu is None:
        return "cpu", None
    if gpu < torch.cuda.device_count():
        return f"cuda:{gpu}", None
    return "cpu", f"reward.gpu_id is {gpu}, but torch finds no such GPU: fitting on the CPU"


class _Progress(Status):
    """What is known of a fit."""

    def results(self) -> dict[str, str]:
        """The newest loss and PR-AUC, as text."""
        shown = {"loss": "train/loss", "PR-AUC": "reward/pr_auc"}
        return {
            name: f"{self.metrics[key]:.4f}" for name, key in shown.items() if key in self.metrics
        }

    def speed(self) -> dict[str, str]:
        """Gradient steps a second, and the time left."""
        return {name.replace("fps", "steps/s"): text for name, text in super().speed().items()}

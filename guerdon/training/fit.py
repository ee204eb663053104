"""Fit a success classifier to labelled frames, and choose its temperature and threshold."""

import math
import shlex
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
from guerdon.data.serializer import read_tree, write_tree
from guerdon.nn.classifier import BinaryRewardClassifier
from guerdon.nn.init import seeded
from guerdon.nn.optimizer import Optimizer
from guerdon.ops import classification as measure
from guerdon.training.checkpoints import drop_later, load_checkpoint, save_checkpoint
from guerdon.training.display import Mode, make_display
from guerdon.training.fit_files import (
    PART,
    STATE,
    FitConfig,
    FitSection,
    ScheduleConfig,
    begin_folder,
    finish_folder,
    unfinished_folder,
)
from guerdon.training.parts import find_device
from guerdon.training.process import interrupts, threads
from guerdon.training.run_folder import Recorder, RunFolder, finite, write_json

GOOD_PR_AUC, GOOD_PRECISION, GOOD_RECALL = 0.9, 0.8, 0.5
FEW_FRAMES, FEW_EPISODES = 50, 5
_CHUNK = 256  # frames of one call without gradients
_SHOWN = {"loss": "train/loss", "PR-AUC": "reward/pr_auc"}


def fit(
    config: FitConfig,
    *,
    overwrite: bool = False,
    resume: bool = False,
    display: Mode = "auto",
    frames: Frames | None = None,
) -> dict[str, Any]:
    """Fit a classifier or an ensemble, and save checkpoints.

    Args:
        config: See `compose_fit`, and `resumed_config` to resume.
        overwrite: Whether to replace a fit in ``save_dir``, when this one is finished.
        resume: Whether to continue the fit in ``save_dir``, which was stopped. The result is the
            same, bit for bit, as without the stop.
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
        save_dir = config.reward.save_dir
        folder = unfinished_folder(save_dir) if resume else begin_folder(config, overwrite)
        title = f"fit · {save_dir} · seed {config.seed}"
        shown = make_display(process.total, sys.stdout, display, title=title, shown=_SHOWN)
        with seeded(config.seed, process.device):  # dropout
            step = process.restore(folder) if resume else None
            with (
                Recorder(folder, shown, resume_step=step) as recorder,
                interrupts(recorder.interrupt) as interrupted,
            ):
                again = f"guerdon reward fit --resume {shlex.quote(save_dir)}"
                where = "saved after each epoch" if step is None else f"resumed at step {step}"
                hint = f"{where}; if it is stopped, continue with: {again}"
                for line in (*frames.report().splitlines(), process.note, hint):
                    recorder.text(line)
                result = process.run(folder, recorder, interrupted)
                write_json(folder.summary, result)
                for warning in result["warnings"]:
                    recorder.text(f"Warning: {warning}")
        if result["stop_reason"] == "finished":
            finish_folder(folder, save_dir)
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
        self.per_epoch, self.total = per_epoch, section.num_epochs * per_epoch
        self.step, self.seconds = 0, 0.0
        self.best: dict[str, Any] = {}  # metrics of the best checkpoint
        self.best_step = 0
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

    def run(
        self, folder: RunFolder, recorder: Recorder, interrupted: Callable[[], bool]
    ) -> dict[str, Any]:
        """Take all steps, or stop at an interrupt; validate and save at intervals."""
        section, start = self.config.reward, time.perf_counter() - self.seconds
        inputs = Inputs(self.frames, self.device, section.data.augment)
        if section.model.freeze_encoder:
            inputs.encode(self.learners[0].member, np.union1d(self.rows, self.held_out))
        stop = False
        while self.step < self.total and not stop:
            self.step += 1
            rate = learning_rate(section.optim.lr, section.lr_sched, self.step, self.total)
            taken = [learner.step(inputs, rate) for learner in self.learners]
            stop, last = interrupted(), self.step == self.total
            due = last or self.step % section.save_interval == 0
            found, state = dict[str, Any](), dict[str, Any]()
            if due or (stop and not self.best):  # a fit that is stopped early has a classifier, too
                found, state = self._validate(inputs)
            if due or self.step % section.log_interval == 0:
                loss, norm = (float(torch.stack(part).mean()) for part in zip(*taken, strict=True))
                metrics = {"train/loss": loss, "train/grad_norm": norm, "train/learning_rate": rate}
                metrics["time/fps"] = self.step / (time.perf_counter() - start)
                if due:
                    metrics |= {f"reward/{name}": value for name, value in found.items()}
                recorder.log(self.step, metrics)
            recorder.progress(self.step)
            self.seconds = time.perf_counter() - start
            try:
                if found:
                    self._save(folder, found, state)
                if stop or (not last and (found or self.step % self.per_epoch == 0)):
                    write_tree(folder.path / STATE, {"fit": self.training_state()}, "fit")
            except OSError as error:
                if last or stop:
                    raise
                recorder.warn(f"{error.strerror or error}; the next one is tried at its time")
        return {
            "save_dir": section.save_dir,
            "steps": self.step,
            "best_step": self.best_step,
            "stop_reason": "interrupted" if self.step < self.total else "finished",
            "seconds": self.seconds,
            "validation": {name: finite(value) for name, value in self.best.items()},
            "warnings": warnings_of(self.best),
            "data": self.data,
            "seed": self.config.seed,
        }

    def _save(self, folder: RunFolder, found: dict[str, Any], state: dict[str, Any]) -> None:
        """Save a validated checkpoint."""
        best, keep = self.best, self.config.reward.keep
        rank = (found["pr_auc"], -found["loss"])
        mark = "best" if not best or rank > (best["pr_auc"], -best["loss"]) else None
        save_checkpoint(folder.path, self.step, {PART: state}, keep=keep, mark=mark)
        if mark:
            self.best, self.best_step = found, self.step

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume, beside the best checkpoint."""
        generators = [torch.get_rng_state()]
        if self.device.startswith("cuda"):
            generators.append(torch.cuda.get_rng_state(self.device))
        return {
            "step": self.step,
            "seconds": self.seconds,
            "generators": generators,  # dropout
            "learners": [learner.training_state() for learner in self.learners],
            "made_of": self._made_of(),
        }

    def _made_of(self) -> dict[str, Any]:
        config = self.config.model_dump(mode="json")
        del config["reward"]["save_dir"]
        return {"config": config, "frames": self.frames.hash}

    def restore(self, folder: RunFolder) -> int:
        """Restore the state in a folder, and return its step; 0 if none was saved yet.

        A checkpoint after it is the same as the one that will replace it. One that an interrupt
        saved out of turn is removed.
        """
        if not (folder.path / STATE).exists():
            return 0
        state = read_tree(folder.path / STATE, "fit")["fit"]
        for name, now in self._made_of().items():
            if state["made_of"][name] != now:
                what = "config in fit.yaml" if name == "config" else "frames"
                raise ValueError(
                    f"the {what} changed since the fit in {folder.path} began: undo the change, or "
                    "start again with --overwrite"
                )
        self.step, self.seconds = state["step"], state["seconds"]
        for learner, each in zip(self.learners, state["learners"], strict=True):
            learner.load_training_state(each)
        torch.set_rng_state(state["generators"][0])
        for generator in state["generators"][1:]:
            torch.cuda.set_rng_state(generator, self.device)
        if (folder.path / "best").exists():
            saved, self.best_step = load_checkpoint(folder.path, "best", [PART])
            found = saved[PART]["meta"]["validation"]
            self.best = {name: math.nan if v is None else v for name, v in found.items()}
        if self.best_step % self.config.reward.save_interval and self.best_step != self.total:
            (folder.path / "best").unlink()
            drop_later(folder.path, -1)
            self.best, self.best_step = {}, 0
        return self.step

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
        self.batches = BalancedBatches(rows, labels, section.global_batch_size, self.generator)
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

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume."""
        return {
            "weights": dict(self.member.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "waiting": self.batches.waiting,
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore `training_state`."""
        self.member.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.batches.waiting = state["waiting"]


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


class BalancedBatches(Iterator[tuple[Tensor, Tensor]]):
    """Yields rows and labels without end, the first half (or one more) positive, in random order.

    No row is repeated before all others of its label were yielded.
    """

    def __init__(
        self, rows: np.ndarray, labels: np.ndarray, batch_size: int, generator: torch.Generator
    ) -> None:
        numbers = batch_size - batch_size // 2, batch_size // 2
        self._parts = [torch.from_numpy(rows[labels]), torch.from_numpy(rows[~labels])]
        self._numbers, self._generator = numbers, generator
        self._targets = torch.cat([torch.ones(numbers[0]), torch.zeros(numbers[1])])
        self.waiting = [part[:0] for part in self._parts]
        """Rows of each label that come next, already in random order."""

    def __next__(self) -> tuple[Tensor, Tensor]:
        taken = []
        for i, (part, number) in enumerate(zip(self._parts, self._numbers, strict=True)):
            while len(self.waiting[i]) < number:
                order = torch.randperm(len(part), generator=self._generator)
                self.waiting[i] = torch.cat([self.waiting[i], part[order]])
            taken.append(self.waiting[i][:number])
            self.waiting[i] = self.waiting[i][number:]
        return torch.cat(taken), self._targets


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
    """Return warnings about a classifier; see `validate`."""
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

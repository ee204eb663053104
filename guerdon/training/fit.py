"""Fit a success classifier to labelled frames, and choose its temperature and threshold."""

import math
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guerdon import startup
from guerdon.data.frames import Frames, load_frames
from guerdon.data.leaves import check_like
from guerdon.data.serializer import read_tree, write_tree
from guerdon.limits import reading
from guerdon.nn.classifier import build_members
from guerdon.nn.init import seeded
from guerdon.ops import classification as measure
from guerdon.reward.ood import Reference, frame_vectors
from guerdon.training.checkpoints import drop_later, load_checkpoint, save_checkpoint
from guerdon.training.display import Mode, make_display
from guerdon.training.fit_checks import (
    label_warnings,
    probe_frames,
    probe_warnings,
    suspected_labels,
)
from guerdon.training.fit_files import (
    PART,
    STATE,
    FitConfig,
    begin_folder,
    finish_folder,
    unfinished_folder,
    with_absolute_paths,
)
from guerdon.training.fit_steps import (
    Inputs,
    Learner,
    all_logits,
    capped,
    learning_rate,
    steps_per_epoch,
)
from guerdon.training.parts import find_device
from guerdon.training.process import interrupts, threads
from guerdon.training.run_folder import Recorder, RunFolder, finite, write_json

GOOD_PR_AUC, GOOD_PRECISION, GOOD_RECALL = 0.9, 0.8, 0.5
FEW_FRAMES, FEW_EPISODES = 50, 5
STEPS, EPOCHS = 750, 40
"""Gradient steps for which ``num_epochs`` is chosen, and its maximum then."""
VALIDATIONS = 6
"""Number of checkpoints for which ``save_interval`` is chosen."""
LONG = 600
"""Seconds of a fit from which to say what makes it shorter."""
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
        ``stop_reason`` (``finished``, ``no_improvement`` or ``interrupted``), ``seconds``, metrics
        of the best checkpoint (see `measured`) on the episodes that it was chosen by
        (``validation``) and on others (``test``), ``probes`` (see `probe_frames`) and ``labels``
        (see `suspected_labels`), which are None if it was interrupted, ``warnings``, ``data``
        (hash, folders and numbers of frames) and ``seed``.
    """
    config = config if resume else with_absolute_paths(config)
    frames = read_frames(config) if frames is None else frames
    startup.begin()
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
        if result["stop_reason"] != "interrupted":
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
        # The seed and shares in a checkpoint are enough to repeat the split.
        generator = np.random.default_rng(config.seed)
        data = section.data
        shares = (data.test_share, data.validation_share)
        train, self.tested, self.held_out = frames.split(generator, *shares)
        for side in (labels[train], labels[self.held_out], labels[self.tested]):
            if side.all() or not side.any():
                kind = "without" if side.any() else "with"
                raise ValueError(
                    f"frames {kind} success are in too few of the {len(frames.from_positive)} "
                    "trajectories to learn from some, validate on others and test on the rest: "
                    "collect more of them"
                )
        self.rows = capped(train, labels[train], data.max_frames, generator)
        self.per_epoch = steps_per_epoch(labels[self.rows], section.global_batch_size)
        epochs = section.num_epochs
        if epochs is None:
            epochs = min(math.ceil(STEPS / self.per_epoch), EPOCHS)
        self.total = epochs * self.per_epoch
        self.save_interval = section.save_interval or math.ceil(self.total / VALIDATIONS)
        self.step, self.seconds = 0, 0.0
        self.best: dict[str, Any] = {}  # metrics of the best checkpoint
        self.best_step = 0
        self.device = find_device(config.device or "cpu", "device")
        self.note = (
            f"learning from {len(self.rows)} frames, validating on {len(self.held_out)} of other "
            f"episodes ({labels[self.held_out].mean():.1%} with label 1), testing on "
            f"{len(self.tested)} of yet others"
        )
        log_odds = math.log(labels[train].sum() / (~labels[train]).sum())
        self.reference = self._reference(self.rows[labels[self.rows]])
        self.learners = [
            Learner(section, stream, self.rows, labels[self.rows], log_odds, self.device)
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
        section = self.config.reward
        added = max(section.global_batch_size // 8, 6) if section.data.synthetic_failures else 0
        inputs = Inputs(self.frames, self.device, section.data.augment, added)
        if section.model.freeze_encoder:
            parts = (self.rows, self.held_out, self.tested)
            inputs.encode(self.learners[0].member, np.unique(np.concatenate(parts)))
        recorder.text(self._estimate(inputs))
        start = time.perf_counter() - self.seconds
        stop = early = False
        while self.step < self.total and not (stop or early):
            self.step += 1
            rate = learning_rate(section.optim.lr, section.lr_sched, self.step, self.total)
            taken = [learner.step(inputs, rate) for learner in self.learners]
            stop, last = interrupted(), self.step == self.total
            due = last or self.step % self.save_interval == 0
            found, state = dict[str, Any](), dict[str, Any]()
            if due or (stop and not self.best):  # an interrupted fit has a classifier, too
                found, state = self._validate(inputs)
                early = due and not last and self._is_stuck(found)
            if due or self.step % section.log_interval == 0:
                loss, norm = (float(torch.stack(part).mean()) for part in zip(*taken, strict=True))
                metrics = {"train/loss": loss, "train/grad_norm": norm, "train/learning_rate": rate}
                metrics["time/fps"] = self.step / (time.perf_counter() - start)
                if due:
                    metrics |= {f"reward/{name}": value for name, value in found.items()}
                recorder.log(self.step, metrics)
            recorder.progress(self.step)
            self.seconds = time.perf_counter() - start
            last = last or early
            try:
                if found:
                    self._save(folder, found, state)
                if stop or (not last and (found or self.step % self.per_epoch == 0)):
                    write_tree(folder.path / STATE, {"fit": self.training_state()}, "fit")
            except OSError as error:
                if last or stop:
                    raise
                recorder.warn(f"{error.strerror or error}; the next one is tried at its time")
        reason = "no_improvement" if early else "finished"
        if self.step < self.total and not early:
            reason = "interrupted"
        return self._result(folder, reason, recorder, interrupted)

    def _result(
        self, folder: RunFolder, reason: str, recorder: Recorder, interrupted: Callable[[], bool]
    ) -> dict[str, Any]:
        """Check the best checkpoint, unless the fit was interrupted, and return the result."""
        section = self.config.reward
        saved = load_checkpoint(folder.path, "best", [PART])[0][PART]
        tested = saved["meta"]["test"]
        warnings = warnings_of({key: math.nan if v is None else v for key, v in tested.items()})
        probes = labels = None
        if reason != "interrupted":
            recorder.text("probing the classifier with changed frames, and checking the labels")
            probes = self._probed(saved)
            warnings += probe_warnings(probes, section.data.synthetic_failures)
            if section.data.check_labels:
                frames, seed = self.frames, self.config.seed
                labels = suspected_labels(frames, section, seed, self.device, interrupted)
            warnings += label_warnings(labels, self.frames)
        return {
            "save_dir": section.save_dir,
            "steps": self.step,
            "best_step": self.best_step,
            "stop_reason": reason,
            "seconds": self.seconds,
            "validation": saved["meta"]["validation"],
            "test": tested,
            "probes": probes,
            "labels": labels,
            "warnings": warnings,
            "data": self.data,
            "seed": self.config.seed,
        }

    def _probed(self, saved: dict[str, Any]) -> list[dict[str, Any]]:
        members, meta = build_members(saved), saved["meta"]
        return probe_frames(
            [member.to(self.device) for member in members],
            self.frames,
            self.tested,
            meta["temperature"],
            meta["threshold"],
            self.device,
        )

    def _estimate(self, inputs: Inputs) -> str:
        """Measure a few batches with another learner, and say how long the fit will take."""
        section, labels = self.config.reward, self.frames.labels
        with seeded(0, self.device):
            stream = np.random.SeedSequence(0)
            learner = Learner(section, stream, self.rows, labels[self.rows], 0.0, self.device)
            taken = []
            for _ in range(4):
                start = time.perf_counter()
                float(learner.step(inputs, 0.0)[0])  # waits for a GPU
                taken.append(time.perf_counter() - start)
            rows = self.held_out[:64]
            start = time.perf_counter()
            all_logits([learner.member], inputs, rows)
            forward = (time.perf_counter() - start) / len(rows)
        step = float(np.median(taken))
        validated = math.ceil((self.total - self.step) / self.save_interval)
        n_frames = validated * (len(self.held_out) + len(self.tested))
        seconds = section.members * ((self.total - self.step) * step + n_frames * forward)
        text = f"{self.total - self.step:,} steps of {step:.2g} s: fitting takes about "
        text += f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{math.ceil(seconds)} seconds"
        if seconds > LONG:
            text += (
                "; a smaller reward.model.width, reward.num_epochs or reward.data.max_frames "
                "makes it shorter"
            )
        return text

    def _rank(self, found: dict[str, Any]) -> tuple[float, float]:
        return found["pr_auc"], -found["loss"]

    def _is_best(self, found: dict[str, Any]) -> bool:
        return not self.best or self._rank(found) > self._rank(self.best)

    def _is_stuck(self, found: dict[str, Any]) -> bool:
        """Return whether so many checkpoints up to this one were not better that the fit stops."""
        patience = self.config.reward.patience
        steps = self.step - self.best_step
        return (
            patience is not None
            and not self._is_best(found)
            and steps >= patience * self.save_interval
        )

    def _save(self, folder: RunFolder, found: dict[str, Any], state: dict[str, Any]) -> None:
        """Save a validated checkpoint."""
        mark = "best" if self._is_best(found) else None
        keep = self.config.reward.keep
        save_checkpoint(folder.path.resolve(), self.step, {PART: state}, keep=keep, mark=mark)
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
        with reading(folder.path):
            self._restore(state, folder)
        return self.step

    def _restore(self, state: dict[str, Any], folder: RunFolder) -> None:
        for name, now in self._made_of().items():
            if state["made_of"][name] != now:
                what = "config in fit.yaml" if name == "config" else "frames"
                raise ValueError(
                    f"the {what} changed since the fit in {folder.path} began: undo the change, or "
                    "start again with --overwrite"
                )
        check_like(state, self.training_state(), "its state")
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
        if self.best_step % self.save_interval and self.best_step != self.total:
            (folder.path / "best").unlink()
            drop_later(folder.path, -1)
            self.best, self.best_step = {}, 0

    def _reference(self, rows: np.ndarray) -> Reference:
        """Return what frames of the policy will be compared with: successes, by their rows."""
        reference, frames = Reference(), self.frames
        shown = {key: part[rows] for key, part in frames.images.items()}
        follows = frames.labels[rows - 1] & (frames.episodes[rows - 1] == frames.episodes[rows])
        reference.fit(frame_vectors(shown), frames.episodes[rows], self.config.seed, ~follows)
        reference.rewards = torch.zeros(1)
        return reference

    def _validate(self, inputs: Inputs) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the metrics on validation episodes, and the state for a checkpoint."""
        section, members = self.config.reward, [learner.member for learner in self.learners]
        parts = [
            (
                all_logits(members, inputs, rows),
                self.frames.labels[rows],
                self.frames.episodes[rows],
            )
            for rows in (self.held_out, self.tested)
        ]
        (logits, labels, _), (test_logits, test_labels, _) = parts
        temperature, threshold = choose(logits, labels, section.target_fpr)
        found, tested = (measured(*part, temperature, threshold) for part in parts)
        meta = {
            "model": section.model.model_dump(),
            "threshold": threshold,
            "temperature": temperature,
            "target_fpr": section.target_fpr,
            "validation": {name: finite(value) for name, value in found.items()},
            "test": {name: finite(value) for name, value in tested.items()},
            "held_out": {"logits": test_logits.astype(np.float32), "labels": test_labels},
            "data": self.data,
            "reference": self._measured(logits / temperature),
            "seed": self.config.seed,
            "split": [section.data.test_share, section.data.validation_share],
        }
        return found, {"members": [dict(member.state_dict()) for member in members], "meta": meta}

    def _measured(self, logits: np.ndarray) -> dict[str, Any]:
        """Return the state of the reference, with the members' disagreement [members, N]."""
        spread = torch.sigmoid(torch.from_numpy(logits)).std(0, correction=0)
        self.reference.disagreement = spread.float().sort()[0]
        return self.reference.training_state()


# --- validation


def choose(logits: np.ndarray, labels: np.ndarray, target_fpr: float) -> tuple[float, float]:
    """Choose temperature and threshold on held-out frames.

    The threshold is 0.5, or as much higher as it takes for a share of `target_fpr` of the frames
    without success to pass it at most.

    Args:
        logits: [members, N].
        labels: bool [N].
        target_fpr: Maximum false-positive rate.
    """
    temperature = measure.fit_temperature(logits, labels)
    # In the dtype of the networks, so that a threshold between two scores stays there.
    scores = measure.ensemble_probability(logits, temperature).astype(np.float32)
    threshold = measure.threshold_for(scores, labels, target_fpr)
    return temperature, threshold


def measured(
    logits: np.ndarray,
    labels: np.ndarray,
    episodes: np.ndarray,
    temperature: float,
    threshold: float,
) -> dict[str, Any]:
    """Compute metrics over held-out frames.

    Args:
        logits: [members, N].
        labels: bool [N].
        episodes: [N], the episode of each frame.
        temperature: Divides the logits.
        threshold: Minimum probability that passes.

    Returns:
        Metrics by name; NaN where there is nothing to count.
    """
    exact = measure.ensemble_probability(logits, temperature)
    scores = exact.astype(np.float32)  # as in `choose`
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
    """Return warnings about the metrics of a classifier; see `measured`."""
    positives, episodes = found["positives"], found["positive_episodes"]
    pr_auc, recall, precision = (found[name] for name in ("pr_auc", "recall", "precision"))
    passing = f"the threshold {found['threshold']:.3g}"
    sentences = {
        "the test has no failed episode: nothing can be said of false positives of episodes; "
        "collect failures, too": math.isnan(found["episode_false_positive_rate"]),
        f"the test has only {positives} frames with success, from {episodes} episodes: these "
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

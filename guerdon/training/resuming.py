"""Resuming a run: what may change, and which state it continues from."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from guerdon.config import GuerdonConfig
    from guerdon.training.evaluation import Evaluator
    from guerdon.training.parts import Parts
    from guerdon.training.run_folder import RunFolder

# Options of a reward that may change when a run is resumed.
_MAY_CHANGE = {
    "learning_rate",
    "batch_size",
    "update_per_collect",
    "train_every",
    "weight",
    "record_path",
    "positive_dir",
    "negative_dir",
}


def check_same(before: GuerdonConfig, now: GuerdonConfig) -> None:
    """Check that only limits change, and not what is learned."""
    for key, old, new in (
        ("seed", before.seed, now.seed),
        ("env.id", before.env.id, now.env.id),
        ("env.n_envs", before.env.n_envs, now.env.n_envs),
        ("policy.type", before.policy["type"], now.policy["type"]),
        ("policy.model", before.policy.get("model"), now.policy.get("model")),
        ("reward.terms", list(before.reward.terms), list(now.reward.terms)),
        ("reward.checkpoint_path", before.reward.checkpoint_path, now.reward.checkpoint_path),
        *_differences("reward.terms", before.reward.terms, now.reward.terms),
    ):
        if old != new:
            raise ValueError(f"{key} of a run cannot change on resume: it is {old}, not {new}")


def _differences(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Options that differ and matter: key, old and new value."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield path, old, new
        return
    for key in dict.fromkeys((*old, *new)):
        if key not in _MAY_CHANGE:
            yield from _differences(f"{path}.{key}", old.get(key), new.get(key))


def saved_state(folder: RunFolder, exact: bool) -> tuple[dict[str, Any] | None, int]:
    """The state that a run is resumed from, and its step: None and -1 if none was saved yet."""
    which = "scheduled" if exact else "latest"
    if not checkpoint_steps(folder.checkpoints) or (
        exact and not (folder.checkpoints / which).exists()
    ):
        return None, -1
    return load_checkpoint(folder.checkpoints, which)


def restore(parts: Parts, state: dict[str, Any], folder: RunFolder) -> None:
    """Load the state of a run into its parts."""
    try:
        parts.load_training_state(state)
    except (RuntimeError, ValueError, KeyError) as error:
        raise ValueError(
            f"the checkpoint in {folder.path} does not fit this config or this version of guerdon "
            f"({str(error).splitlines()[0]}): resume with the config and version that wrote it"
        ) from error


def restore_best(folder: RunFolder, evaluator: Evaluator) -> None:
    """Make the files of the best policy those of the checkpoint that a run resumes from."""
    best = evaluator.best
    if not best:
        shutil.rmtree(folder.best, ignore_errors=True)
    elif checkpoint_steps(folder.best) != [best["step"]]:
        save_checkpoint(folder.best, best["step"], {"weights": best["weights"]}, keep=1)

"""The trained policy of a run folder: load it, and let it play."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from guerdon.config import GuerdonConfig, compose
from guerdon.policy import Policy, create_policy
from guerdon.training.checkpoints import load_checkpoint
from guerdon.training.evaluation import evaluate
from guerdon.training.parts import find_device, make_env
from guerdon.training.run_folder import RunFolder
from guerdon.training.video import Film, make_filmed_env

if TYPE_CHECKING:
    from pathlib import Path

    from guerdon.collect import Collected

Checkpoint = Literal["best", "latest"] | int

_FILMS = 3  # episodes of an evaluation that are filmed


def load_policy(
    run_dir: str | Path, checkpoint: Checkpoint = "best"
) -> tuple[Policy, GuerdonConfig]:
    """The policy of a run, ready to act without exploration, and the run's config.

    Args:
        run_dir: The run's folder.
        checkpoint: The best one, the latest, or that of a step.
    """
    policy, config, _ = _load(run_dir, checkpoint)
    return policy, config


def evaluate_run(
    run_dir: str | Path,
    *,
    checkpoint: Checkpoint = "best",
    episodes: int = 20,
    seed: int = 0,
    video: bool = False,
) -> dict[str, Any]:
    """Plays episodes with the policy of a run, in its evaluation environments.

    Args:
        run_dir: The run's folder.
        checkpoint: The best one, the latest, or that of a step.
        episodes: How many.
        seed: Of the environments and of what the policy draws.
        video: Whether to film the first episodes into the run's folder ``videos``, in the place
            of those filmed before. Environments are made one by one then, so that seeds may mean
            other episodes than without.

    Returns:
        Numbers, ``returns`` and ``lengths`` of all episodes, and paths of ``videos``.
    """
    policy, config, step = _load(run_dir, checkpoint)
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    n_films = min(_FILMS, episodes) if video else 0
    section = config.env.for_evaluation(min(max(config.eval.n_envs, n_films), episodes))
    folder, films = RunFolder(run_dir).videos, list[Film]()
    if video:
        env, films = make_filmed_env(section, folder, n_films)
    else:
        env = make_env(section)
    with env:
        played = evaluate(policy, env, episodes, seed=seed, deterministic=config.eval.deterministic)
    videos = [film.path for film in films if film.finished]
    for older in set(folder.glob("episode_*.mp4")).difference(videos) if video else ():
        older.unlink()  # it would look like one of these
    return {
        "run": str(run_dir),
        "env": config.env.id,
        "policy": config.policy["type"],
        "step": step,
        "seed": seed,
        **evaluation(played),
        "videos": [str(path) for path in videos],
    }


def evaluation(played: Collected) -> dict[str, Any]:
    """The numbers of an evaluation.

    Args:
        played: Its episodes.
    """
    returns = played.returns
    return {
        "episodes": played.n_episode,
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "return_min": min(returns),
        "return_max": max(returns),
        "length_mean": float(np.mean(played.lengths)),
        "success_rate": played.success_rate,
        "returns": returns,
        "lengths": played.lengths,
    }


def _load(run_dir: str | Path, checkpoint: Checkpoint) -> tuple[Policy, GuerdonConfig, int]:
    folder = RunFolder(run_dir)
    if not folder.config.is_file():
        raise FileNotFoundError(
            f"{run_dir} holds no run: it has no config.yaml (runs lie in runs/NAME/TIME-SEED, "
            f"or where run.dir put them)"
        )
    config = compose(folder.config)
    # One environment, for its spaces.
    section = config.env.model_copy(update={"n_envs": 1, "settings": config.env.settings[:1]})
    with make_env(section) as env:
        policy = create_policy(
            config.policy, env.observation_space, env.action_space, device=_device(config)
        )
    state, step = load_checkpoint(folder.checkpoints, checkpoint, parts=("policy",))
    try:
        # Only the networks: an optimizer or a generator of another device cannot be loaded here.
        policy.load_state_dict(state["policy"]["module"])
    except RuntimeError as error:
        raise ValueError(
            f"the policy of {run_dir} is not the {config.policy['type']} that its config.yaml "
            f"describes: one that was given to `train` in Python has to be loaded there, too"
        ) from error
    return policy.eval(), config, step


def _device(config: GuerdonConfig) -> str:
    """The run's device, or the CPU on a machine that has no such one."""
    try:
        return find_device(config.run.device)
    except ValueError:
        return "cpu"

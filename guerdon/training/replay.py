"""The trained policy of a run folder: load it, and let it play."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from guerdon.reward import REWARDS, SuccessModel
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.evaluation import evaluate, evaluation_metrics
from guerdon.training.parts import (
    EnvSetting,
    compose_run,
    find_device,
    make_env,
    make_policy,
    prepare_reward,
)
from guerdon.training.run_folder import RunFolder
from guerdon.training.threads import threads
from guerdon.training.video import Film, make_filmed_env

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guerdon.collect import Collected
    from guerdon.config import GuerdonConfig
    from guerdon.envs import VectorEnv
    from guerdon.policy import Policy
    from guerdon.reward import Reward

Checkpoint = Literal["best", "latest"] | int

_FILMS = 3  # episodes of an evaluation that are filmed


def load_policy(
    run_dir: str | Path,
    checkpoint: Checkpoint = "best",
    *,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
) -> tuple[Policy, GuerdonConfig]:
    """The policy of a run, ready to act without exploration, and the run's config.

    Args:
        run_dir: The run's folder.
        checkpoint: The best one, the latest, or that of a step.
        env_setting: What `train` was given as such, if it was.
        model: What `train` was given as such, if it was; an instance gets the run's weights.
        policy_fn: What `train` was given as such, if it was.
    """
    policy, config, _ = _load(run_dir, checkpoint, env_setting, model, policy_fn)
    return policy, config


def evaluate_run(
    run_dir: str | Path,
    *,
    checkpoint: Checkpoint = "best",
    episodes: int = 20,
    seed: int = 0,
    video: bool = False,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
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
        env_setting: What `train` was given as such, if it was. Such environments are not filmed.
        model: What `train` was given as such, if it was.
        policy_fn: What `train` was given as such, if it was.

    Returns:
        Numbers, ``returns`` and ``lengths`` of all episodes, and paths of ``videos``.
    """
    if video and env_setting is not None:
        raise ValueError("environments of 'env_setting' cannot be filmed: leave out 'video'")
    policy, config, step = _load(run_dir, checkpoint, env_setting, model, policy_fn)
    n_films = min(_FILMS, episodes) if video else 0
    section = config.env.for_evaluation(min(max(config.eval.n_envs, n_films), episodes))
    folder, films = RunFolder(run_dir).videos, list[Film]()
    if video:
        env, films = make_filmed_env(section, folder, n_films)
    elif env_setting is not None:
        env = make_env(section, (env_setting[0], env_setting[2][:episodes]))
    else:
        env = make_env(section)
    with env, threads(config.run.threads):
        reward = _classifier(run_dir, config, policy, env)
        played = evaluate(
            policy, env, episodes, seed=seed, deterministic=config.eval.deterministic, reward=reward
        )
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
        "audit": evaluation_metrics(played) if played.audit is not None else None,
        "returns": returns,
        "lengths": played.lengths,
    }


def _classifier(
    run_dir: str | Path, config: GuerdonConfig, policy: Policy, env: VectorEnv
) -> Reward | None:
    """The run's reward, where that is a classifier of success: what it says is worth knowing."""
    root = RunFolder(run_dir).reward
    kinds = [REWARDS.get(options["type"]) for options in config.reward.terms.values()]
    if not any(issubclass(kind, SuccessModel) for kind in kinds) or not checkpoint_steps(root):
        return None
    from guerdon.training.experts import make_experts  # which plays runs, too

    reward = prepare_reward(make_experts(config, "none"), policy, env, seed=0)
    reward.load_training_state(load_checkpoint(root, parts=("state",))[0]["state"])
    return reward


def _load(
    run_dir: str | Path,
    checkpoint: Checkpoint,
    env_setting: EnvSetting | None,
    model: Any,
    policy_fn: Callable[..., Policy] | None,
) -> tuple[Policy, GuerdonConfig, int]:
    folder = RunFolder(run_dir)
    if not folder.config.is_file():
        raise FileNotFoundError(
            f"{run_dir} holds no run: it has no config.yaml (runs lie in runs/NAME/TIME-SEED, "
            f"or where run.dir put them)"
        )
    config = compose_run(folder.config, policy_fn=policy_fn)
    # One environment, for its spaces.
    section = config.env.model_copy(update={"n_envs": 1, "settings": config.env.settings[:1]})
    setting = None if env_setting is None else (env_setting[0], env_setting[1][:1])
    with make_env(section, setting) as env:
        policy = make_policy(config, env, policy_fn, device=_device(config), model=model)
    state, step = _load_weights(folder, checkpoint)
    try:
        # Only the networks: an optimizer or a generator of another device cannot be loaded here.
        policy.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"the policy of {run_dir} is not the {config.policy['type']} that its config.yaml "
            f"describes: a model or policy_fn that `train` was given has to be given here, too"
        ) from error
    return policy.eval(), config, step


def _load_weights(folder: RunFolder, checkpoint: Checkpoint) -> tuple[dict[str, Any], int]:
    if checkpoint != "best":
        state, step = load_checkpoint(folder.checkpoints, checkpoint, parts=("policy",))
        return state["policy"]["module"], step
    if not checkpoint_steps(folder.best):
        raise FileNotFoundError(
            f"{folder.path} has no best policy, since it was not evaluated: use the latest one"
        )
    state, step = load_checkpoint(folder.best)
    return state["weights"], step


def _device(config: GuerdonConfig) -> str:
    """The run's device, or the CPU on a machine that has no such one."""
    try:
        return find_device(config.run.device)
    except ValueError:
        return "cpu"

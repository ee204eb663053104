"""The entry functions of the documents, and what else they look for here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.config import GuerdonConfig, sources
from guerdon.policy import Policy, create_policy, register_policy
from guerdon.reward import create_reward_model, register_reward_model
from guerdon.training.parts import known_name
from guerdon.training.replay import evaluate_run
from guerdon.training.run import train
from guerdon.training.trainers import offpolicy_trainer, onpolicy_trainer

if TYPE_CHECKING:
    from guerdon.training.parts import EnvSetting
    from guerdon.training.run import Summary

__all__ = [
    "create_policy",
    "create_reward_model",
    "eval_pipeline",
    "offpolicy_trainer",
    "onpolicy_trainer",
    "register_policy",
    "register_reward_model",
    "serial_pipeline",
    "train",
]

Source = str | Path | Mapping[str, Any] | GuerdonConfig

_IDS = {"id", "env_id", "env_type"}

eval_pipeline = evaluate_run


def serial_pipeline(
    config: Source,
    seed: int = 0,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
    max_env_step: int | None = None,
    max_train_iter: int | None = None,
) -> Summary:
    """Trains a policy in this process: `guerdon.train` with the tutorial's arguments.

    Args:
        config: A preset, the path of a file (YAML, or Python with ``main_config``), sections as a
            dictionary, or a config. The tutorial's layout is understood, as it is everywhere; see
            `guerdon.config.tutorial`.
        seed: Of everything random.
        env_setting: A function that makes an environment, with settings for the collecting and for
            the evaluating ones; instead of what the config names.
        model: A network for the policy, instead of its own: an instance or a class.
        policy_fn: A policy class, instead of the one that the config names. It becomes known by its
            name, if it is not registered yet.
        max_env_step: Steps of the environments after which to stop; the config's by default.
        max_train_iter: Updates after which to stop; the config's by default.

    Returns:
        What ``summary.json`` holds, and ``run_dir``.
    """
    overrides = [
        f"{key}={int(value)}"
        for key, value in (("run.max_steps", max_env_step), ("run.max_updates", max_train_iter))
        if value is not None
    ]
    if isinstance(config, str) and not sources.is_file(config):
        source: Any = config
        if isinstance(policy_fn, type):
            overrides.append(f"policy={known_name(policy_fn)}")
    else:
        source = _sections(config)
        env, policy = source.get("env", {}), source.get("policy", {})
        if env_setting is not None and not (isinstance(env, str) or env.keys() & _IDS):
            source["env"] = {**env, "id": getattr(env_setting[0], "__name__", "env")}
        if isinstance(policy_fn, type):
            own = {} if isinstance(policy, str) else policy
            source["policy"] = {**own, "type": known_name(policy_fn)}
    return train(
        source, *overrides, seed=seed, env_setting=env_setting, model=model, policy_fn=policy_fn
    )


def _sections(config: Source) -> dict[str, Any]:
    """A config as sections; the input stays as it is."""
    if isinstance(config, GuerdonConfig):
        return config.model_dump()
    if isinstance(config, Mapping):
        return dict(sources.plain(config))
    if isinstance(config, str | Path):
        return sources.read(Path(config))
    raise ValueError(
        f"serial_pipeline needs a config and got {config!r}: give a preset, the path of a file, or "
        f"a dictionary of sections"
    )

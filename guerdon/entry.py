"""The entry functions of the documents, and what else they look for here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.config import GuerdonConfig, sources
from guerdon.policy import POLICIES, Policy, create_policy, register_policy
from guerdon.reward import create_reward_model, register_reward_model
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

eval_pipeline = evaluate_run

# The tutorial's keys, and guerdon's.
_KEYS = {
    "env.env_id": "env.id",
    "env.import_names": "env.imports",
    "env.env_manager_type": "env.backend",
    "env.actor_env_num": "env.n_envs",
    "env.evaluator_env_num": "eval.n_envs",
    "policy.policy_type": "policy.type",
    "actor.n_sample": "collect.n_step",
    "actor.n_episode": "collect.n_episode",
    "evaluator.n_episode": "eval.episodes",
    "evaluator.stop_val": "eval.target_return",
    "replay_buffer.meta_maxlen": "collect.buffer_size",
    "replay_buffer.replay_buffer_size": "collect.buffer_size",
}
_ALSO = {
    "policy.learn.batch_size": "learn.batch_size",
    "policy.learn.train_step": "learn.updates_per_collect",
}
_SPELLINGS = {"aynsc_subprocess": "async_subprocess"}  # the tutorial's


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
            dictionary, or a config. Keys of the tutorial are understood where guerdon has the same:
            ``env_type``, ``policy_type``, ``actor.n_sample``, ``evaluator.stop_val`` and others.
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
            overrides.append(f"policy={_name_of(policy_fn)}")
    else:
        source = _sections(config)
        if env_setting is not None and not isinstance(source.get("env", {}), str):
            name = getattr(env_setting[0], "__name__", "env")
            source["env"] = {"id": name, **source.get("env", {})}
        if isinstance(policy_fn, type):
            given = source.get("policy", {})
            own = {} if isinstance(given, str) else given
            source["policy"] = {**own, "type": _name_of(policy_fn)}
    return train(
        source, *overrides, seed=seed, env_setting=env_setting, model=model, policy_fn=policy_fn
    )


def _name_of(policy: type[Policy]) -> str:
    """The name that a class is registered by; a class without one gets its own."""
    for name in POLICIES.names():
        if POLICIES.get(name) is policy:
            return name
    register_policy(policy.__name__, policy)
    return policy.__name__


def _sections(config: Source) -> dict[str, Any]:
    """A config as sections with guerdon's keys; the input stays as it is."""
    if isinstance(config, GuerdonConfig):
        return config.model_dump()
    found = sources.plain(config) if isinstance(config, Mapping) else sources.read(Path(config))
    for old, new in _KEYS.items():
        if (value := _take(found, old)) is not None:
            _put(found, new, _SPELLINGS.get(str(value), value))
    for old, new in _ALSO.items():
        if (value := _take(found, old, keep=True)) is not None:
            _put(found, new, value)
    for module in _take(found, "policy.import_names") or []:
        importlib.import_module(module)
    _take(found, "policy.on_policy")  # a class knows what it is
    if (cuda := _take(found, "policy.use_cuda")) is not None:
        _put(found, "run.device", "cuda" if cuda else "cpu")
    name = _take(found, "env.env_type")
    if name is not None and "id" not in found["env"]:
        known = name in sources.options("env")
        section = (
            sources.read(sources.ZOO / "env" / f"{name}.yaml")["env"] if known else {"id": name}
        )
        found["env"] = {**section, **found["env"]}
    return {name: section for name, section in found.items() if section != {}}


def _take(sections: dict[str, Any], path: str, keep: bool = False) -> Any:
    """Takes the value of a dotted key out of sections; None where there is none."""
    *outer, key = path.split(".")
    for name in outer:
        inner = sections.get(name)
        if not isinstance(inner, dict):
            return None
        sections = inner
    return sections.get(key) if keep else sections.pop(key, None)


def _put(sections: dict[str, Any], path: str, value: Any) -> None:
    """Sets a dotted key, unless it is there."""
    *outer, key = path.split(".")
    for name in outer:
        sections = sections.setdefault(name, {})
    sections.setdefault(key, value)

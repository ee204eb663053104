"""The entry functions of the documents, and what else they look for here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.config import GuerdonConfig, compose, sources
from guerdon.policy import POLICIES, Policy, create_policy, register_policy
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
    "serial_pipeline_reward_model_offpolicy",
    "serial_pipeline_reward_model_onpolicy",
    "train",
]

Source = str | Path | Mapping[str, Any] | GuerdonConfig
Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
"""``(main_config, create_config)``, as in DI-engine: the second says what the first leaves out."""

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
    source, overrides = _composable(config, env_setting, policy_fn, max_env_step, max_train_iter)
    return train(
        source, *overrides, seed=seed, env_setting=env_setting, model=model, policy_fn=policy_fn
    )


def serial_pipeline_reward_model_offpolicy(
    input_cfg: Source | Pair,
    seed: int = 0,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
    max_train_iter: int | None = None,
    max_env_step: int | None = None,
    pretrain_reward: bool = False,
    cooptrain_reward: bool = True,
) -> Summary:
    """Trains a reward model and a policy that learns from a replay buffer.

    Args:
        input_cfg: What `serial_pipeline` takes, or the pair ``(main_config, create_config)``. The
            section ``reward_model`` is the same as ``reward``.
        seed: See `serial_pipeline`, as for the others up to `max_env_step`.
        env_setting: See there.
        model: See there.
        policy_fn: See there.
        max_train_iter: See there.
        max_env_step: See there.
        pretrain_reward: Whether the reward model is trained before the policy acts, on data that it
            has by then.
        cooptrain_reward: Whether it is trained beside the policy, unless the config says that it is
            not; False goes before the config.
    """
    return _reward_pipeline(
        False, input_cfg, seed, env_setting, model, policy_fn, max_train_iter, max_env_step,
        pretrain_reward, cooptrain_reward,
    )  # fmt: skip


def serial_pipeline_reward_model_onpolicy(
    input_cfg: Source | Pair,
    seed: int = 0,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
    max_train_iter: int | None = None,
    max_env_step: int | None = None,
    pretrain_reward: bool = False,
    cooptrain_reward: bool = True,
) -> Summary:
    """Trains a reward model and a policy that learns from rollouts of its newest self.

    Args:
        input_cfg: See `serial_pipeline_reward_model_offpolicy`, as for all others.
        seed: See there.
        env_setting: See there.
        model: See there.
        policy_fn: See there.
        max_train_iter: See there.
        max_env_step: See there.
        pretrain_reward: See there.
        cooptrain_reward: See there.
    """
    return _reward_pipeline(
        True, input_cfg, seed, env_setting, model, policy_fn, max_train_iter, max_env_step,
        pretrain_reward, cooptrain_reward,
    )  # fmt: skip


def _reward_pipeline(
    on_policy: bool,
    config: Source | Pair,
    seed: int,
    env_setting: EnvSetting | None,
    model: Any,
    policy_fn: Callable[..., Policy] | None,
    max_train_iter: int | None,
    max_env_step: int | None,
    pretrain: bool,
    cotrain: bool,
) -> Summary:
    source, overrides = _composable(config, env_setting, policy_fn, max_env_step, max_train_iter)
    overrides += ["reward.pretrain=true"] * pretrain + ["reward.cotrain=false"] * (not cotrain)
    name = compose(source, overrides).policy["type"]
    if POLICIES.get(name).on_policy != on_policy:
        ours, other = ("on", "off") if on_policy else ("off", "on")
        raise ValueError(
            f"serial_pipeline_reward_model_{ours}policy is for {ours}-policy policies, and {name} "
            f"is none: use serial_pipeline_reward_model_{other}policy"
        )
    return train(
        source, *overrides, seed=seed, env_setting=env_setting, model=model, policy_fn=policy_fn
    )


def _composable(
    config: Source | Pair,
    env_setting: EnvSetting | None,
    policy_fn: Callable[..., Policy] | None,
    max_env_step: int | None,
    max_train_iter: int | None,
) -> tuple[Any, list[str]]:
    """What `compose` takes, for what an entry function was given: a source, and overrides."""
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
    return source, overrides


def _sections(config: Source | Pair) -> dict[str, Any]:
    """A config as sections; the input stays as it is."""
    if isinstance(config, tuple):
        main, create = (sources.plain(part) for part in config)
        return sources.merged(create, main)
    if isinstance(config, GuerdonConfig):
        return config.model_dump()
    if isinstance(config, Mapping):
        return dict(sources.plain(config))
    if isinstance(config, str | Path):
        return sources.read(Path(config))
    raise ValueError(
        f"a pipeline needs a config and got {config!r}: give a preset, the path of a file, or "
        f"a dictionary of sections"
    )

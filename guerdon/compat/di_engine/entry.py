"""Entry functions of nerveX and DI-engine."""

from collections.abc import Callable
from typing import Any

from guerdon import config as configuration
from guerdon.compat.layouts import Source, sections, translated
from guerdon.compat.nervex.gym_adapter import as_gymnasium
from guerdon.compat.nervex.worker.learner import learner_of
from guerdon.config import sources
from guerdon.config.trust import code_of
from guerdon.policy import POLICIES, Policy, register_policy
from guerdon.training import run
from guerdon.training.parts import EnvSetting
from guerdon.training.run import Summary

_IDS = {"id", "env_id", "env_type"}


def serial_pipeline(
    config: Source,
    seed: int = 0,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
    max_env_step: int | None = None,
    max_train_iter: int | None = None,
) -> Summary:
    """Train a policy in this process: `guerdon.train` with nerveX's arguments.

    Args:
        config: A preset, the path of a file (YAML, or Python with ``main_config``), sections as a
            dictionary, a config, or DI-engine's pair ``(main_config, create_config)``.
        seed: Random seed.
        env_setting: A function that makes an environment, with settings of the collecting and the
            evaluating environments; replaces the config's environment.
        model: Network to use instead of the policy's default: an instance or a class.
        policy_fn: Policy class to use instead of the config's; it is registered under its name if
            necessary.
        max_env_step: Maximum number of environment steps; defaults to the config's.
        max_train_iter: Maximum number of updates; defaults to the config's.

    Returns:
        The content of ``summary.json``, and ``run_dir``.
    """
    return _pipeline(
        None, config, seed, env_setting, model, policy_fn, max_train_iter, max_env_step
    )


def serial_pipeline_reward_model_offpolicy(
    input_cfg: Source,
    seed: int = 0,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
    max_train_iter: int | None = None,
    max_env_step: int | None = None,
    pretrain_reward: bool = False,
    cooptrain_reward: bool = True,
) -> Summary:
    """Train a reward model and an off-policy policy.

    Args:
        input_cfg: See `serial_pipeline`, also for the arguments up to `max_env_step`. The section
            ``reward_model`` is the same as ``reward``.
        seed: See `serial_pipeline`.
        env_setting: See `serial_pipeline`.
        model: See `serial_pipeline`.
        policy_fn: See `serial_pipeline`.
        max_train_iter: See `serial_pipeline`.
        max_env_step: See `serial_pipeline`.
        pretrain_reward: Train the reward model before the policy, on the data available by then.
        cooptrain_reward: Train it together with the policy, unless disabled by the config; False
            takes precedence over the config.
    """
    return _pipeline(
        False, input_cfg, seed, env_setting, model, policy_fn, max_train_iter, max_env_step,
        pretrain_reward, cooptrain_reward,
    )  # fmt: skip


def serial_pipeline_reward_model_onpolicy(
    input_cfg: Source,
    seed: int = 0,
    env_setting: EnvSetting | None = None,
    model: Any = None,
    policy_fn: Callable[..., Policy] | None = None,
    max_train_iter: int | None = None,
    max_env_step: int | None = None,
    pretrain_reward: bool = False,
    cooptrain_reward: bool = True,
) -> Summary:
    """Train a reward model and an on-policy policy.

    Arguments as in `serial_pipeline_reward_model_offpolicy`.
    """
    return _pipeline(
        True, input_cfg, seed, env_setting, model, policy_fn, max_train_iter, max_env_step,
        pretrain_reward, cooptrain_reward,
    )  # fmt: skip


def _pipeline(
    on_policy: bool | None,
    source: Any,
    seed: int,
    env_setting: EnvSetting | None,
    model: Any,
    policy_fn: Callable[..., Policy] | None,
    max_train_iter: int | None,
    max_env_step: int | None,
    pretrain: bool = False,
    cotrain: bool = True,
) -> Summary:
    limits = {"run.max_steps": max_env_step, "run.max_updates": max_train_iter}
    overrides = [f"{key}={int(value)}" for key, value in limits.items() if value is not None]
    overrides += ["reward.pretrain=true"] * pretrain + ["reward.cotrain=false"] * (not cotrain)
    callback = None
    if env_setting is not None:
        env_setting = (as_gymnasium(env_setting[0]), *env_setting[1:])
    with code_of(sources.run_dir_of(source)):
        if sources.is_preset(source):
            if isinstance(policy_fn, type):
                overrides.append(f"policy={_registered_name(policy_fn)}")
        else:
            source = sections(source)
            callback = learner_of(source)
            env, policy = source.get("env", {}), source.get("policy", {})
            if env_setting is not None and not (isinstance(env, str) or env.keys() & _IDS):
                source["env"] = {**env, "id": getattr(env_setting[0], "__name__", "env")}
            if isinstance(policy_fn, type):
                own = {} if isinstance(policy, str) else policy
                source["policy"] = {**own, "type": _registered_name(policy_fn)}
        source, overrides = translated(source, overrides)
        if on_policy is not None:
            name = configuration.compose(source, overrides).policy["type"]
            ours, other = ("on", "off") if on_policy else ("off", "on")
            if POLICIES.get(name).on_policy != on_policy:
                raise ValueError(
                    f"serial_pipeline_reward_model_{ours}policy is for {ours}-policy policies, but "
                    f"{name} is not one: use serial_pipeline_reward_model_{other}policy"
                )
        return run.train(
            source, *overrides, seed=seed, env_setting=env_setting, model=model,
            policy_fn=policy_fn, callback=callback,
        ).summary  # fmt: skip


def _registered_name(policy: type[Policy]) -> str:
    """Return the registered name of a policy class; register it if necessary."""
    for name in POLICIES.names():
        if POLICIES.get(name) is policy:
            return name
    register_policy(policy.__name__, policy)
    return policy.__name__

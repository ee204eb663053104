"""Entry functions of nerveX and DI-engine."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from guerdon import config as configuration
from guerdon.compat.layouts import Source, sections, translated
from guerdon.compat.nervex.gym_adapter import as_gymnasium
from guerdon.compat.nervex.worker.learner import BaseLearner, learner_of
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
    *,
    overrides: Iterable[str] = (),
    on_policy: bool | None = None,
    learner: type[BaseLearner] = BaseLearner,
) -> Summary:
    """Train a policy in this process: `guerdon.train` with nerveX's arguments.

    Returns the content of ``summary.json``, and ``run_dir``.

    Args:
        config: A preset, the path of a file (YAML, or Python with ``main_config``), sections as a
            dictionary, a config, or DI-engine's pair ``(main_config, create_config)``.
        seed: Random seed.
        env_setting: A function that makes an environment, and settings to collect and evaluate.
        model: Network to use instead of the policy's default: an instance or a class.
        policy_fn: Policy class to use instead of the config's; it is registered if necessary.
        max_env_step: Maximum number of environment steps; defaults to the config's.
        max_train_iter: Maximum number of updates; defaults to the config's.
        overrides: ``key=value`` with guerdon's keys.
        on_policy: The kind of policy that the config has to have; None for any.
        learner: Class that calls the hooks of the config.
    """
    limits = {"run.max_steps": max_env_step, "run.max_updates": max_train_iter}
    changes = [f"{key}={int(value)}" for key, value in limits.items() if value is not None]
    changes += overrides
    source, callback = config, learner_of({}, learner)
    if env_setting is not None:
        env_setting = (as_gymnasium(env_setting[0]), *env_setting[1:])
    with code_of(sources.run_dir_of(source)):
        if sources.is_preset(source):
            if isinstance(policy_fn, type):
                changes.append(f"policy={_registered_name(policy_fn)}")
        else:
            source = sections(source)
            callback = learner_of(source, learner)
            env, policy = source.get("env", {}), source.get("policy", {})
            if env_setting is not None and not (isinstance(env, str) or env.keys() & _IDS):
                source["env"] = {**env, "id": getattr(env_setting[0], "__name__", "env")}
            if isinstance(policy_fn, type):
                own = {} if isinstance(policy, str) else policy
                source["policy"] = {**own, "type": _registered_name(policy_fn)}
        source, changes = translated(source, changes)
        if on_policy is not None:
            _check_kind(configuration.compose(source, changes).policy, on_policy)
        return run.train(
            source, *changes, seed=seed, env_setting=env_setting, model=model,
            policy_fn=policy_fn, callback=callback,
        ).summary  # fmt: skip


def parallel_pipeline(config: Source, seed: int = 0, **options: Any) -> Summary:
    """Train with ``runtime=ray``; the section ``runtime`` says how many workers there are."""
    overrides = [*options.pop("overrides", ()), "runtime=ray"]
    return serial_pipeline(config, seed, overrides=overrides, **options)


def serial_pipeline_reward_model_offpolicy(
    input_cfg: Source,
    seed: int = 0,
    *,
    pretrain_reward: bool = False,
    cooptrain_reward: bool = True,
    on_policy: bool = False,
    **options: Any,
) -> Summary:
    """Train a reward model and an off-policy policy; options are those of `serial_pipeline`.

    `pretrain_reward` trains the reward model before the policy, on the data available by then, and
    `cooptrain_reward` together with it; False takes precedence over the config.
    """
    changes = ["reward.pretrain=true"] * pretrain_reward
    changes += ["reward.cotrain=false"] * (not cooptrain_reward)
    return serial_pipeline(input_cfg, seed, overrides=changes, on_policy=on_policy, **options)


def serial_pipeline_reward_model_onpolicy(
    input_cfg: Source, seed: int = 0, **options: Any
) -> Summary:
    """Train a reward model and an on-policy policy: see the function for off-policy policies."""
    return serial_pipeline_reward_model_offpolicy(input_cfg, seed, on_policy=True, **options)


def _check_kind(options: Mapping[str, Any], on_policy: bool) -> None:
    name = options["type"]
    if POLICIES.get(name).learns_on_policy(options) != on_policy:
        ours, other = ("on", "off") if on_policy else ("off", "on")
        raise ValueError(
            f"serial_pipeline_reward_model_{ours}policy is for {ours}-policy policies, but {name} "
            f"is not one: use serial_pipeline_reward_model_{other}policy"
        )


def _registered_name(policy: type[Policy]) -> str:
    """Return the registered name of a policy class; register it if necessary."""
    for name in POLICIES.names():
        if POLICIES.get(name) is policy:
            return name
    register_policy(policy.__name__, policy)
    return policy.__name__

"""Translates config layouts of the nerveX tutorial and DI-engine's guide to guerdon's keys.

Their environments, buffer, actor and evaluator are separate sections in guerdon. Their policies
have parts (``policy.learn``, ``policy.collect``, ``policy.command``), which a class in the
tutorial's style reads directly; for other policies they become options. ``reward_model`` is the
section ``reward``.
"""

from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from guerdon.compat.keys import put, take
from guerdon.config import ConfigError, imports, registry_of, sources
from guerdon.config.compose import DEFAULTS
from guerdon.config.schema import unread

Values = dict[str, Any]

_KEYS = {
    "env.env_id": "env.id",
    "env.import_names": "env.imports",
    "env.env_manager_type": "env.backend",
    "env_manager.type": "env.backend",
    "env.actor_env_num": "env.n_envs",
    "env.collector_env_num": "env.n_envs",
    "env.evaluator_env_num": "eval.n_envs",
    "policy.policy_type": "policy.type",
    "policy.import_names": "imports",
    "actor.n_sample": "collect.n_step",
    "actor.n_episode": "collect.n_episode",
    "evaluator.n_episode": "eval.episodes",
    "evaluator.stop_val": "eval.target_return",
    "env.n_evaluator_episode": "eval.episodes",
    "env.stop_value": "eval.target_return",
    "exp_name": "run.name",
    "reward_model": "reward",
}
_AMOUNTS = {
    "replay_buffer.meta_maxlen": "collect.buffer_size",
    "replay_buffer.replay_buffer_size": "collect.buffer_size",
    "policy.learn.batch_size": "learn.batch_size",
    "policy.learn.train_step": "learn.updates_per_collect",
    "policy.other.replay_buffer.replay_buffer_size": "collect.buffer_size",
    "policy.collect.n_sample": "collect.n_step",
    "policy.learn.update_per_collect": "learn.updates_per_collect",
    "policy.learn.epoch_per_collect": "learn.repeat",
}
_OPTIONS = {
    "learn.learning_rate": "learning_rate",
    "learn.algo.discount_factor": "gamma",
    "learn.algo.nstep": "n_step",
    "learn.algo.target_update_freq": "target_update_every",
    "command.eps": "epsilon",
    "model.hidden_dim_list": "model.hidden",
    "discount_factor": "gamma",
    "nstep": "n_step",
    "priority": "prioritized",
    "learn.target_update_freq": "target_update_every",
    "other.eps": "epsilon",
    "model.encoder_hidden_size_list": "model.hidden",
}
# Redundant: given by the environments or by one of the options above.
_DROPPED = (
    "model.obs_dim",
    "model.action_dim",
    "model.obs_shape",
    "model.action_shape",
    "collect.traj_len",
    "collect.unroll_len",
    "collect.algo.nstep",
)
_PARTS = ("learn", "collect", "eval", "command", "other")
_SECTIONS = ("actor", "evaluator", "learner", "replay_buffer", "commander", "env_manager")
_SPELLINGS = {"aynsc_subprocess": "async_subprocess"}  # as in the tutorial
_PACKAGES = ("nervex", "app_zoo", "ding", "dizoo")  # guerdon provides what they register


def translate(values: Values, dropped: list[str]) -> bool:
    """Rename the keys of a config, in place.

    Args:
        values: Sections.
        dropped: Keys without a meaning in guerdon are appended to this.

    Returns:
        Whether the config has the layout of nerveX or DI-engine.
    """
    taken: list[str] = []
    for old, new in _KEYS.items():
        if (value := take(values, old, taken)) is not None:
            if old.endswith("import_names"):
                value = _without_packages(value, dropped)
            put(values, new, _SPELLINGS.get(str(value), value))
    for key in ("policy.use_cuda", "policy.cuda"):
        if (cuda := take(values, key, taken)) is not None:
            put(values, "run.device", "cuda" if cuda else "cpu")
    take(values, "policy.on_policy", dropped)  # defined by the class
    take(values, "learner.hook", taken)  # see `worker.learner.learner_of`
    if "reward_model" in taken and not _clears_data(values["reward"]):
        take(values, "reward.clear_buffer_per_iters", dropped)
    name = take(values, "env.env_type", taken) or take(values, "env.type", taken)
    if name is not None and "id" not in values["env"]:
        known = name in sources.options("env")
        zoo = sources.read(sources.ZOO / "env" / f"{name}.yaml")["env"] if known else {"id": name}
        values["env"] = {**zoo, **values["env"]}
    section = values.get("policy", {})
    policy = section.get("type", DEFAULTS["policy"]) if isinstance(section, dict) else section
    with suppress(ConfigError):  # reported by composition, unless overridden
        imports.import_all(imports.resolved(values.get("imports") or [], Path.cwd()))
    if policy in registry_of("policy").names():
        _fit(values, registry_of("policy").get(policy), taken, dropped)
    return bool(taken or dropped)


def _clears_data(reward: Any) -> bool:
    """Return whether a reward has DI-engine's option to drop transitions (not red)."""
    name = reward.get("type") if isinstance(reward, dict) else reward
    if name not in registry_of("reward").names():
        return True
    config = registry_of("reward").get(name).Config
    own = config.model_config.get("extra") == "allow"  # the class reads its options itself
    return own or "clear_buffer_per_iters" in config.model_fields


def _fit(values: Values, policy: Any, taken: list[str], dropped: list[str]) -> None:
    """Rename keys that depend on the policy."""
    own = policy.Config.model_config.get("extra") == "allow"  # the class reads its parts itself
    idle = unread(policy)
    for old, new in _AMOUNTS.items():
        keep = own and old.startswith("policy.")
        if (value := take(values, old, taken, keep)) is not None and new not in idle:
            put(values, new, value)
    for name in [name for name in _SECTIONS if values.get(name) == {}]:
        del values[name]
    left = [f"{name}.{key}" for name in _SECTIONS for key in _keys_in(values.get(name))]
    section = values.get("policy")
    if isinstance(section, dict) and not own:
        fields = policy.Config.model_fields
        for path in _DROPPED:
            take(values, f"policy.{path}", dropped)
        for old, new in _OPTIONS.items():
            known = new.partition(".")[0] in fields and old not in fields
            if known and (value := take(values, f"policy.{old}", taken)) is not None:
                if old == "command.eps" and isinstance(value, dict) and "decay" in value:
                    # The original counts updates, guerdon environment steps.
                    steps = max(1, round(value["decay"] / _updates_per_step(values)))
                    value = {**value, "decay": steps}
                put(section, new, value)
        for name in _PARTS:
            if name not in fields and isinstance(section.get(name), dict):
                left += [f"policy.{name}.{key}" for key in _keys_in(section.pop(name))]
    if left:
        keys, them = ("key", "it") if len(left) == 1 else ("keys", "them")
        names = ", ".join(map(repr, left))
        raise ConfigError(f"unknown {keys} {names}: no equivalent in guerdon, leave {them} out")


def _updates_per_step(values: Values) -> float:
    steps = take(values, "collect.n_step", [], keep=True)
    updates = take(values, "learn.updates_per_collect", [], keep=True)
    known = all(isinstance(number, int) and number > 0 for number in (steps, updates))
    return updates / steps if known else 1.0


def _keys_in(part: Any) -> Iterator[str]:
    """Yield the dotted keys that are left in a part."""
    for key, value in part.items() if isinstance(part, dict) else ():
        if isinstance(value, dict):
            yield from (f"{key}.{inner}" for inner in _keys_in(value))
        else:
            yield key


def _without_packages(names: Any, dropped: list[str]) -> Any:
    """Return names of modules, without the documents' own packages if these are missing."""
    if not isinstance(names, list):
        return names
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    gone = [name for name in names if str(name).partition(".")[0] in missing]
    dropped += gone
    return [name for name in names if name not in gone]

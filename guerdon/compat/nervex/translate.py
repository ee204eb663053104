"""Translates configs of nerveX and DI-engine to guerdon's keys, by the tables in `tables`.

Their environments, buffer, actor and evaluator are separate sections in guerdon. Their policies
have parts (``policy.learn``, ``policy.collect``, …), which a class in the tutorial's style reads
directly; for other policies they become options. ``reward_model`` is the section ``reward``.
"""

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from guerdon.compat.keys import Report, get, put, take
from guerdon.compat.nervex import tables
from guerdon.compat.nervex.envs import env_mapping
from guerdon.config import ConfigError, imports, registry_of, sources
from guerdon.config.compose import DEFAULTS
from guerdon.config.schema import EnvConfig, unread
from guerdon.envs.ids import UnknownEnvironmentError, find_spec, registered_limit
from guerdon.extras import MissingExtraError

Values = dict[str, Any]

_SECTIONS = (
    "actor", "evaluator", "learner", "replay_buffer", "commander", "collector", "env_manager",
)  # fmt: skip
_MAX_STEPS, _SAVE_EVERY = 10_000_000, 100_000  # theirs end at the stop value alone


def translate(values: Values, report: Report, chosen: Collection[str] = ()) -> bool:
    """Rename the keys of a config in place; return whether it is one of nerveX or DI-engine.

    What becomes of them is added to the report. Overrides choose the groups `chosen` (``env``,
    ``policy``), which may be missing here.
    """
    if not _is_foreign(values):
        return False
    _refuse_systems(values)
    _take_modules(values, report)
    env = _translate_env(values, report)
    policy, given = _find_policy(values, report)
    absent = [f"policy {given!r}"] if policy is None and "policy" not in chosen else []
    absent += [f"environment {env!r}"] if env is not None and "env" not in chosen else []
    if absent:
        raise ConfigError(
            f"guerdon has no {' and no '.join(absent)}: choose with policy=NAME and env=NAME "
            f"(`guerdon list policies`, `guerdon list envs`)"
        )
    in_updates = _translate_keys(values, report, policy)
    _translate_reward(values, report)
    if policy is not None:
        _settle_amounts(values, report, policy, in_updates)
        _leave_out_unread(values, report, policy)
        for key, value in tables.FIXED.get(values["policy"]["type"], {}).items():
            if get(values, key) is None:
                _adopt(values, report, "policy.type", key, value)
    if get(values, "eval.target_return") is not None:
        put(values, "run.max_steps", _MAX_STEPS)
        put(values, "run.checkpoint_every", _SAVE_EVERY)
    for row, (old, new, value) in enumerate(report.taken):  # some were settled after others
        report.taken[row] = (old, new, value if get(values, new) is None else get(values, new))
    return True


def _is_foreign(values: Values) -> bool:
    if values.keys() & {*_SECTIONS, "reward_model", "exp_name", "coordinator"}:
        return True
    marks = {
        "env": ("env_type", "type", "env_id", "import_names", "env_manager_type"),
        "policy": ("policy_type", "import_names", "use_cuda", "cuda", *tables.PARTS),
    }
    return any(
        isinstance(section := values.get(name), dict) and section.keys() & {*keys}
        for name, keys in marks.items()
    )


def _refuse_systems(values: Values) -> None:
    """Raise an error for configs of what guerdon does not have."""
    name = str(get(values, "policy.type") or "")
    if "coordinator" in values or name.endswith("_command"):
        raise ConfigError(
            "this config is in the layout of the parallel mode, which is not read: train a serial "
            "one with -m parallel"
        )
    if isinstance(values.get("world_model"), dict):
        kind = get(values, "world_model.type")
        raise ConfigError(f"guerdon has no world model {kind!r}: leave out 'world_model'")


# --- modules and classes


def _take_modules(values: Values, report: Report) -> None:
    """Move ``import_names`` to ``imports``, without modules whose content guerdon has."""
    policies = {*registry_of("policy").names(), *tables.POLICIES}
    for section, new, known in (
        ("env", "env.imports", {*tables.ENVS}),
        ("policy", "imports", policies),
        ("reward_model", "imports", {*registry_of("reward").names()}),
    ):
        names, kept = take(values, f"{section}.import_names", []), []
        kind = get(values, f"{section}.{section}_type") or get(values, f"{section}.type")
        for name in names if isinstance(names, list) else ():
            theirs = str(name).partition(".")[0] in tables.PACKAGES
            if theirs and (kind in known or not _can_import(name)):
                report.dropped[name] = "guerdon has its own policies, environments and rewards"
            else:
                kept.append(name)
        if kept:
            report.take(f"{section}.import_names", new, kept)
            put(values, new, [*(take(values, new, []) or []), *kept])
            _can_import(*kept)  # what cannot is reported by composition, unless overridden


def _can_import(*names: str) -> bool:
    try:
        imports.import_all(imports.resolved([*names], Path.cwd()))
    except ConfigError:
        return False
    return True


def _find_policy(values: Values, report: Report) -> tuple[Any, str]:
    """Return the policy class, or None, and its name in the config; set ``policy.type``."""
    section = values.get("policy", {})
    values["policy"] = section = section if isinstance(section, dict) else {"type": section}
    given = str(section.pop("policy_type", None) or section.get("type") or DEFAULTS["policy"])
    name, options = tables.POLICIES.get(given, (given, {}))
    if name == "ddpg" and _is_td3(section):
        name = "td3"
    section["type"] = name
    changes = options if name == given else {**options, "policy.type": name}
    for key, value in changes.items():
        _adopt(values, report, "policy.type", key, value)
    if ":" not in name and name not in registry_of("policy").names():
        return None, given
    return registry_of("policy").get(name), given


def _is_td3(policy: Values) -> bool:
    """Return whether a DDPG has parts of TD3, which options of guerdon's TD3 turn off."""
    learn = {**policy.get("learn", {}), **(get(policy, "learn.algo") or {})}
    twins = [get(policy, "model.twin_critic"), get(policy, "model.use_twin_critic")]
    noise = learn.get("noise", learn.get("use_noise"))
    return bool(any(twins) or noise or learn.get("actor_update_freq", 1) > 1)


# --- environments


def _translate_env(values: Values, report: Report) -> Any:
    """Replace the name of an environment by its id; return it if there is none."""
    env = values.setdefault("env", {})
    if not isinstance(env, dict):
        return None
    name = env.pop("env_type", None) or env.pop("type", None)
    if (own := env_mapping.get(str(name))) and own.__module__.partition(".")[0] != "guerdon":
        return _use_class(values, report, own)
    env_id = env.pop("env_id", None)
    given, key = (name, "env.env_type") if env_id is None else (env_id, "env.env_id")
    if "id" in env or given is None:
        return None
    found: Values = {"env.id": str(given)}
    for pattern, replacement in tables.ENV_IDS:
        if re.fullmatch(pattern, str(given)):
            found["env.id"] = re.sub(pattern, replacement, str(given))
    if name in tables.ENVS:
        found = tables.ENVS[name] | (found if env_id or "env.id" not in tables.ENVS[name] else {})
        arguments = [each for each in tables.ENV_KEYS.get(name, ()) if each in env]
        found |= {f"env.kwargs.{each}": env.pop(each) for each in arguments}
        if name == "pendulum" and env.pop("continuous", True) is False:
            found["env.wrappers"] = ["guerdon.compat.nervex.envs:eleven_actions"]
    elif env_id is None and name in sources.options("env"):
        zoo = sources.read(sources.ZOO / "env" / f"{name}.yaml")["env"]
        found = {f"env.{each}": value for each, value in zoo.items()}
    for new, value in found.items():
        if value is not None:
            _adopt(values, report, key, new, value)
    try:
        find_spec(found["env.id"])
    except UnknownEnvironmentError as error:
        known = isinstance(error.__cause__, MissingExtraError)
        return None if known or ":" in found["env.id"] else given
    return None


def _use_class(values: Values, report: Report, env: type) -> None:
    """Make the environment one of a registered class; keys that guerdon lacks are its settings."""
    name, section = imports.name_of(env), values["env"]
    if name is None:
        raise ConfigError(
            f"{env.__name__} cannot be found by name: define it in a file, or pass env_setting"
        )
    known = [key for key in section if key in EnvConfig.model_fields or f"env.{key}" in dict(_KEYS)]
    cfg = {key: section.pop(key) for key in [*section] if key not in known}
    section["id"] = "guerdon.compat.nervex.envs:make_env"
    section["kwargs"] = {"env_fn": name, "cfg": cfg}
    report.take("env.env_type", "env.kwargs.env_fn", name)


# --- keys


def _translate_keys(values: Values, report: Report, policy: Any) -> dict[str, str]:
    """Move all keys to guerdon's, or out; return the keys here whose values count updates."""
    own = policy is not None and _reads_parts(policy)
    shapes = [get(values, f"policy.model.{key}") for key in ("obs_shape", "obs_dim")]
    images = any(isinstance(shape, list) and len(shape) == 3 for shape in shapes)
    activation = get(values, "policy.model.activation")
    if activation is not None and not isinstance(activation, str):  # a module of PyTorch
        _set(values, "policy.model.activation", type(activation).__name__.lower())
    found = [
        (*_rule(path), path, value)
        for path, value in sources.leaves(values)
        if path.partition(".")[0] in ("env", "policy", "exp_name", *_SECTIONS)
        and not _is_native(path, policy)
    ]
    in_updates = {}
    for _, short, new, reason, path, value in sorted(found, key=lambda each: each[0]):
        keep = own and path.startswith("policy.")
        if not keep:
            take(values, path, [])
        if new is not None and not (keep and new.startswith("policy.")):
            converted = _converted(new, short, value, str(get(values, "policy.type")), images)
            reason = _put(values, report, policy, path, new, converted)
            if short in tables.IN_UPDATES and reason is None:
                in_updates[new] = path
        if reason and not keep and value not in (None, False, 0, "", [], {}):
            report.dropped[path] = reason
    for section in (*_SECTIONS, *(() if own else ("env", "policy"))):
        _prune(values, section)
    return in_updates


def _prune(values: Values, key: str) -> None:
    """Remove a dictionary that is empty, or has only such."""
    section = values.get(key)
    if isinstance(section, dict):
        for inner in [*section]:
            _prune(section, inner)
        if not section:
            del values[key]


def _reads_parts(policy: Any) -> bool:
    """Return whether a policy reads its parts itself, as in the tutorial."""
    return bool(policy.Config.model_config.get("extra") == "allow")


def _is_native(path: str, policy: Any) -> bool:
    """Return whether a key of ``env`` or ``policy`` is one of guerdon's."""
    section, _, rest = path.partition(".")
    key, _, option = rest.partition(".")
    if section == "env":
        return key in EnvConfig.model_fields
    if section != "policy" or policy is None:
        return path == "policy.type"
    fields = policy.Config.model_fields
    if key == "model" and hasattr(fields["model"].annotation, "model_fields"):
        return option in fields["model"].annotation.model_fields
    return key in fields


def _rows(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(pattern, key) for key, patterns in table.items() for pattern in patterns.split()]


_KEYS, _DROPPED = _rows(tables.KEYS), _rows(tables.DROPPED)
_REWARD_DROPPED = dict(_rows(tables.REWARD_DROPPED))


def _rule(path: str) -> tuple[int, str, str | None, str | None]:
    """Return the place of a key in the table, its short form, and guerdon's key or a reason."""
    short = path.removeprefix("policy.").replace(".algo.", ".")
    part, _, rest = short.partition(".")
    shorts = (short, rest) if path.startswith("policy.") and part in tables.PARTS else (short,)
    for place, (pattern, new) in enumerate(_KEYS):
        for each in shorts:
            if fnmatchcase(each, pattern):
                return place, each, new.replace("*", each.rpartition(".")[2]), None
    for pattern, reason in _DROPPED:
        if any(fnmatchcase(each, pattern) for each in shorts):
            return len(_KEYS), short, None, reason
    return len(_KEYS), short, None, tables.UNKNOWN


def _put(
    values: Values, report: Report, policy: Any, path: str, new: str, value: Any
) -> str | None:
    """Set a key; return why not, if so. A value that is a reason is in a tuple, None is skipped."""
    if isinstance(value, tuple):
        return str(value[0])
    if value is None:
        return None
    section, option = new.split(".")[:2]
    if section == "policy" and policy is not None and option not in policy.Config.model_fields:
        return f"{values['policy']['type']} has no option {option!r}"
    before = get(values, new)
    if before is None:
        _adopt(values, report, path, new, value)
    return None if before in (None, value) else f"{new!r} is {before!r} already"


def _converted(new: str, short: str, value: Any, policy: str, images: bool) -> Any:
    """Return guerdon's value of a key; None to leave it out, or a tuple with the reason."""
    if new == "policy.model.hidden":
        if images:
            return (tables.IMAGES,)
        if not isinstance(value, int):
            return value
        if short == "model.embedding_dim":  # theirs have layers that are not options
            return [128, 128, value] if policy == "dqn" else [value, 128]
        return [value, value]
    if policy == "ddpg" and new.startswith("policy.target_noise"):
        return ("ddpg has no target noise",)
    if policy == "sac" and new == "policy.n_critics":
        return None if value else ("sac always has two critics",)
    if new == "policy.init_from":
        return value if value and Path(value).is_dir() else (dict(_DROPPED)["load_path"],)
    return tables.CONVERTED[new](value) if new in tables.CONVERTED else value


# --- rewards


def _translate_reward(values: Values, report: Report) -> None:
    """Make ``reward_model`` the section ``reward``; a strategy alone is of HER."""
    section, ours = values.pop("reward_model", None), values.get("reward")
    if isinstance(ours, dict) and "strategy" in ours:
        ours.setdefault("type", "her")
    if section is None or isinstance(ours, str) or {"type", "terms"} & {*(ours or {})}:
        return
    if not isinstance(section, dict):
        values["reward"] = section
        return
    kind = section.get("type") or next(
        (name for mark, name in tables.REWARD_MARKS.items() if mark in section), None
    )
    fields, own = _reward_options(kind)
    documented = tables.REWARD_DEFAULTS.get(str(kind), {})
    kept: Values = {key: value for key, value in documented.items() if key in fields}
    kept |= {**(ours or {}), **({} if kind is None else {"type": kind})}
    for key, value in section.items():
        path, new = f"reward_model.{key}", tables.REWARD_KEYS.get(key, key)
        reason = _REWARD_DROPPED.get(key, None if new == key else tables.UNKNOWN)
        if own or key in fields or key == "type":
            kept[key] = value
        elif new != key and new in (*fields, "weight") and value is not None:
            in_folder = (key, kind) == ("data_path", "gail")
            kept[new] = f"{value}/expert_data.pkl" if in_folder else value
            report.take(path, f"reward.{new}", kept[new])
        elif reason is None:
            kept[key] = value  # which composition refuses, with the nearest right key
        elif reason and value is not None:
            report.dropped[path] = reason
    report.take("reward_model", "reward.type", kept.get("type"))
    if section.get("intrinsic_reward_type") == "assign":  # without the environment's reward
        kept = {"terms": {str(kind): kept}}
    values["reward"] = kept


def _reward_options(name: Any) -> tuple[Collection[str], bool]:
    """Return the options of a reward, and whether it reads any."""
    if not isinstance(name, str) or name not in registry_of("reward").names():
        return (), True
    config = registry_of("reward").get(name).Config
    return config.model_fields, config.model_config.get("extra") == "allow"


# --- amounts


def _settle_amounts(
    values: Values, report: Report, policy: Any, in_updates: dict[str, str]
) -> None:
    """Convert amounts per iteration to those of guerdon's loops, and updates to steps."""
    amounts = ("collect.n_step", "learn.batch_size", "learn.updates_per_collect", "learn.repeat")
    steps, batch, updates, epochs = (_amount(values, key) for key in amounts)
    episodes = _amount(values, "collect.n_episode")
    usual = policy.defaults.get("learn", {}).get("batch_size")
    on_policy = policy.learns_on_policy(values["policy"])
    idle = unread(policy, values["policy"])
    if "learn.batch_size" in idle:  # it learns from a rollout in one step
        steps, usual = batch or steps, steps
    batch = batch or usual
    if steps is None and episodes is not None:
        limit = _amount(values, "env.max_episode_steps")
        steps = episodes * (limit or registered_limit(str(get(values, "env.id"))) or 0) or None
    if on_policy and steps and batch:
        if episodes is None:
            steps = max(steps, batch)  # theirs wait until there is a batch
            _set(values, "collect.n_step", steps)
        if epochs is not None:
            updates = epochs * -(-steps // batch)
        elif updates is not None and (old := report.sources("learn.updates_per_collect")):
            take(values, "learn.updates_per_collect", [])
            passes = max(1, round(updates * batch / steps))
            _adopt(values, report, old[0], "learn.repeat", passes)
    if not on_policy and batch and not _reads_parts(policy):
        # Theirs do not learn before there is a batch.
        warmup = max(_amount(values, "collect.warmup_steps") or 0, batch)
        size = _amount(values, "collect.buffer_size") or warmup
        _set(values, "collect.warmup_steps", min(warmup, size))
    for key, path in in_updates.items():
        count = float(get(values, key)) * (steps / updates if steps and updates else 1)
        _set(values, key, max(1, round(count)))
        report.take(path, key, get(values, key))


def _leave_out_unread(values: Values, report: Report, policy: Any) -> None:
    """Leave out what guerdon would refuse, since nothing reads it."""
    for key in unread(policy, values["policy"]):
        if any(new == key for _, new, _ in report.taken):  # guerdon's own key is an error
            take(values, key, [])
            report.drop_taken(key, f"{values['policy']['type']} does not read {key!r}")
    if get(values, "policy.target_noise") == 0 and take(values, "policy.target_noise_clip", []):
        report.drop_taken("policy.target_noise_clip", "there is no target noise")
    if (most := _amount(values, "eval.episodes")) and (_amount(values, "eval.n_envs") or 0) > most:
        _set(values, "eval.n_envs", most)


def _adopt(values: Values, report: Report, old: str, new: str, value: Any) -> None:
    put(values, new, value)
    report.take(old, new, value)


def _set(values: Values, key: str, value: Any) -> None:
    take(values, key, [])
    put(values, key, value)


def _amount(values: Values, key: str) -> int | None:
    value = get(values, key)
    return value if isinstance(value, int) and value > 0 else None

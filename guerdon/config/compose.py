"""Composition of a preset, file or mapping and overrides to one checked configuration.

In increasing precedence: defaults of the schema, ``defaults`` of the policy, options of the groups
``env`` and ``reward``, the presets of the chosen groups, the file or mapping, the overrides.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from guerdon.config import imports, sources
from guerdon.config.errors import ConfigError, line, suggestion
from guerdon.config.registry import registered, registry_of
from guerdon.config.schema import (
    SUPERSEDES,
    GuerdonConfig,
    RewardConfig,
    RuntimeConfig,
    as_terms,
    unread,
)
from guerdon.config.trust import code_of
from guerdon.config.validation import is_read, keys_of, unknown_key, validated
from guerdon.config.yaml_limits import check_interpolations, check_resolved

GROUPS = ("env", "policy", "reward")
Values = dict[str, Any]
Choices = dict[str, str | None]

DEFAULTS: Choices = {"policy": "ppo", "reward": "env"}


def compose(
    source: str | Path | Mapping[str, Any] | None = None, overrides: Iterable[str] = ()
) -> GuerdonConfig:
    """Compose and check a configuration.

    An override that chooses another environment, policy or reward than a file replaces the file's
    options of it; with a policy, also the sections ``collect`` and ``learn``. Unknown options, and
    options without effect, are errors.

    Args:
        source: A preset (``"cartpole_ppo"``), the path of a YAML file, of a Python file with
            ``main_config`` or of a run directory, a mapping of sections, or None.
        overrides: Hydra's ``key=value``: an option of a group (``policy=dqn``) or any dotted key
            (``policy.gamma=0.9``).
    """
    overrides = list(overrides)
    with code_of(sources.run_dir_of(source), own=override_values(overrides)):
        return _compose(source, overrides)


def _compose(
    source: str | Path | Mapping[str, Any] | None, overrides: Sequence[str]
) -> GuerdonConfig:
    values, choices = _read(source)
    parsed = [_parse(text) for text in overrides]
    changes = [override for override in parsed if _choice(override) is None]
    _import(values, changes)
    for group, option in filter(None, map(_choice, parsed)):
        _choose(values, choices, group, option)
    choices = DEFAULTS | choices
    _check_sections([*values, *(change.key_or_group for change in changes)], str(choices["policy"]))
    try:
        config = _merged([*_layers(choices, values), values])
        _override(config, changes, choices)
        check_interpolations(config)
        composed: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"the configuration cannot be composed: {line(error)}") from error
    composed = {**imports.with_whole_paths(composed), "imports": values["imports"]}
    env, run = composed.get("env", {}), composed.setdefault("run", {})
    if isinstance(env, dict) and "id" not in env:
        names = ", ".join(sources.options("env"))
        raise ConfigError(f"no environment is chosen: give env=NAME ({names}) or env.id=ID")
    if isinstance(env, dict) and env.get("imports"):
        env["imports"] = imports.resolved(env["imports"], Path.cwd())
    if isinstance(run, dict):
        run.setdefault("name", _name(composed, choices))
    check_resolved(composed, "the composed configuration")
    checked = validated(GuerdonConfig, composed)
    needed = imports.needed(checked.model_dump(), _own_classes(checked))
    named = list(dict.fromkeys([*checked.imports, *needed]))
    return checked.model_copy(update={"imports": named})


def override_values(overrides: Iterable[str]) -> Values:
    """Return the values of overrides by their dotted keys."""
    return {each.key_or_group: each.value() for each in map(parse, overrides)}


def as_overrides(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield overrides for nested values, such as ``{"policy": {"gamma": 0.9}, "env": "pendulum"}``.

    A string for ``env`` that is not an option of the group is an environment id.
    """
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and all(map(_is_word, value)):
            yield from as_overrides(value, f"{path}.")
        elif path == "env" and isinstance(value, str) and value not in sources.options("env"):
            yield f"env.id={_written(value)}"
        else:
            yield f"{path}={_written(value)}"


def _is_word(key: Any) -> bool:
    return re.fullmatch(r"\w+", str(key)) is not None


def _written(value: Any) -> str:
    """Write a value in Hydra's grammar."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, str | Path):
        return _quoted(str(value))
    if isinstance(value, Number):
        return str(value)
    if not hasattr(value, "__qualname__"):
        raise ConfigError(
            f"an option cannot be a {type(value).__name__}: give a number, a text such as a path, "
            "a list, a dictionary, or a class or function"
        )
    if (name := imports.name_of(value)) is None:
        raise ConfigError(
            f"{value!r} cannot be found by name: define it in a file, or pass the sections "
            "as a dictionary, guerdon.train({...})"
        )
    return _quoted(name)


def _quoted(text: str) -> str:
    # Backslashes are doubled only before quotes.
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


# --- sources and overrides


def _read(source: str | Path | Mapping[str, Any] | None) -> tuple[Values, Choices]:
    """Return the sections of a source, and the group options that it chooses."""
    if sources.is_preset(source):
        presets = sources.options("preset")
        if source not in presets:
            raise ConfigError(
                f"unknown preset {source!r}: {suggestion(source, presets)} (a file ends in .yaml "
                "or .py; an environment is chosen with env.id=ID)"
            )
        return {}, {**sources.split_preset(source, registry_of("policy").names())}
    values = {key: value for key, value in sources.sections(source).items() if value is not None}
    choices: Choices = {}
    if isinstance(values.get("runtime"), str):
        values["runtime"] = {"type": values["runtime"]}
    for group in GROUPS:
        section = values.get(group)
        if isinstance(section, str):
            choices[group] = values.pop(group)
        elif group != "env" and isinstance(section, dict) and "type" in section:
            choices[group] = section["type"]
        elif group == "reward" and isinstance(section, dict) and "terms" in section:
            choices[group] = None
    return values, choices


def parse(text: str) -> Override:
    """Parse an override with Hydra's grammar; it may have several values: ``seed=0,1,2``."""
    if not re.match(r"~[\w.]+$|[+]{0,2}[\w.]+=", text):
        raise ConfigError(f"the override {text!r} is not of the form key=value")
    parser = OverridesParser.create()
    try:
        return parser.parse_override(text)
    except HydraException:
        # For example a path with brackets: text that is not a value in Hydra's grammar.
        key, _, value = text.partition("=")
        return parser.parse_override(f"{key}={_quoted(value)}")


def _parse(text: str) -> Override:
    override = parse(re.sub(r"^runtime=(?=\w)", "runtime.type=", text))
    if override.is_sweep_override():
        raise ConfigError(f"the override {text!r} has several values: give one, or quote the comma")
    key = override.key_or_group
    if key in GROUPS and not isinstance(override.value(), str):
        raise ConfigError(
            f"the override {text!r} has to name an option: {key}=NAME or {key}.KEY=..."
        )
    return override


def _deletes(override: Override) -> bool:
    return override.type is OverrideType.DEL


def _choice(override: Override) -> tuple[str, str] | None:
    """Return group and option of ``policy=dqn`` or ``policy.type=dqn``; None for others."""
    key, value = override.key_or_group, override.value()
    if isinstance(value, str) and key in (*GROUPS, "policy.type", "reward.type"):
        return key.removesuffix(".type"), value
    return None


def _import(values: Values, changes: Sequence[Override]) -> None:
    """Import the code that a source or an override names, and make its paths absolute."""
    for change in changes:
        if change.key_or_group == "imports":
            values["imports"] = [] if _deletes(change) else change.value()
    values["imports"] = imports.resolved(values.get("imports") or [], Path.cwd())
    imports.import_all(values["imports"])


def _choose(values: Values, choices: Choices, group: str, option: str) -> None:
    """Choose an option, and drop a file's options of another one."""
    section = values.get(group)
    named = choices.get(group) or (isinstance(section, dict) and section.keys() & {"id", "terms"})
    if named and choices.get(group) != option:
        for key in (group, "collect", "learn") if group == "policy" else (group,):
            values.pop(key, None)
        if isinstance(run := values.get("run"), dict):
            values["run"] = {key: value for key, value in run.items() if key != "name"}
    choices[group] = option


# --- layers


def _layers(choices: Choices, values: Values) -> Iterator[Values]:
    """Yield the options of the chosen groups and their presets, in increasing precedence."""
    env, policy, reward = (choices.get(group) for group in GROUPS)
    section = values.get("policy")
    yield _defaults_of("policy", str(policy), section if isinstance(section, dict) else {})
    if env is not None:
        known = sources.options("env")
        if env not in known:
            hint = suggestion(env, known)
            fix = f"for a Gymnasium id write env.id={env}"
            raise ConfigError(f"unknown env {env!r}: {hint} ({fix})")
        yield sources.read(sources.ZOO / "env" / f"{env}.yaml")
    if reward is not None:
        yield _defaults_of("reward", reward, {})
    for name in (f"{env}_{policy}", f"{env}_{policy}_{reward}"):
        if (path := sources.ZOO / "preset" / f"{name}.yaml").is_file():
            yield sources.read(path)


def _defaults_of(group: str, name: str, options: Values) -> Values:
    """Return the type of a registered class, and its defaults for all sections."""
    cls = registry_of(group).get(name)
    defaults = sources.plain(getattr(cls, "defaults", {}))
    for key in unread(cls, options) if group == "policy" else ():  # may be set by a base class
        section, _, option = key.partition(".")
        defaults.get(section, {}).pop(option, None)
    if "terms" not in defaults.get(group, {}):
        defaults[group] = {"type": name, **defaults.get(group, {})}
    return {**defaults}


def _merged(layers: Iterable[Values]) -> DictConfig:
    config = OmegaConf.create(flags={"allow_objects": True})
    for layer in layers:
        _supersede(config, dict(_flat(layer)))
        config.merge_with(layer)
    return config


def _override(config: DictConfig, changes: Sequence[Override], choices: Choices) -> None:
    """Apply overrides that do not choose an option of a group."""
    keys = [change.key_or_group for change in changes]
    if any(key.startswith("reward.terms") for key in keys):
        section: Any = OmegaConf.to_container(config.get("reward") or OmegaConf.create({}))
        reward = as_terms(section)
        if "reward.terms" in keys:
            reward["terms"] = {}  # the override lists all terms
        config["reward"], choices["reward"] = reward, None
    _supersede(config, dict(_flat({change.key_or_group: change.value() for change in changes})))
    for change in changes:
        if not _deletes(change):
            OmegaConf.update(config, change.key_or_group, change.value(), force_add=True)
        elif not _delete(config, change.key_or_group):
            raise ConfigError(f"{change.input_line!r} removes a key that is not set")


def _supersede(config: DictConfig, layer: Values) -> None:
    """Remove keys of weaker layers that exclude, or depend on, keys of a layer."""
    for key, other in SUPERSEDES:
        if layer.get(key) is not None and other not in layer:
            _delete(config, other)
    models: Values = {"reward": RewardConfig, "runtime": RuntimeConfig}
    if policy := OmegaConf.select(config, "policy.type"):
        models["policy"] = registry_of("policy").get(policy).Config
    for section, model in models.items():
        for option, other, needed in getattr(model, "read_if", ()):
            key = f"{section}.{other}"
            idle = key in layer and not is_read(layer[key], needed)
            if idle and f"{section}.{option}" not in layer:
                _delete(config, f"{section}.{option}")


def _delete(config: DictConfig, key: str) -> bool:
    section, _, name = key.rpartition(".")
    found = OmegaConf.select(config, section) if section else config
    if not isinstance(found, DictConfig) or name not in found:
        return False
    del found[name]
    return True


def _flat(sections: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of sections."""
    for key, value in sections.items():
        yield key, value
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", item) for inner, item in value.items())


# --- checks and names


def _own_classes(config: GuerdonConfig) -> list[Any]:
    """Return the classes outside guerdon that a configuration uses."""
    model = config.policy.get("model")
    used = {
        ("policy", config.policy["type"]),
        ("model", model.get("type") if isinstance(model, dict) else None),
        *(("reward", term["type"]) for term in config.reward.terms.values()),
    }
    return [cls for key, cls in registered().items() if key in used]


def _check_sections(keys: Iterable[str], policy: str) -> None:
    """Raise an error for unknown sections; validation rejects unknown keys in them."""
    known = keys_of(GuerdonConfig) | keys_of(registry_of("policy").get(policy).Config, "policy")
    for key in keys:
        if key.partition(".")[0] not in known[""]:
            raise ConfigError(unknown_key(key, known))


def _name(composed: Values, choices: Choices) -> str:
    """Return the name of a run's preset, whether or not it exists."""
    env, reward = composed.get("env"), composed.get("reward")
    env_id = env.get("id") if isinstance(env, dict) else env
    terms = reward.get("terms") if isinstance(reward, dict) else None
    named = map(str, terms if isinstance(terms, dict) else ())
    parts = [choices.get("env") or env_id, choices["policy"], choices["reward"] or "+".join(named)]
    short = [re.split("[/:]", str(part))[-1] for part in parts]  # of an id, or of module:Name
    return "_".join(short[:2] if short[2] == "env" else short)

"""Composition: a preset, a file or a mapping, and overrides, become one checked configuration.

From weak to strong: the schema's defaults, the policy's ``defaults``, the options of the groups
``env`` and ``reward``, the presets of the chosen groups, the file or mapping, the overrides.
"""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hydra.version import VersionBase
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from guerdon.config import imports, sources, tutorial, workflow
from guerdon.config.errors import ConfigError, line, suggestion
from guerdon.config.reads import check_read, flat, unread
from guerdon.config.registry import registry_of
from guerdon.config.schema import CollectConfig, GuerdonConfig, LearnConfig, as_terms
from guerdon.config.validation import keys_of, unknown_key, validated

GROUPS = ("env", "policy", "reward")
DEFAULTS = {"policy": "ppo", "reward": "env"}
_ROOT = "guerdon_root"
_LOCK = threading.Lock()  # Hydra's state is global
_OBJECT = "<object {}>"

Values = dict[str, Any]
Choices = dict[str, str | None]


def compose(
    source: str | Path | Mapping[str, Any] | None = None, overrides: Iterable[str] = ()
) -> GuerdonConfig:
    """Composes and checks a configuration.

    An override that chooses another environment, policy or reward than a file does takes the
    place of what the file says about it; with a policy go the sections ``collect`` and ``learn``.
    An option of ``collect`` or ``learn`` that the policy does not read is an error where a file or
    an override sets it. The layout of the nerveX tutorial is understood, too.

    Args:
        source: A preset (``"cartpole_ppo"``), the path of a YAML file, of a Python file with
            ``main_config`` or of a run's folder, a mapping of sections, or None.
        overrides: Hydra's ``key=value``: a group's option (``policy=dqn``) or any dotted key
            (``policy.gamma=0.9``).
    """
    values, preset = _read(source)
    values, overrides = workflow.renamed(values, overrides)
    parsed = [_parse(text) for text in overrides]
    changes = [override for override in parsed if _chosen(override) is None]
    values, choices = _start(values, preset, changes)
    for group, option in filter(None, map(_chosen, parsed)):
        _replace(values, choices, group, option)
    choices = {**DEFAULTS, **choices}
    terms = [change for change in changes if _key(change).startswith("reward.terms")]
    others = [_forced(change) for change in changes if change not in terms]
    objects: list[Any] = []
    root = {**_hidden(values, objects), "defaults": _defaults(choices)}
    composed = _hydra(root, choices, others)
    if terms:
        composed = _with_terms(composed, terms)
        choices["reward"] = None
    composed = _shown(composed, objects)
    composed["imports"] = values.get("imports", [])
    _check_keys(composed, str(choices["policy"]))
    _settle(composed, values, changes)
    _drop_unread(composed, values, changes, str(choices["policy"]))
    _name_run(composed, choices)
    return validated(GuerdonConfig, composed)


# --- what was asked for


def _read(source: str | Path | Mapping[str, Any] | None) -> tuple[Values, str | None]:
    """The sections that a source holds, or the preset that it names."""
    values: Values = {}
    preset = source if isinstance(source, str) and not sources.is_file(source) else None
    if isinstance(source, Mapping):
        values = sources.plain(source)
    elif source is not None and preset is None:
        values = sources.read(Path(source))
    named = {key: value for key, value in values.items() if value is not None}
    return tutorial.renamed(named), preset


def _start(
    values: Values, preset: str | None, changes: Sequence[Override]
) -> tuple[Values, Choices]:
    """The values and the choices of groups to begin with; imports what they need."""
    _import(values, changes)
    if preset is not None:
        return values, _preset_choices(preset)
    for key in ("defaults", "hydra"):  # Hydra would take these for its own
        if key in values:
            raise ConfigError(unknown_key(key, keys_of(GuerdonConfig)))
    choices: Choices = {}
    for group in GROUPS:
        section = values.get(group)
        if isinstance(section, str):
            choices[group] = values.pop(group)
        elif group != "env" and isinstance(section, dict) and "type" in section:
            choices[group] = section["type"]
        elif group == "reward" and isinstance(section, dict) and "terms" in section:
            choices[group] = None
    policy = choices.get("policy", DEFAULTS["policy"])
    if policy in registry_of("policy").names():
        values = tutorial.fitted(values, registry_of("policy").get(policy))
    return values, choices


def _import(values: Values, changes: Sequence[Override]) -> None:
    """Imports what a source names, or an override instead; and sets it with whole paths."""
    for change in changes:
        if _key(change) == "imports":
            values["imports"] = [] if change.type is OverrideType.DEL else change.value()
    if "imports" in values:
        values["imports"] = imports.resolved(values["imports"], Path.cwd())
        if imports.is_names(values["imports"]):
            imports.import_all(values["imports"])


def _preset_choices(name: str) -> Choices:
    presets = sources.options("preset")
    if name not in presets:
        hint = suggestion(name, presets)
        raise ConfigError(f"unknown preset {name!r}: {hint} (a file ends in .yaml or .py)")
    return {**sources.split_preset(name, registry_of("policy").names())}


def _parse(text: str) -> Override:
    if not re.match(r"~[\w.]+$|[+]{0,2}[\w.]+=", text):
        raise ConfigError(f"the override {text!r} is not of the form key=value")
    parser = OverridesParser.create()
    try:
        override = parser.parse_override(text)
    except HydraException:
        # Such as a path with brackets: what is no value of Hydra's grammar is text.
        key, _, value = text.partition("=")
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        override = parser.parse_override(f"{key}='{quoted}'")
    key = _key(override)
    if override.is_sweep_override():
        raise ConfigError(f"the override {text!r} has several values: give one, or quote the comma")
    if key.partition(".")[0] in ("defaults", "hydra"):
        raise ConfigError(unknown_key(key, keys_of(GuerdonConfig)))
    if key in GROUPS and not isinstance(override.value(), str):
        raise ConfigError(
            f"the override {text!r} has to name an option: {key}=NAME or {key}.KEY=..."
        )
    return override


def _key(override: Override) -> str:
    return str(override.key_or_group)


def _chosen(override: Override) -> tuple[str, str] | None:
    """The group and option of ``policy=dqn`` or ``policy.type=dqn``; None for other overrides."""
    key, value = _key(override), override.value()
    if not isinstance(value, str) or override.type is OverrideType.DEL:
        return None
    if key in GROUPS:
        return key, value
    return (key.partition(".")[0], value) if key in ("policy.type", "reward.type") else None


def _replace(values: Values, choices: Choices, group: str, option: str) -> None:
    """Chooses an option, and drops what a file says about another one."""
    section = values.get(group)
    named = choices.get(group) or (isinstance(section, dict) and section.keys() & {"id", "terms"})
    if named and choices.get(group) != option:
        for key in (group, "collect", "learn") if group == "policy" else (group,):
            values.pop(key, None)
        _section(values, "run").pop("name", None)
    choices[group] = option


def _forced(override: Override) -> str:
    """The override in a form that Hydra accepts for any key: pydantic alone rejects."""
    text = str(override.input_line)
    return text if override.type is OverrideType.DEL else f"++{text.lstrip('+')}"


# --- groups


def _defaults(choices: Choices) -> list[Any]:
    """Hydra's defaults list for the chosen options and the presets they have."""
    env, policy, reward = (choices.get(group) for group in GROUPS)
    known = sources.options("env")
    if env is not None and env not in known:
        hint = suggestion(env, known)
        raise ConfigError(f"unknown env {env!r}: {hint} (for a Gymnasium id write env.id={env})")
    presets = sources.options("preset")
    wanted = [f"{env}_{policy}", f"{env}_{policy}_{reward}"]
    chosen: list[Any] = [{"policy": policy}]
    chosen += [{"env@_global_": env}] if env else []
    chosen += [{"reward": reward}] if reward else []
    chosen += [{"preset@_global_": [name for name in wanted if name in presets]}]
    return [*chosen, "_self_"]


def _node(group: str, name: str) -> Values:
    """The option of a registered class: its name, and its defaults for all sections."""
    defaults = sources.plain(getattr(registry_of(group).get(name), "defaults", {}))
    if "terms" in defaults.get(group, {}):
        return {**defaults}
    return {**defaults, group: {"type": name, **defaults.get(group, {})}}


# --- Hydra


def _hydra(root: Values, choices: Choices, overrides: Sequence[str]) -> Values:
    nodes = {
        group: (option, _node(group, option))
        for group, option in choices.items()
        if option is not None and group != "env"
    }
    try:
        with _LOCK, _apart() as store:
            for group, (option, node) in nodes.items():
                store.store(group=group, name=option, node=node, package="_global_")
            store.store(name=_ROOT, node=root)
            with initialize_config_dir(str(sources.ZOO), version_base="1.3"):
                config = hydra_compose(_ROOT, overrides=list(overrides))
            container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"the configuration cannot be composed: {line(error)}") from error
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _with_terms(composed: Values, changes: Sequence[Override]) -> Values:
    """Changes terms of a composed reward, however that is written; the others stay as they are."""
    reward = as_terms(composed["reward"])
    if any(_key(change) == "reward.terms" for change in changes):
        reward["terms"] = {}  # all of them are said anew
    root = {**composed, "reward": reward, "defaults": ["_self_"]}
    return _hydra(root, {}, [_forced(change) for change in changes])


@contextmanager
def _apart() -> Iterator[ConfigStore]:
    """Lets Hydra work without touching a Hydra application that calls guerdon."""
    store, hydra, version = ConfigStore.instance(), GlobalHydra.instance(), VersionBase.instance()
    before = store.repo, hydra.hydra, version.version_base
    store.repo, hydra.hydra = {key: before[0][key] for key in before[0] if key == "hydra"}, None
    try:
        yield store
    finally:
        store.repo, GlobalHydra.instance().hydra, version.version_base = before


def _hidden(values: Any, objects: list[Any]) -> Any:
    """Python objects (a model's class, a reward function) as marks, since YAML has none."""
    if isinstance(values, dict):
        return {key: _hidden(value, objects) for key, value in values.items()}
    if isinstance(values, list):
        return [_hidden(value, objects) for value in values]
    if isinstance(values, sources.PLAIN):
        return values
    objects.append(values)
    return _OBJECT.format(len(objects) - 1)


def _shown(values: Any, objects: list[Any]) -> Any:
    """The inverse of `_hidden`."""
    if isinstance(values, dict):
        return {key: _shown(value, objects) for key, value in values.items()}
    if isinstance(values, list):
        return [_shown(value, objects) for value in values]
    marks = {_OBJECT.format(number): value for number, value in enumerate(objects)}
    return marks.get(values, values) if isinstance(values, str) else values


# --- after composition


def _check_keys(composed: Values, policy: str) -> None:
    """Rejects unknown sections, and a configuration without an environment."""
    known = keys_of(GuerdonConfig) | keys_of(registry_of("policy").get(policy).Config, "policy")
    for key in composed:
        if key not in known[""]:
            raise ConfigError(unknown_key(key, known))
    env = composed.get("env", {})
    if isinstance(env, dict) and "id" not in env:
        names = ", ".join(sources.options("env"))
        raise ConfigError(f"no environment is chosen: give env=NAME ({names}) or env.id=ID")


def _settle(composed: Values, values: Values, changes: Sequence[Override]) -> None:
    """Where two keys exclude each other, the one that is said in the stronger place decides."""
    given: Values = {_key(change): change.value() for change in changes}
    said = {f"collect.{key}": value for key, value in _section(values, "collect").items()}
    collect, evaluate = _section(composed, "collect"), _section(composed, "eval")
    pair = ("n_step", "n_episode")
    for layer in (given, said):
        amounts = [key for key in pair if layer.get(f"collect.{key}") is not None]
        if amounts:
            collect.update({key: None for key in pair if key not in amounts})
            break
    if "eval.episodes" in given and "eval.n_envs" not in given:
        evaluate.pop("n_envs", None)
    if "reward.checkpoint_path" in given and "reward.cotrain" not in given:
        _section(composed, "reward").pop("cotrain", None)


def _drop_unread(
    composed: Values, values: Values, changes: Sequence[Override], policy: str
) -> None:
    """Sees that the user sets nothing that the policy does not read; other layers may."""
    given = {
        _key(change): change.value() for change in changes if change.type is not OverrideType.DEL
    }
    said = {**dict(flat(values)), **dict(flat(given))}
    cls = registry_of("policy").get(policy)
    check_read(policy, cls, {"collect": CollectConfig, "learn": LearnConfig}, said)
    for key in unread(cls):
        section, _, option = key.partition(".")
        _section(composed, section).pop(option, None)


def _section(values: Values, name: str) -> Values:
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def _name_run(composed: Values, choices: Choices) -> None:
    """Names the run after the preset it is, or would be."""
    env = choices.get("env") or str(_section(composed, "env").get("id")).rpartition("/")[2]
    reward = choices["reward"] or "+".join(_section(_section(composed, "reward"), "terms"))
    parts = [env, str(choices["policy"])] + [reward] * (reward != "env")
    composed.setdefault("run", {})
    _section(composed, "run").setdefault("name", "_".join(parts))

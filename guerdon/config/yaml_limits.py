"""Limits for configs: aliases and interpolations can turn a few bytes into gigabytes."""

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf

from guerdon.config.errors import ConfigError
from guerdon.limits import Budget, read_bytes

_MOST_BYTES = 1 << 16  # of a file; a config has a few thousand
_MOST_NODES = 50_000  # with aliases expanded
_MOST_RESOLVED = 1 << 22  # characters with interpolations expanded, where a value costs 100 more
_PLAIN = re.compile(r"""\$\{([^${}\[\]'"\\]*)\}""")  # an interpolation whose names are all literal

Names = tuple[str, ...]


def load_yaml(path: Path) -> Any:
    """Return the content of a YAML file, with interpolations as text."""
    text = read_bytes(path, _MOST_BYTES).decode()
    if "*" in text:
        _check_aliases(text)
    config = OmegaConf.load(io.StringIO(text))
    check_interpolations(config)  # before a merge resolves any of them
    values = OmegaConf.to_container(config, resolve=False)
    for names, value in _nodes((), values):
        _check_type(names, value)
    return values


def _check_type(names: Names, value: Any) -> None:
    """Raise an error for bytes, of ``!!binary``, as a value or a key."""
    keys = value if isinstance(value, dict) else ()
    if any(isinstance(part, bytes) for part in (value, *keys)):
        raise ConfigError(f"{'.'.join(names) or 'it'} has bytes (!!binary): write text or a number")


def _check_aliases(text: str) -> None:
    """Raise an error if aliases stand for too many values, or for what contains them."""
    known: dict[str | None, int] = {}
    nodes, opened = 0, []
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in known:
                raise ConfigError(f"the alias *{event.anchor} has no value, or contains itself")
            nodes += known[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, nodes))
            Budget().spend(depth=len(opened))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            known[anchor] = nodes - before
        elif isinstance(event, yaml.ScalarEvent):
            known[event.anchor] = 1
            nodes += 1
        if nodes > _MOST_NODES:
            raise ConfigError(f"its aliases stand for more than {_MOST_NODES:,} values")


def check_resolved(values: Any, what: object) -> None:
    """Raise an error if a config that is stored has an interpolation, also an escaped one.

    Composing it again would read something else, such as an environment variable.

    Args:
        values: Values of the config.
        what: Names the config in the error.
    """
    for key, text in interpolations(values):
        raise ConfigError(
            f"{what} has the interpolation {text!r} in {key!r}, but the config of a run or a fit "
            "has values only: write the value in its place"
        )


def interpolations(values: Any) -> Iterator[tuple[str, str]]:
    """Yield the dotted keys and texts of values, and of keys, with ``${``."""
    for names, value in _nodes((), values):
        for text in (*names[-1:], value):
            if isinstance(text, str) and "${" in text:
                yield ".".join(names), text


def check_interpolations(config: DictConfig | ListConfig) -> None:
    """Raise an error if a config would be too large with every ``${...}`` in it resolved."""
    nodes = dict(_nodes((), OmegaConf.to_container(config, resolve=False)))
    if _resolved_size(nodes, (), {}) > _MOST_RESOLVED:
        raise ConfigError(
            "the interpolations '${...}' of the configuration stand for too much, or for themselves"
        )


def _nodes(path: Names, value: Any) -> Iterator[tuple[Names, Any]]:
    """Yield the path and value of a value and of all that it contains."""
    yield path, value
    for inner, item in _items(path, value):
        yield from _nodes(inner, item)


def _items(path: Names, value: Any) -> Iterator[tuple[Names, Any]]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (((*path, str(key)), item) for key, item in items)


def _resolved_size(nodes: Mapping[Names, Any], path: Names, known: dict[Names, int]) -> int:
    """Return the characters of the value at a path, with all that they may refer to."""
    if path in known:
        return known[path]
    known[path] = _MOST_RESOLVED + 1  # of what refers to itself
    value = nodes[path]
    text = value if isinstance(value, str) else ""
    parts = [*(inner for inner, _ in _items(path, value)), *_references(nodes, path, text)]
    known[path] = 100 + len(text) + sum(_resolved_size(nodes, part, known) for part in parts)
    return known[path]


def _references(nodes: Mapping[Names, Any], path: Names, text: str) -> Iterator[Names]:
    """Yield the path of everything that the interpolations of a text may name."""
    if "${" in _PLAIN.sub("", text):
        raise ConfigError(
            f"the interpolation in {'.'.join(path)!r} has another one, a bracket, a quote or a "
            "backslash inside: write '${a.b}', for one value after the other"
        )
    for inner in _PLAIN.findall(text):
        _, colon, arguments = inner.partition(":")  # of a resolver: these may be names
        for name in filter(None, map(str.strip, arguments.split(",") if colon else [inner])):
            dots = len(name) - len(name.lstrip("."))
            base = path[: len(path) - dots] if dots else ()
            found = named = (*base, *filter(None, name.split(".")))
            while found not in nodes:
                found = found[:-1]
            # Where it goes on in a text, which may refer to more, or in a list, all of it counts.
            if found == named or not isinstance(nodes[found], dict):
                yield found

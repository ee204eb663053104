"""Limits for configs: aliases and interpolations can turn a few bytes into gigabytes."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from guerdon.config.errors import ConfigError
from guerdon.limits import Budget, read_bytes

_MOST_BYTES = 1 << 16  # of a file; a config has a few thousand
_MOST_NODES = 50_000  # with aliases expanded
_MOST_RESOLVED = 1 << 22  # characters with interpolations expanded, where a value costs 100 more

Names = tuple[str, ...]


def load_yaml(path: Path) -> Any:
    """Return the content of a YAML file, with interpolations as text."""
    text = read_bytes(path, _MOST_BYTES).decode()
    if "*" in text:
        _check_aliases(text)
    return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)


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


def check_interpolations(config: DictConfig) -> None:
    """Raise an error if a config would be too large with every ``${...}`` in it resolved."""
    values = OmegaConf.to_container(config, resolve=False)
    if _resolved_size(values, (), values, {}) > _MOST_RESOLVED:
        raise ConfigError("the interpolations '${...}' of the configuration stand for too much")


def _resolved_size(root: Any, path: Names, value: Any, known: dict[Names, int]) -> int:
    """Return the characters of the value at a path, with all that they may refer to."""
    if path in known:
        return known[path]
    known[path] = 0  # of loops, which OmegaConf refuses
    size, parts = 100, list[tuple[Names, Any]]()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [((*path, str(key)), item) for key, item in items]
    elif isinstance(value, str):
        size += len(value)
        parts = list(_references(root, path, value))
    known[path] = size + sum(_resolved_size(root, *part, known) for part in parts)
    return known[path]


def _references(root: Any, path: Names, text: str) -> Iterator[tuple[Names, Any]]:
    """Yield the path and value of everything that the interpolations of a text may name."""
    for name in re.findall(r"[^\s\\{}()\[\]:,$'\"]+", text.partition("${")[2]):
        dots = len(name) - len(name.lstrip("."))
        base = path[: len(path) - dots] if dots else ()
        reached: Names = ()
        value = root
        for part in (*base, *filter(None, name.split("."))):
            if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            elif isinstance(value, dict) and part in value:
                value = value[part]
            else:
                break  # the rest may be an interpolation: all of this counts
            reached = (*reached, part)
        if len(reached) > len(base):
            yield reached, value

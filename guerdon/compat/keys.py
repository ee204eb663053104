"""Dotted keys of configurations as nested dictionaries."""

from typing import Any


def take(sections: dict[str, Any], path: str, taken: list[str], keep: bool = False) -> Any:
    """Remove a dotted key and return its value, or None; its path is appended to `taken`."""
    *outer, key = path.split(".")
    for name in outer:
        inner = sections.get(name)
        if not isinstance(inner, dict):
            return None
        sections = inner
    if key in sections:
        taken.append(path)
    return sections.get(key) if keep else sections.pop(key, None)


def put(sections: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted key, unless it is set already or its section is not a mapping."""
    *outer, key = path.split(".")
    for name in outer:
        inner = sections.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        sections = inner
    sections.setdefault(key, value)

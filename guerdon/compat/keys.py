"""Dotted keys of configurations as nested dictionaries, and what became of those of others."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """What became of the keys of another layout."""

    taken: list[tuple[str, str, Any]] = field(default_factory=list)
    """Key, guerdon's key and value."""
    dropped: dict[str, str] = field(default_factory=dict)
    """By key: why it is ignored."""

    def take(self, old: str, new: str, value: Any) -> None:
        """Add a key that became one of guerdon's, in place of what `new` came from before."""
        self.sources(new)
        self.taken.append((old, new, value))

    def sources(self, new: str) -> list[str]:
        """Remove and return the keys that became one of guerdon's."""
        found = [old for old, key, _ in self.taken if key == new]
        self.taken = [row for row in self.taken if row[1] != new]
        return found

    def drop_taken(self, new: str, reason: str) -> None:
        """Make the keys that became one of guerdon's ignored ones."""
        self.dropped |= dict.fromkeys(self.sources(new), reason)

    def reasons(self) -> dict[str, list[str]]:
        """Return the ignored keys by reason."""
        grouped: dict[str, list[str]] = {}
        for key, reason in self.dropped.items():
            grouped.setdefault(reason, []).append(key)
        return grouped


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


def get(sections: dict[str, Any], path: str) -> Any:
    """Return the value of a dotted key, or None."""
    return take(sections, path, [], keep=True)


def put(sections: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted key, unless it is set already or its section is not a mapping."""
    *outer, key = path.split(".")
    for name in outer:
        inner = sections.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        sections = inner
    sections.setdefault(key, value)


def merged(weak: Any, strong: dict[str, Any]) -> dict[str, Any]:
    """Merge sections; `strong` takes precedence."""
    values = {**weak} if isinstance(weak, dict) else {}
    for key, value in strong.items():
        both = isinstance(value, dict) and isinstance(values.get(key), dict)
        values[key] = merged(values[key], value) if both else value
    return values

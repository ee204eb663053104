"""Errors of a configuration: one sentence each, with the most similar valid name."""

from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(ValueError):
    """Raised for an invalid configuration; the message is one sentence."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence: ``did you mean 'x'?``, or the valid names."""
    names = sorted(set(known))
    word = name.lower()
    parts = [
        other
        for other in names
        if word in other.lower() or (len(other) > 2 and other.lower() in word)
    ]
    near = parts if len(word) > 2 else []
    if not near:
        lower = {other.lower(): other for other in names}
        near = [lower[match] for match in get_close_matches(word, lower, n=1, cutoff=0.5)]
    if near:
        return f"did you mean {either(near)}?"
    return f"choose from {', '.join(names)}" if names else "there is none"


def either(names: list[str]) -> str:
    """Quote names, with ``or`` between the last two."""
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}" if first else last


def line(error: BaseException) -> str:
    """Return an error message as one line."""
    lines = [part.strip() for part in str(error).splitlines() if part.strip()]
    return "; ".join(lines) or type(error).__name__

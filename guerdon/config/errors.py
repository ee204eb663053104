"""Errors of a configuration: one sentence each, with the most similar valid name."""

import os
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path


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


def check_number(value: object, name: str, least: int = 1) -> None:
    """Raise an error unless an argument is a whole number that is large enough."""
    if not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} is {value!r}: give a whole number, {least} or more")


def as_path(run: object) -> Path:
    """Return the path of a run; raise an error for another object."""
    if isinstance(run, str | os.PathLike):
        return Path(run)
    raise TypeError(
        f"a run is given as the path of its directory, not as {type(run).__name__} "
        f"{reprlib.repr(run)}: that of a result of guerdon.train is result.run_dir"
    )


def either(names: list[str]) -> str:
    """Quote names, with ``or`` between the last two."""
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}" if first else last


def line(error: BaseException) -> str:
    """Return an error message as one line."""
    lines = [part.strip() for part in str(error).splitlines() if part.strip()]
    return "; ".join(lines) or type(error).__name__

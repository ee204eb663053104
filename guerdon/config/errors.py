"""Errors of a configuration: one sentence each, with the nearest right name."""

from collections.abc import Iterable


class ConfigError(ValueError):
    """A configuration cannot be used; the message says why in one sentence."""


def edit_distance(left: str, right: str) -> int:
    """How many characters to insert, delete, replace or swap with a neighbour."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(right, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and b == left[i - 2]:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


def similar(name: str, known: Iterable[str]) -> list[str]:
    """The known names that ``name`` may be a slip of: all equally near ones, or none."""
    distances = {other: edit_distance(name.lower(), other.lower()) for other in sorted(set(known))}
    closest = min(distances.values(), default=0)
    if closest > max(1, len(name) // 3):
        return []
    return [other for other, distance in distances.items() if distance == closest]


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names a writer of ``name`` may have meant, a part or a whole of it included."""
    names = sorted(set(known))
    word = name.lower()
    parts = [other for other in names if word in other.lower() or other.lower() in word]
    return similar(name, names) or (parts if len(name) > 2 else [])


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: ``did you mean 'x'?``, or the names there are."""
    names = sorted(set(known))
    near = nearest(name, names)
    if near:
        return f"did you mean {either(near)}?"
    return f"choose from {', '.join(names)}" if names else "there is none"


def either(names: list[str]) -> str:
    """Quoted names with ``or`` between the last two."""
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}" if first else last


def line(error: BaseException) -> str:
    """An error's message in one line."""
    lines = [part.strip() for part in str(error).splitlines() if part.strip()]
    return "; ".join(lines) or type(error).__name__

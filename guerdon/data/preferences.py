"""Preferences between segments: a file of JSON lines, and a folder of segments beside it.

A line is a label of a pair: ``pair`` (its name), ``label`` (0: the first segment is better, 1: the
second is better, 0.5: equal, ``"skip"``: the rater could not decide, null: not labelled), ``rater``
and ``time``. The first line of a pair also has ``segments``, the folder of both segments. If a
rater labels a pair several times, the newest label counts.
"""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from guerdon.data.array_files import read_arrays
from guerdon.data.batch import Batch, flatten
from guerdon.data.files import atomic_file, remove_folder, remove_temporary
from guerdon.data.serializer import check_replaceable, read_tree, write_tree
from guerdon.limits import TEXT_BYTES, parse_json, read_bytes, read_lines, reading

SKIP: Literal["skip"] = "skip"
Label = float | Literal["skip"] | None
LABELS = (0.0, 0.5, 1.0, SKIP, None)
_KIND = "pair of segments"
_PAIR = re.compile(r"\.*[\w-][\w.-]*")


@dataclass(frozen=True)
class Preference:
    """A label of two segments.

    Args:
        pair: Name of the pair: letters, digits, dots, dashes and underscores.
        first: A segment [T, ...].
        second: A segment with the same fields and length.
        label: 0 if the first is better, 1 if the second is, 0.5 if they are equal, "skip" if the
            rater could not decide, None if the pair is not labelled.
        rater: Name of the rater.
        time: Time of the label in ISO 8601; now by default.
    """

    pair: str
    first: Batch
    second: Batch
    label: Label = None
    rater: str = ""
    time: str = ""

    def __post_init__(self) -> None:
        if not _PAIR.fullmatch(self.pair):
            raise ValueError(f"pair name {self.pair!r} is invalid: use letters, digits and dashes")
        check_label(self.label, f"the pair {self.pair!r}")
        keys, other = ({path for path, _ in flatten(each)} for each in (self.first, self.second))
        if keys != other:
            odd = ".".join(min(keys ^ other))
            raise ValueError(f"only one segment of the pair {self.pair!r} has {odd!r}")
        if len(self.first) != len(self.second) or not len(self.first):
            raise ValueError(
                f"the segments of the pair {self.pair!r} have {len(self.first)} and "
                f"{len(self.second)} rows: both need the same number, at least one"
            )


def check_label(label: Any, what: str) -> None:
    """Raise an error if a label is invalid; ``what`` names its owner in the message."""
    if isinstance(label, bool) or label not in LABELS:
        raise ValueError(f"the label of {what} is {label!r}: it has to be 0, 0.5, 1 or 'skip'")


def save_preferences(
    path: str | os.PathLike[str],
    preferences: Iterable[Preference],
    note: Callable[[pathlib.Path, bytes, str], object] = lambda *_: None,
) -> None:
    """Append labels and their segments to a file, created if missing.

    Args:
        path: File, ``.jsonl``; segments are stored in ``<file name>_segments`` beside it.
        preferences: Preferences to add. Segments of a known pair are overwritten.
        note: Called before each pair is written, with the file, the line and the pair's name.
    """
    path = pathlib.Path(path)
    folder = _segments(path)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for each in preferences:
        lines.append(
            {
                "pair": each.pair,
                "segments": f"{folder.name}/{each.pair}",
                **_label_line(each.label, each.rater, each.time),
            }
        )
        note(path, json.dumps(lines[-1]).encode(), each.pair)
        both = {"first": each.first.to_dict(), "second": each.second.to_dict()}
        write_tree(folder / each.pair, {"segments": both}, _KIND)
    _append(path, lines)


def remove_preferences(path: pathlib.Path, digests: Mapping[str, str]) -> None:
    """Remove pairs with their segments; a pair stays if the file has another line about it.

    Args:
        path: File of preferences.
        digests: SHA-256 of the line of each pair.
    """
    segments = _segments(path)
    shared = [other for other in path.parent.glob("*") if other.stem == path.stem and other != path]
    if shared or segments.is_symlink():  # the segments may be of another file
        return
    if not segments.is_dir():  # which comes first: this is no file of preferences
        return
    listed = {*digests.values()}
    lines = [*read_lines(path)] if path.is_file() else []
    own = [hashlib.sha256(line.strip()).hexdigest() in listed for line in lines]
    others = {_pair_of(line) for line, mine in zip(lines, own, strict=True) if not mine}
    for pair in digests.keys() - others:  # before the lines, which are found again if this stops
        folder = segments / pair
        if not _PAIR.fullmatch(pair):
            continue
        remove_temporary(segments, pair)
        if folder.is_dir() and not folder.is_symlink():
            check_replaceable(folder, _KIND)
            remove_folder(folder)
    if any(own):
        kept = [
            line
            for line, mine in zip(lines, own, strict=True)
            if not mine or _pair_of(line) in others
        ]
        with atomic_file(path) as file:
            file.writelines(kept)


def _pair_of(line: bytes) -> Any:
    """Return the pair of a line; None if it is damaged."""
    try:
        return str(json.loads(line)["pair"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def parts_of(path: pathlib.Path) -> list[pathlib.Path]:
    """Return a file of preferences and the folder of its segments; nothing if it has others."""
    folder = _segments(path)
    named = {path.parent / line["segments"] for line in _read_lines(path) if "segments" in line}
    return [path, folder] if all(segments.parent == folder for segments in named) else []


def _segments(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.stem}_segments")


def save_label(
    path: str | os.PathLike[str], pair: str, label: Label, rater: str, time: str = ""
) -> None:
    """Append a label, as in `Preference`, of a pair whose segments are already in the file."""
    check_label(label, f"the pair {pair!r}")
    path = pathlib.Path(path)
    if not any(line["pair"] == pair for line in _read_lines(path)):
        raise KeyError(f"{path} has no pair {pair!r}")
    _append(path, [{"pair": pair, **_label_line(label, rater, time)}])


def load_preferences(path: str | os.PathLike[str]) -> list[Preference]:
    """Read the newest label of each pair by each rater, in the order of the pairs.

    A pair without a label has the label None.
    """
    path = pathlib.Path(path)
    segments: dict[str, str] = {}
    by_pair: dict[str, dict[str, dict[str, Any]]] = {}
    for line in _read_lines(path):
        pair = line["pair"]
        if "segments" in line:
            segments[pair] = line["segments"]
        if pair not in segments:
            raise ValueError(
                f"{path} has a label of the pair {pair!r} before the line with its segments"
            )
        raters = by_pair.setdefault(pair, {})
        if line["label"] is not None:
            raters[line["rater"]] = line
    found = []
    for pair, raters in by_pair.items():
        lines: Sequence[dict[str, Any]] = list(raters.values()) or [_label_line(None, "", "")]
        with reading(path.parent / segments[pair]):
            first, second = _read_segments(path, segments[pair])
            found += [
                Preference(pair, first, second, line["label"], line["rater"], line["time"])
                for line in lines
            ]
    return found


def _label_line(label: Label, rater: str, time: str) -> dict[str, Any]:
    return {
        "label": label,
        "rater": rater,
        "time": time or datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _append(path: pathlib.Path, lines: Iterable[dict[str, Any]]) -> None:
    """Append lines; the whole file is rewritten, so that it never ends in a partial line."""
    before = read_bytes(path, TEXT_BYTES) if path.exists() else b""
    added = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    if added:
        with atomic_file(path) as file:
            file.write(before + (b"\n" if before and not before.endswith(b"\n") else b"") + added)


def _read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise FileNotFoundError(f"there are no preferences at {path}")
    lines = []
    for number, text in enumerate(read_lines(path), 1):
        where = f"line {number} of {path}"
        if not text.strip():
            continue
        line = parse_json(text, where)
        if not isinstance(line, dict) or not isinstance(line.get("pair"), str):
            raise ValueError(f"{where} has no 'pair'")
        if "label" not in line:
            raise ValueError(f"{where} has no 'label'")
        check_label(line["label"], where)
        line = {"rater": "", "time": "", **line}
        for key in ("rater", "time", "segments"):
            if not isinstance(line.get(key, ""), str):
                raise ValueError(f"{key!r} in {where} is not text")
        lines.append(line)
    return lines


def _read_segments(path: pathlib.Path, name: str) -> tuple[Batch, Batch]:
    file = path.parent / name
    if not file.exists():
        raise FileNotFoundError(f"{path} refers to missing segments: {file}")
    both = Batch(read_tree(file, _KIND)["segments"]) if file.is_dir() else read_arrays(file)
    return both.first, both.second

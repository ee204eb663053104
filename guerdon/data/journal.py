"""`Journal`: what a run writes outside its folder, to be removed when it is resumed earlier."""

import hashlib
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

from guerdon.data.files import atomic_file, check_plain, open_plain
from guerdon.data.preferences import remove_preferences
from guerdon.limits import parse_json, read_lines

# A journal removes nothing else: that of a downloaded run may list any file.
_TRAJECTORY = re.compile(r"\d{6,}\.np[yz]")


class Journal:
    """Lists trajectories and preferences just before they are written.

    It lists nothing until it is opened.
    """

    def __init__(self) -> None:
        self._file: Any = None
        self._lock = threading.Lock()
        self.length = 0
        """Number of entries."""

    def open(self, path: Path, length: int | None = None) -> None:
        """Open a journal to continue it, and remove what its later entries list.

        Only what still has the listed content is removed.

        Args:
            path: File in the folder of the run; created if missing.
            length: Number of entries to keep; None for all.
        """
        entries = _read(path) if path.exists() else []
        kept = entries[:length]
        try:
            _remove(entries[len(kept) :])
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} lists what cannot be removed: {error}") from error
        with atomic_file(path) as file:
            file.writelines(_line(entry) for entry in kept)
        self._file, self.length = open_plain(path, "ab"), len(kept)

    def note(self, path: Path, content: bytes, pair: str | None = None) -> None:
        """List a file that is about to be written; the entry is on the disk when this returns.

        Args:
            path: The file.
            content: Its content; of preferences, the line of one pair.
            pair: Name of that pair.
        """
        if self._file is None:
            return
        path, root = path.absolute(), Path(self._file.name).parent.resolve()
        for each in (path, *path.parents):
            if each.parent.resolve().is_relative_to(root):
                check_plain(each)
        entry = {"path": str(path), "sha256": hashlib.sha256(content).hexdigest()}
        with self._lock:
            self._file.write(_line(entry if pair is None else {**entry, "pair": pair}))
            self._file.flush()
            os.fsync(self._file.fileno())
            self.length += 1

    def close(self) -> None:
        """Close the file; may be called again."""
        if self._file is not None:
            self._file.close()


def _line(entry: dict[str, str]) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _read(path: Path) -> list[dict[str, str]]:
    """Return the entries; a last one that is not whole lists nothing that was written."""
    entries = []
    check_plain(path)
    try:
        for line in read_lines(path):
            if not line.endswith(b"\n"):
                break
            entry = parse_json(line, path)
            if not {*map(type, (entry["path"], entry["sha256"], *entry.values()))} == {str}:
                raise TypeError
            if not (Path(entry["path"]).is_absolute() and Path(entry["path"]).name):
                raise ValueError
            entries.append(entry)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged: remove it; trajectories and preferences that the run wrote after "
            "its checkpoint then stay"
        ) from error
    return entries


def _remove(entries: list[dict[str, str]]) -> None:
    """Remove the trajectories and preferences of entries, if they are still what was listed."""
    pairs: dict[Path, dict[str, str]] = {}
    for entry in entries:
        path = Path(entry["path"])
        if "pair" in entry:
            pairs.setdefault(path, {})[entry["pair"]] = entry["sha256"]
        elif _TRAJECTORY.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with open_plain(path, "rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"]
            if same:
                path.unlink()
    for path, digests in pairs.items():
        remove_preferences(path, digests)

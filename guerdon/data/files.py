"""Files and folders that are written in one piece or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file that appears under its name only when all of it is on the disk.

    Until then it has a temporary name in the same folder. When anything goes wrong, the temporary
    file is removed and whatever had the name before is untouched.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    temporary = temporary_name(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a folder that gets its name only when it is complete, and replaces one of that name.

    A process that is killed leaves the old folder, under its name or under that of `set_aside`.
    """
    temporary, aside = temporary_name(path), set_aside(path)
    restore(path)
    try:
        temporary.mkdir()
        yield temporary
        sync_folder(temporary)
        if path.exists():
            path.rename(aside)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        restore(path)
        raise
    sync_folder(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def temporary_name(path: Path) -> Path:
    """Return a new name beside a path."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def set_aside(path: Path) -> Path:
    """Return the name that a folder has while it is being replaced."""
    return path.with_name(f".{path.name}.replaced")


def restore(path: Path) -> None:
    """Give a folder its name back if replacing it was interrupted; remove it if it was not."""
    aside = set_aside(path)
    if path.exists():
        shutil.rmtree(aside, ignore_errors=True)
    elif aside.exists():
        aside.rename(path)


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder last through a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

"""Files and folders that are written atomically."""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO


def open_plain(path: str | os.PathLike[str], mode: str) -> Any:
    """Open a file of a run in a binary mode; see `check_plain` and `unshared`."""
    check_plain(path)
    more = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # Windows has neither

    def opened(name: str, flags: int) -> int:
        file = os.open(name, flags | more, 0o644)
        return unshared(file, path) if mode == "ab" else file

    return open(path, mode, opener=opened)


def unshared(file: int, path: str | os.PathLike[str]) -> int:
    """Return an open file, to append to it; if it has other names, close it and raise an error."""
    if os.fstat(file).st_nlink > 1:
        os.close(file)
        reason = "it is a hard link, so that another file would change, too"
        raise OSError(errno.EMLINK, reason, str(path))
    return file


def check_plain(path: str | os.PathLike[str]) -> None:
    """Raise an error if a path inside a run is a link, or a special file such as a pipe."""
    mode = os.lstat(path).st_mode if os.path.lexists(path) else stat.S_IFREG
    if stat.S_ISLNK(mode):
        raise ValueError(
            f"{path} is a symbolic link, and a run does not follow links, which could lead out of "
            "its folder: put the file or folder itself in its place"
        )
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"{path} is neither a file nor a folder: remove it")


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Let an `OSError` name a path instead of none, as that of a full disk, or a temporary one."""
    try:
        yield
    except OSError as error:
        unnamed = (None, str(temporary)) if temporary else (None,)
        if error.errno and error.filename in unnamed:
            error.filename = str(path)
        raise


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file that appears under its name only when it is completely on the disk.

    Until then it has a temporary name in the same folder. After an error, the temporary file is
    removed and an older file of the name is unchanged.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file() and not path.is_dir():  # a device would be replaced
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    temporary = temporary_name(path)
    try:
        with naming(path, temporary), temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a folder that appears under its name only when complete, and replaces an older one.

    If the process is killed, the older folder remains, under its name or as `set_aside`.
    """
    temporary = temporary_name(path)
    restore(path)
    try:
        with naming(path, temporary):
            temporary.mkdir()
            yield temporary
        replace_folder(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        restore(path)
        raise


def replace_folder(new: Path, path: Path) -> None:
    """Rename a complete folder to a path, and remove an older folder there; see `atomic_folder`."""
    sync_folder(new)
    if path.exists():
        path.rename(set_aside(path))
    new.rename(path)
    sync_folder(path.parent)
    shutil.rmtree(set_aside(path), ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder; if the process is killed, no part of it remains under its name."""
    doomed = temporary_name(path)
    path.rename(doomed)
    shutil.rmtree(doomed)


def temporary_name(path: Path) -> Path:
    """Return an unused temporary name in the same folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def remove_temporary(folder: Path, name: str = "*") -> None:
    """Remove what killed processes have left under a `temporary_name`."""
    for leftover in folder.glob(f".{name}.{'[0-9a-f]' * 8}.tmp"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Return the name of a folder while it is being replaced."""
    return path.with_name(f".{path.name}.replaced")


def restore(path: Path) -> None:
    """Rename a folder back if replacing it was interrupted; remove it if replacing had finished."""
    aside = set_aside(path)
    if path.exists():
        shutil.rmtree(aside, ignore_errors=True)
    elif aside.exists():
        aside.rename(path)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, where the system supports it."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

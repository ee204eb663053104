"""Limits for reading files: regular files alone, and no more depth, values and bytes than honest.

A damaged or forged file can name gigabytes in a few bytes. Everything that is read from a file of
unknown origin is opened by `open_regular`, and pays from a `Budget` for what the file does not
itself contain: nesting, values that are used several times, and sizes that are only declared.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

DEPTH = 100  # nested containers
_NODES = 1 << 20, 8  # values: this many, and so many more for each byte of the file
_BYTES = 1 << 28, 64  # memory: 256 MiB, and so many more for each byte of the file
TEXT_BYTES = 1 << 26
"""Largest size of a text file that is read as a whole."""
_LINE_BYTES = 1 << 20  # of a file that is read line by line
DAMAGE = (
    *(LookupError, TypeError, AttributeError, ValueError, ArithmeticError),
    *(RuntimeError, StopIteration, MemoryError, AssertionError),
)
"""Errors that damaged content raises where it is used."""


class DamagedError(ValueError):
    """Raised if files are missing, damaged, or beyond the limits."""


class Budget:
    """What may be made of one file: nested containers, values and bytes.

    Args:
        size: Bytes of the file; 0 allows what a small file may need.
    """

    def __init__(self, size: int = 0) -> None:
        self._nodes, self._bytes = (fixed + size * each for fixed, each in (_NODES, _BYTES))

    def spend(self, nodes: int = 0, memory: int = 0, depth: int = 0) -> None:
        """Raise an error if values or bytes are used up, or containers are nested too deeply."""
        self._nodes -= nodes
        self._bytes -= memory
        if self._nodes < 0 or self._bytes < 0:
            raise DamagedError("it would need far more memory than its size allows")
        if depth > DEPTH:
            raise DamagedError(f"it has more than {DEPTH} nested containers")


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Turn the errors that damaged content raises into one that names its file or folder."""
    try:
        yield
    except DAMAGE as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        raise DamagedError(f"{path} is damaged: {error}") from error


def open_regular(path: str | os.PathLike[str], mode: str = "rb") -> BinaryIO:
    """Open a binary file; anything but a regular file is an error, and never waited for."""
    flags = os.O_RDWR if "+" in mode else os.O_RDONLY
    file = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if stat.S_ISREG(os.fstat(file).st_mode):
        return cast("BinaryIO", os.fdopen(file, mode))
    os.close(file)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def read_bytes(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Return the content of a regular file of at most so many bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise DamagedError(f"{path} has {size:,} bytes, but at most {most:,} are read")
        return file.read()


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the content of a text file, with marks in the place of what is not UTF-8."""
    return read_bytes(path, TEXT_BYTES).decode(errors="replace")


def read_lines(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the lines of a file of any length, with their ends."""
    with open_regular(path) as file:
        while line := file.readline(_LINE_BYTES):
            if len(line) == _LINE_BYTES:
                raise DamagedError(
                    f"{path} is damaged: it has a line of {_LINE_BYTES:,} bytes or more"
                )
            yield line


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the content of a JSON file; an error names the file."""
    return parse_json(read_bytes(path, TEXT_BYTES), path)


def parse_json(text: str | bytes, what: object) -> Any:
    """Parse JSON; ``what`` names it in the error."""
    try:
        value = json.loads(text)
        level: list[Any] = [[value]]
        depth = 0
        while level := [
            each
            for node in level
            for each in (node.values() if isinstance(node, dict) else node)
            if isinstance(each, dict | list)
        ]:
            depth += 1
            Budget().spend(depth=depth)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise DamagedError(f"{what} is not valid JSON: {reason}") from None
    return value

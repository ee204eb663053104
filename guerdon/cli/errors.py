"""Errors on the command line: a sentence where the user can mend it, a traceback where not."""

import dis
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

USAGE = 2  # the exit code of whatever was asked for wrongly
_FILES = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


class Group(TyperGroup):
    """All verbs, with the errors of each in one sentence.

    ``GUERDON_DEBUG=1`` in the environment shows every traceback.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs a verb, and ends the process with its exit code."""
        with plain_warnings():
            try:
                code = super().main(*args, **{**options, "standalone_mode": False})
            except Exception as error:
                sentence = sentence_of(error)
                if sentence is None or os.environ.get("GUERDON_DEBUG", "0") not in ("", "0"):
                    raise
                typer.echo(f"Error: {sentence}", err=True)
                code = USAGE
        sys.exit(code if isinstance(code, int) else 0)


def sentence_of(error: Exception) -> str | None:
    """What to tell the user about an error; None where a traceback tells more.

    Args:
        error: As it was caught.
    """
    if hasattr(error, "format_message"):  # typer's own, about options and arguments
        return _one_line(f"{error.format_message()}{_help_of(error)}")
    if isinstance(error, OSError) and error.strerror:
        message = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
    else:
        message = str(error)
    expected = isinstance(error, _FILES) or _is_guerdons(type(error).__module__)
    return _one_line(message) if message and (expected or _on_purpose(error)) else None


def _on_purpose(error: Exception) -> bool:
    """Whether a statement ``raise`` in guerdon is where the error comes from.

    The same classes come from bugs, too: from other packages, or from a line that failed.
    """
    trace = error.__traceback__
    if not isinstance(error, ValueError | RuntimeError | OSError) or trace is None:
        return False
    if isinstance(error, NotImplementedError):
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame
    operation = dis.opname[frame.f_code.co_code[trace.tb_lasti]]
    return operation == "RAISE_VARARGS" and _is_guerdons(frame.f_globals.get("__name__", ""))


def _is_guerdons(module: str) -> bool:
    return module.partition(".")[0] == "guerdon"


def _help_of(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f" (see `{context.command_path} --help`)" if context is not None else ""


def _one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Shows warnings as sentences, without the line of code that they come from."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"Warning: {_one_line(str(message))}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield

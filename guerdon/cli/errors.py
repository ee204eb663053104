"""Errors on the command line: a sentence if the user can fix it, else a traceback."""

import dis
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from guerdon import startup

USAGE = 2  # exit code of wrong usage


class Group(TyperGroup):
    """All verbs; expected errors are shown in one sentence.

    ``GUERDON_DEBUG=1`` in the environment shows every traceback.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a verb, and end the process with its exit code."""
        with plain_warnings():
            try:
                code = super().main(*args, **{**options, "standalone_mode": False})
            except Exception as error:
                if startup.interrupted():
                    raise
                sentence = sentence_of(error)
                if sentence is None or os.environ.get("GUERDON_DEBUG", "0") not in ("", "0"):
                    raise
                typer.echo(f"Error: {sentence}", err=True)
                code = USAGE
        sys.exit(code if isinstance(code, int) else 0)


def sentence_of(error: Exception) -> str | None:
    """Return the message of an expected error; None if a traceback says more."""
    if hasattr(error, "format_message"):  # of typer, about options and arguments
        context = getattr(error, "ctx", None)
        more = f" (see `{context.command_path} --help`)" if context is not None else ""
        return _one_line(f"{error.format_message()}{more}")
    message = str(error)
    if isinstance(error, OSError):  # about a file, wherever it comes from
        parts = (error.filename, error.strerror or message or type(error).__name__)
        message = ": ".join(str(part) for part in parts if part)
        if error.errno and error.filename is None and error.strerror == os.strerror(error.errno):
            message += " (GUERDON_DEBUG=1 shows where)"
    own = type(error).__module__.partition(".")[0] == "guerdon"
    expected = own or isinstance(error, OSError) or _is_raised_by_guerdon(error)
    return _one_line(message) if message and expected else None


def _is_raised_by_guerdon(error: Exception) -> bool:
    """Whether a ``raise`` in guerdon raised it; bugs raise the same classes elsewhere."""
    trace = error.__traceback__
    if not isinstance(error, ValueError | RuntimeError) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code, names = trace.tb_frame.f_code.co_code, trace.tb_frame.f_globals
    raised = dis.opname[code[trace.tb_lasti]] == "RAISE_VARARGS"
    own = names.get("__name__", "").partition(".")[0] == "guerdon"
    return raised and own and not isinstance(error, NotImplementedError)


def _one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show warnings as sentences, without the line of code that they come from."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"Warning: {_one_line(str(message))}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield

"""Runs code of documents as a reader would, with only the root of its imports renamed."""

import contextlib
import doctest
import io
import re
import textwrap
from typing import Any

ROOTS = {"ding": "di_engine", "tianshou": "tianshou", "rlinf": "rlinf", "nervex": "nervex"}


def renamed(text: str) -> str:
    """The code with ``guerdon.compat`` before the documents' packages."""
    for root, ours in ROOTS.items():
        text = re.sub(rf"\b(from|import) {root}\b", rf"\1 guerdon.compat.{ours}", text)
    return text


def run(text: str, **given: Any) -> dict[str, Any]:
    """The names that a snippet leaves behind, with those it was given."""
    names = {"__name__": "__main__", **given}
    exec(compile(renamed(textwrap.dedent(text)), "snippet", "exec"), names)
    return names


def run_session(text: str) -> dict[str, Any]:
    """The same for a session with ``>>>``; what it prints has to be what the document shows.

    The document's version stored numbers as floats: ``1.`` and ``1`` are the same here, as are
    ``True`` and ``1.``.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for example in doctest.DocTestParser().get_examples(renamed(text)):
        said = io.StringIO()
        mode = "single" if example.want else "exec"
        with contextlib.redirect_stdout(said):
            exec(compile(example.source, "session", mode), names)
        if example.want:
            got = said.getvalue()
            assert _plain(got) == _plain(example.want), f"{example.source}{got}{example.want}"
    return names


def _plain(text: str) -> str:
    text = re.sub(r"(?m)^\s*#.*$", "", text)
    text = text.replace("True", "1").replace("False", "0")
    return re.sub(r"\s+", "", re.sub(r"(\d)\.(?!\d)", r"\1", text))

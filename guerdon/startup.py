"""Ctrl-C while a command starts: it ends with exit code 130, without a traceback.

Python's own handler raises an error wherever the program is. In an import, that is often lost or
becomes another error. So until a command has something to remove, an interrupted import ends the
process; and an interrupt that was lost is raised again by `begin`.
"""

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""Exit code, as in a shell: 128 plus the number of the signal."""
_IMPORTING = "<frozen importlib._bootstrap>"
_asked = _begun = False


def install() -> None:
    """Install the handler, unless the process ignores Ctrl-C, as in the background of a shell."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def begin() -> None:
    """Raise an interrupt that was lost, before there is something to remove."""
    global _begun
    _begun = True
    if _asked:
        raise KeyboardInterrupt


def interrupted() -> bool:
    """Whether the user has interrupted the command."""
    return _asked


def _interrupt(_: int, frame: FrameType | None) -> None:
    global _asked
    _asked = True
    while not _begun and frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt

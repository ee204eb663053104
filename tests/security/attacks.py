"""Runs what may crash, hang or take all memory in a process of its own."""

import os
import resource
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guerdon.cli.errors import sentence_of

CPU_SECONDS, WALL_SECONDS = 10, 120
MEMORY = 1 << 30  # beyond what this process has


def outcome(function: Callable[[], Any]) -> str:
    """Return ``read``, or the sentence with which the command line would refuse it.

    A crash, a traceback, ten seconds of CPU or a gigabyte of memory are errors.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child has one thread and needs no more
        child = os.fork()
    if not child:
        warnings.simplefilter("ignore")
        _limit()
        try:
            function()
            said = "read"
        except Exception as error:
            sentence = sentence_of(error) or (isinstance(error, OSError) and str(error))
            said = sentence or f"TRACEBACK {error!r:.500}"
        os.write(writer, said[:4000].encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the process died with {code}"
    assert not said.startswith("TRACEBACK"), said
    return said


def _limit() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + CPU_SECONDS, int(used) + CPU_SECONDS))
    signal.alarm(WALL_SECONDS)  # waiting takes no CPU

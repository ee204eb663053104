"""Settings of the process: torch threads, memory and signals."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from guerdon import startup
from guerdon.training.display import Display

_STOPPING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt(3)
_MALLOC_OPTIONS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Set the number of torch threads; None leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory in the process: an update frees what the next one allocates.

    With glibc's defaults, `ppo` with 256 environments spends 6 % of its time on page faults. Does
    nothing on other systems, or where the user has set options of malloc.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _MALLOC_OPTIONS):
        return
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_TRIM_THRESHOLD, 256 << 20)


@contextmanager
def interrupts(tell: Callable[[], None] | None = None) -> Iterator[Callable[[], bool]]:
    """Make the first SIGINT, SIGTERM or SIGHUP a request to stop; the second is not changed.

    A signal that the process ignores, as under ``nohup``, stays ignored.

    Args:
        tell: Called by the handler of the signal; by default it writes a line to stderr.
    """
    startup.begin()
    asked = threading.Event()

    def ask(number: int, _: Any) -> None:
        asked.set()
        signal.signal(number, before[number])
        (tell or Display().interrupt)()

    in_main_thread = threading.current_thread() is threading.main_thread()  # others cannot set any
    handlers = {n: signal.getsignal(n) for n in _STOPPING if in_main_thread}
    before = {n: each for n, each in handlers.items() if each not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, ask)
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

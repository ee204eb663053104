"""Processes with one environment each, seen from the process that is in charge."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any

from guerdon.envs import worker
from guerdon.envs.ids import UnusableEnvironmentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection

_CLOSE_SECONDS = 2.0
_UNGUARDED = 86  # the exit code of a process that would start processes while it starts itself
_NO_GUARD = (
    "every process imports your script when it starts, and would make these environments again; "
    "put what the script does under `if __name__ == '__main__':`"
)


class WorkerDiedError(Exception):
    """A process ended, or its environment raised an exception; the text says what is known."""


class Worker:
    """One process and the pipe to it."""

    def __init__(self, build: tuple[Any, int, int]) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            os._exit(_UNGUARDED)  # not an exception, which would be shown for every process
        context = _context()
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        process = context.Process(
            target=worker.run, args=(theirs,), name=f"guerdon-env-{build[1]}", daemon=True
        )
        with _one_thread():
            try:
                process.start()
            except (EOFError, ConnectionError):  # the fork server ended, which imports it too
                raise WorkerDiedError(_NO_GUARD) from None
        self.process = process
        theirs.close()
        self.send("build", build)

    def send(self, command: str, argument: Any = None) -> None:
        """Gives a command; whoever is no longer there is noticed when its answer is read."""
        with contextlib.suppress(OSError):
            self.pipe.send((command, argument))

    def receive(self) -> tuple[str, Any]:
        """Reads an answer.

        Raises:
            WorkerDiedError: if there will be none.
            UnusableEnvironmentError: if the environment cannot be made as it was asked for.
        """
        try:
            kind, content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(_CLOSE_SECONDS)
            code = self.process.exitcode
            if code == _UNGUARDED:
                raise WorkerDiedError(_NO_GUARD) from None
            raise WorkerDiedError(f"its process ended with exit code {code}") from None
        if kind == "error":
            raise WorkerDiedError(content.rstrip())
        if kind == "refused":
            raise UnusableEnvironmentError(content)
        return kind, content

    def kill(self) -> None:
        """Ends the process at once."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


def close_workers(workers: Iterable[Worker]) -> None:
    """Lets environments close themselves for a moment, then ends their processes."""
    workers = list(workers)
    for one in workers:
        one.send("close")
    deadline = time.monotonic() + _CLOSE_SECONDS
    for one in workers:
        one.process.join(max(0.0, deadline - time.monotonic()))
        one.kill()


def _context() -> Any:
    """Never fork: threads (torch's, TensorBoard's) would leave locks behind in the child."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", worker.__name__])  # then a start takes milliseconds
    return context


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """For processes that start: libraries read these variables when they are loaded."""
    before = {name: os.environ.get(name) for name in worker.ONE_THREAD}
    os.environ.update(worker.ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

"""Processes with one environment each: the loop in the process, and its handle outside."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from multiprocessing import connection, parent_process, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from gymnasium.vector.utils import CloudpickleWrapper

from guerdon.envs.checks import FailedStepError, InvalidStepError
from guerdon.envs.ids import UnusableEnvironmentError
from guerdon.envs.vector import begin_episode, transition
from guerdon.extras import MissingExtraError

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
_CLOSE_SECONDS = 2.0
_UNGUARDED = 86  # exit code of a process that would start processes on import
_NO_GUARD = (
    "every process imports your script when it starts, and would make these environments again; "
    "put the script's code under `if __name__ == '__main__':`"
)


class WorkerDiedError(Exception):
    """Raised if a process ended or its environment failed; the text has the reason."""


class Worker:
    """A process and the pipe to it.

    Args:
        factory: An `EnvFactory`, `cloudpickled`.
        index: Index of the environment.
    """

    def __init__(self, factory: Any, index: int) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            os._exit(_UNGUARDED)  # an exception would be printed by every process
        self._index = index
        context = _context()
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process: Any = context.Process(
            target=run, args=(theirs,), name=f"guerdon-env-{index}", daemon=True
        )
        with _one_thread(), _without_interrupts():
            try:
                self.process.start()
            except (EOFError, ConnectionError):  # the fork server, which imports it too, ended
                raise WorkerDiedError(_NO_GUARD) from None
        theirs.close()
        self.send("build", (factory, index))

    def send(self, command: str, argument: Any = None) -> None:
        """Send a command; an ended process is noticed when its answer is read."""
        with contextlib.suppress(OSError):
            self.pipe.send((command, argument))

    def receive(self) -> Any:
        """Read an answer.

        Raises:
            WorkerDiedError: The process ended or its environment failed.
            UnusableEnvironmentError: The environment cannot be made with these arguments.
            InvalidStepError: The environment has not Gymnasium's interface.
        """
        try:
            kind, content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(_CLOSE_SECONDS)
            code = self.process.exitcode
            why = _NO_GUARD if code == _UNGUARDED else f"its process ended with exit code {code}"
            raise WorkerDiedError(why) from None
        if kind == "error":
            raise WorkerDiedError(content.rstrip())
        if kind == "refused":
            raise UnusableEnvironmentError(content)
        if kind == "invalid":
            raise InvalidStepError(content[0], self._index, content[1])
        return content

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


def cloudpickled(data: Any) -> Any:
    """Wrap data so that classes of notebooks and scripts can be pickled; ``fn`` is the data."""
    return CloudpickleWrapper[Any](data)


def close_workers(workers: Iterable[Worker]) -> None:
    """Wait briefly for environments to close, then end their processes."""
    workers = list(workers)
    for one in workers:
        one.send("close")
    deadline = time.monotonic() + _CLOSE_SECONDS
    for one in workers:
        one.process.join(max(0.0, deadline - time.monotonic()))
        one.kill()


def _context() -> Any:
    """Return a context that does not fork: children could inherit locked locks of threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])  # so that starting takes milliseconds
    return context


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Limit threads of new processes: libraries read these variables when loaded."""
    before = {name: os.environ[name] for name in _ONE_THREAD if name in os.environ}
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        for name in _ONE_THREAD:
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold back Ctrl-C: a new process inherits that, and prints no traceback while it starts."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # which would let Ctrl-C through again when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the process


def run(pipe: Connection) -> None:
    """Serve one environment until the main process sends ``close`` or ends.

    Receives (command, argument) and answers with (kind, content): ``build`` (factory, index) is
    answered with the spaces, ``reset`` (seed) and ``step`` (action) with a `Transition`. An
    exception is answered with ``error``, with ``refused`` if the environment cannot be made with
    these arguments, or with ``invalid`` for an `InvalidStepError` that another process would raise,
    too, and ends the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # and signals that a scheduler sends to the group
    os.environ.update(_ONE_THREAD)  # for imports of the environment
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _serve(pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    except (UnusableEnvironmentError, MissingExtraError) as error:
        pipe.send(("refused", str(error)))
    except FailedStepError as error:
        pipe.send(("error", error.reason))
    except InvalidStepError as error:
        pipe.send(("invalid", (error.reason, error.method)))
    except BaseException:  # also SystemExit: report every failure
        with contextlib.suppress(OSError):
            pipe.send(("error", traceback.format_exc()))


def _end_with_parent() -> None:
    """End this process when its parent dies, even if the environment hangs."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _serve(pipe: Connection) -> None:
    _, (factory, index) = pipe.recv()
    env = factory.fn.build(index)
    spaces = env.observation_space, env.action_space
    pipe.send(("spaces", cloudpickled(spaces)))
    try:
        while True:
            command, argument = pipe.recv()
            if command == "step":
                pipe.send(("row", transition(env, argument, index)))
            elif command == "reset":
                pipe.send(("row", begin_episode(env, index, argument)))
            else:
                break
    finally:
        env.close()

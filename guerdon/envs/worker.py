"""Processes with one environment each: the handle outside, and the loop in the process.

A vector has a server: a new Python that does not run the script of its parent, and forks a worker
for each environment. Factories and answers are pickled, over pipes between parent and child only.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing import Pipe, connection, reduction, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import PicklingError
from typing import Any, NoReturn

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector.utils import CloudpickleWrapper

from guerdon.envs.checks import FailedStepError, InvalidStepError
from guerdon.envs.factory import EnvFactory
from guerdon.envs.ids import UnusableEnvironmentError
from guerdon.envs.vector import Transition, begin_episode, transition
from guerdon.extras import MissingExtraError

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
_CLOSE_SECONDS = 2.0


class WorkerDiedError(Exception):
    """Raised if a process ended or its environment failed; the text has the reason."""


class WorkerServer:
    """The process that forks the workers of a vector.

    It gets the working directory, environment variables and `sys.path` of this process, but not its
    group: Ctrl-C and signals of a scheduler to the group are for this process.

    Args:
        factory: Makes each environment.
    """

    def __init__(self, factory: EnvFactory) -> None:
        if not hasattr(os, "fork"):
            raise UnusableEnvironmentError(
                f"environments in processes need Linux or macOS: use the backend 'base' for "
                f"{factory.name!r}"
            )
        self.factory = _pickled(factory)
        self._control, theirs = Pipe()
        path = [str(folder) for folder in sys.path]
        program = f"import sys; sys.path[:] = {path!r}; from guerdon.envs import worker; "
        with theirs:
            self._process = subprocess.Popen(
                [
                    spawn.get_executable(),
                    *(f"-W{option}" for option in sys.warnoptions),
                    *("-c", f"{program}worker.main({theirs.fileno()})"),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **_ONE_THREAD},
                process_group=0,
            )
        with contextlib.suppress(OSError):  # it ended: workers will say so
            self._control.send_bytes(self.factory)

    def fork(self, *pipes: Connection) -> None:
        """Fork a worker with these pipes, and close them here."""
        for pipe in pipes:
            with contextlib.suppress(OSError), pipe:
                reduction.send_handle(self._control, pipe.fileno(), self._process.pid)

    def close(self) -> None:
        """End the process; end the workers before."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._control.close()


class Worker:
    """A process and the pipe to it.

    Args:
        server: Forks the process.
        index: Index of the environment.
    """

    def __init__(self, server: WorkerServer, index: int) -> None:
        self._index = index
        self._pid: int | None = None
        self._exit_code: int | None = None
        self.pipe, theirs = Pipe()
        self._status, status = Pipe(duplex=False)
        server.fork(theirs, status)
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(server.factory)
        self.send("build", index)

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
            code = self.exit_code(_CLOSE_SECONDS)
            raise WorkerDiedError(f"its process ended with exit code {code}") from None
        if kind == "error":
            raise WorkerDiedError(content.rstrip())
        if kind == "refused":
            raise UnusableEnvironmentError(content)
        if kind == "invalid":
            raise InvalidStepError(content[0], self._index, content[1])
        return content.fn if isinstance(content, CloudpickleWrapper) else content

    def pid(self, seconds: float | None = None) -> int | None:
        """Return the number of the process; None if it has not started within this time."""
        if self._pid is None:
            self._pid = self._read_status(seconds)
        return self._pid

    def exit_code(self, seconds: float = 0.0) -> int | None:
        """Return the exit code, negative for a signal; None if it has not ended by then."""
        if self._exit_code is None and self.pid(seconds) is not None:
            self._exit_code = self._read_status(seconds)
        return self._exit_code

    def _read_status(self, seconds: float | None) -> int | None:
        with contextlib.suppress(EOFError, OSError):
            if self._status.poll(seconds):
                return int(self._status.recv())
        return None

    def kill(self) -> None:
        """End the process at once."""
        if self.exit_code() is None and (pid := self.pid(0.0)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.exit_code(_CLOSE_SECONDS)
        self.pipe.close()
        self._status.close()


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
        one.exit_code(max(0.0, deadline - time.monotonic()))
        one.kill()


def _pickled(factory: EnvFactory) -> bytes:
    """Pickle a factory, with the environments that are registered in this process."""
    registered = {name: _without_main(spec) for name, spec in gymnasium.registry.items()}
    if isinstance(factory.source, EnvSpec):
        factory = replace(factory, source=_without_main(factory.source))
    try:
        return bytes(reduction.ForkingPickler.dumps(cloudpickled((registered, factory))))
    except Exception as error:
        raise UnusableEnvironmentError(
            f"{factory.name!r} cannot be sent to other processes ({type(error).__name__}: {error}):"
            " let it make what cannot be pickled itself, or use the backend 'base'"
        ) from error


def _without_main(spec: EnvSpec) -> EnvSpec:
    """Replace the name of a class of the script, which other processes do not run, by the class."""
    if not str(spec.entry_point).startswith("__main__:"):
        return spec
    creator: Any = load_env_creator(str(spec.entry_point))
    return replace(spec, entry_point=creator)


# --- in the server


def main(descriptor: int) -> None:
    """Fork workers for the parent, at the other end of a connection, until it ends.

    A fork of this process imports the modules of the environments, and forks the workers. If they
    start threads, which forks lack, this process does, and every worker imports them itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    control, ended = Connection(descriptor), _ended_children()
    if (pid := os.fork()) == 0:
        ended = _ended_children()
        with contextlib.suppress(Exception):  # the workers answer with it
            control.recv()
        if _n_threads() == 1:
            _fork_workers(control, ended)
        os._exit(_n_threads() > 1)
    if _exit_status(pid, control, ended) != 0:
        _fork_workers(control, ended)


def _ended_children() -> int:
    """Return a descriptor that can be read when children of this process have ended."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _n_threads() -> int:
    tasks = Path("/proc/self/task")  # with those that are not Python's
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _exit_status(pid: int, control: Connection, ended: int) -> int:
    """Wait until a child ends; if the parent ends before, end both."""
    poller = select.poll()
    poller.register(control, 0)  # its end only
    poller.register(ended)
    while True:
        events = dict(poller.poll())
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if control.fileno() in events:
            os.killpg(0, signal.SIGKILL)
        os.read(ended, 1)


def _fork_workers(control: Connection, ended: int) -> None:
    """Fork a worker for each two pipes that arrive: for answers, and for its number and end."""
    statuses: dict[int, Connection] = {}
    while True:
        ready = connection.wait([control, ended])
        if ended in ready:
            os.read(ended, 1)
            _report_ends(statuses)
        if control not in ready:
            continue
        try:
            pipe, status = (Connection(reduction.recv_handle(control)) for _ in range(2))
        except (EOFError, OSError):
            return
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (control, status, *statuses.values()):
                other.close()
            run(pipe)
        pipe.close()
        statuses[pid] = status
        _tell(status, pid)


def _report_ends(statuses: dict[int, Connection]) -> None:
    for pid in list(statuses):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            with statuses.pop(pid) as pipe:
                _tell(pipe, os.waitstatus_to_exitcode(status))


def _tell(pipe: Connection, content: Any) -> None:
    with contextlib.suppress(OSError):  # the parent does not wait for it any more
        pipe.send(content)


# --- in the worker


def run(pipe: Connection) -> NoReturn:
    """Serve one environment until the main process sends ``close`` or ends.

    Receives a factory, and (command, argument), and answers with (kind, content): ``build`` (index)
    is answered with the spaces, ``reset`` (seed) and ``step`` (action) with a `Transition`. An
    exception is answered with ``error``, with ``refused`` if the environment cannot be made with
    these arguments, or with ``invalid`` for an `InvalidStepError` that another process would raise,
    too, and ends the process.
    """
    os.setpgrp()  # signals that a scheduler sends to the group are for the main process
    threading.Thread(target=_end_with_parent, args=(pipe.fileno(),), daemon=True).start()
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
        _tell(pipe, ("error", traceback.format_exc()))
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)


def _end_with_parent(pipe: int) -> None:
    """End this process when its parent dies, even if the environment hangs."""
    poller = select.poll()
    poller.register(pipe, 0)  # its end only
    poller.poll()
    os._exit(1)


def _serve(pipe: Connection) -> None:
    registered, factory = pipe.recv().fn
    gymnasium.registry.update(registered)
    _, index = pipe.recv()
    env = factory.build(index)
    pipe.send(("spaces", cloudpickled([env.observation_space, env.action_space])))
    try:
        while True:
            command, argument = pipe.recv()
            if command == "step":
                _answer(pipe, transition(env, argument, index))
            elif command == "reset":
                _answer(pipe, begin_episode(env, index, argument))
            else:
                break
    finally:
        env.close()


def _answer(pipe: Connection, row: Transition) -> None:
    try:
        pipe.send(("row", row))
    except (AttributeError, TypeError, PicklingError):  # an info has a class of the script
        pipe.send(("row", cloudpickled(row)))

"""Processes with one environment each: the loop in the process, and its handle outside."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing import connection, parent_process, reduction, resource_tracker, spawn
from multiprocessing.connection import Connection
from pickle import PicklingError
from typing import Any

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
_STARTING = threading.Lock()  # a start changes settings of the whole process for a moment


class WorkerDiedError(Exception):
    """Raised if a process ended or its environment failed; the text has the reason."""


class Worker:
    """A process and the pipe to it.

    Args:
        factory: An `EnvFactory`, `pickled`.
        index: Index of the environment.
    """

    def __init__(self, factory: bytes, index: int) -> None:
        self._index = index
        context = _context()
        self.pipe: Connection
        self.pipe, theirs = context.Pipe()
        self.process: Any = context.Process(
            target=run, args=(theirs,), name=f"guerdon-env-{index}", daemon=True
        )
        with _STARTING, _one_thread(), _without_interrupts(), _without_script():
            self.process.start()
        theirs.close()
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(factory)
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
            self.process.join(_CLOSE_SECONDS)
            code = self.process.exitcode
            raise WorkerDiedError(f"its process ended with exit code {code}") from None
        if kind == "error":
            raise WorkerDiedError(content.rstrip())
        if kind == "refused":
            raise UnusableEnvironmentError(content)
        if kind == "invalid":
            raise InvalidStepError(content[0], self._index, content[1])
        return content.fn if isinstance(content, CloudpickleWrapper) else content

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


def pickled(factory: EnvFactory) -> bytes:
    """Pickle a factory and the registered environments for processes that do not run the script.

    Registered environments that cannot be pickled are left out, unless the factory makes them.
    """
    if isinstance(factory.source, EnvSpec):
        factory = replace(factory, source=_by_value(factory.source))
    registered = {}
    for name, spec in [*gymnasium.registry.items()]:  # threads may register more
        with contextlib.suppress(Exception):  # whatever a user's class raises
            by_value = _by_value(spec)
            _dumps(by_value)
            registered[name] = by_value
    try:
        return _dumps((registered, factory))
    except Exception as error:
        raise UnusableEnvironmentError(
            f"{factory.name!r} cannot be sent to other processes ({type(error).__name__}: {error}):"
            " let it make what cannot be pickled itself, or use the backend 'base'"
        ) from error


def _dumps(data: Any) -> bytes:
    return bytes(reduction.ForkingPickler.dumps(cloudpickled(data)))


def _by_value(spec: EnvSpec) -> EnvSpec:
    """Replace the name of a class of the script by the class."""
    if not str(spec.entry_point).startswith("__main__:"):
        return spec
    creator: Any = load_env_creator(str(spec.entry_point))
    return replace(spec, entry_point=creator)


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
    context.set_forkserver_preload([__name__])  # so that starting takes milliseconds
    return context


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Do not let processes that this thread starts run the script.

    They need nothing of it: what they get of it is pickled by value.
    """
    original, thread = spawn.get_preparation_data, threading.get_ident()

    def without_script(name: str) -> dict[str, Any]:
        data = original(name)
        if threading.get_ident() == thread:
            data = {key: data[key] for key in data if not key.startswith("init_main_from")}
        return data

    spawn.get_preparation_data = without_script
    try:
        yield
    finally:
        spawn.get_preparation_data = original


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

    Receives a factory, then (command, argument), and answers with (kind, content): ``build``
    (index) is answered with the spaces, ``reset`` (seed) and ``step`` (action) with a `Transition`.
    An exception is answered with ``error``, with ``refused`` if the environment cannot be made with
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

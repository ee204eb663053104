"""Workers: objects in other processes, which are restarted if they fail."""

import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from guerdon.config.imports import import_all
from guerdon.config.registry import registered, registry_of
from guerdon.envs.worker import WorkerDiedError, cloudpickled
from guerdon.parallel import cluster
from guerdon.parallel.logs import worker_logger
from guerdon.training.display import WorkerRow

_log = logging.getLogger(__name__)
_LINES = 20  # of what a process that died wrote last
Failures = (RayError,)
_STATES = {
    "collect": "collecting",
    "play": "evaluating",
    "annotate": "scoring",
    "scores": "scoring",
    "run": "learning",
    "learn": "learning",
}
"""What a worker does, by the method that is called."""


@ray.remote(max_restarts=0, max_task_retries=0)
class Host:
    """A process with one object."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._made: Any = None

    def pid(self) -> int:
        """Return the number of the process."""
        return os.getpid()

    def errors(self) -> str:
        """Return the file that Ray writes the standard error of the process to."""
        return str(Path("/proc/self/fd/2").resolve())

    def make(self, imports: list[str], given: Any, *args: Any) -> None:
        """Make the object.

        Args:
            imports: See `GuerdonConfig.imports`.
            given: Classes registered outside guerdon, and what makes the object, `cloudpickled`.
            *args: Arguments of the latter.
        """
        import_all(imports)
        classes, make = given.fn
        for (kind, name), cls in classes.items():
            registry_of(kind).register(name, cls, override=True)
        self._made = make(*args)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the object."""
        return getattr(self._made, method)(*args)


class WorkerError(RuntimeError):
    """A worker failed more often than the run allows."""


class Restarts:
    """Counts the restarts of all workers of a run, up to a limit.

    Args:
        limit: The limit.
        wait_seconds: Seconds to wait for the resources of a worker that is restarted.
    """

    def __init__(self, limit: int, wait_seconds: float = math.inf) -> None:
        self.limit, self.wait_seconds = limit, wait_seconds
        self.number = 0
        self.changed: Callable[[], object] = lambda: None
        """Called when workers do something else."""
        self._first: tuple[str, BaseException] | None = None

    def count(self, name: str, error: BaseException) -> None:
        """Count a restart, or raise an error if there were too many."""
        self._first = self._first or (name, error)
        if self.number >= self.limit:
            first, cause = self._first
            raise WorkerError(
                f"{name} failed, and 'runtime.max_restarts' is {self.limit}; first failure: "
                f"{first}: {reason_of(cause)}"
            ) from cause  # with its traceback
        self.number += 1
        _log.warning("restarting %s: %s", name, full_text(error))


class Worker:
    """Handle of an object in another process.

    Args:
        role: Role, such as ``collector``.
        number: Number of the worker among those of its role.
        make: Makes the object from a number and the number of earlier starts.
        imports: See `GuerdonConfig.imports`.
        options: Options of Ray for the process.
        restarts: Counts the restarts of all workers.
    """

    def __init__(
        self,
        role: str,
        number: int,
        make: Callable[..., Any],
        imports: list[str],
        options: dict[str, Any],
        restarts: Restarts,
    ) -> None:
        self.role, self.number, self._make = role, number, make
        self.name = f"{role} {number}"
        self.imports, self.options, self.restarts = imports, options, restarts
        self.log = worker_logger(role, number)
        self.starts = self.failures = self.version = 0
        self.state = "idle"
        self._host: Any = None
        self._errors: Any = None

    def row(self) -> WorkerRow:
        """Return what the display shows."""
        return self.name, self.state, self.failures, self.version

    def start(self) -> Any:
        """Start the process, and begin to make the object; returns Ray's reference."""
        self._host = Host.options(**self.options).remote()  # type: ignore[attr-defined]
        self._errors = self._host.errors.remote()
        given = cloudpickled((registered(), self._make))
        made = self._host.make.remote(self.imports, given, self.number, self.starts)
        self.starts += 1
        return made

    def send(self, method: str, *args: Any) -> Any:
        """Begin to call a method; returns Ray's reference."""
        self.state = _STATES.get(method, self.state)
        return self._host.call.remote(method, *args)

    def call(self, method: str, *args: Any, timeout: float) -> Any:
        """Call a method, and return the result."""
        return ray.get(self.send(method, *args), timeout=timeout)

    def pid(self) -> int:
        """Return the number of the process."""
        return int(ray.get(self._host.pid.remote()))

    def restart(self, error: BaseException) -> Any:
        """Replace the process after a failure; see `start`."""
        if isinstance(error, RayActorError):
            error = WorkerDiedError(self._newest_output())
        self.log.info("%s", full_text(error))
        self.restarts.count(self.name, error)
        self.failures += 1
        self.state = "restarting"
        self.restarts.changed()
        self.stop()
        return self.start()

    def _newest_output(self) -> str:
        """Return what a process that died wrote last, if it was on this machine."""
        lines: list[str] = []
        with suppress(*Failures, OSError):
            text = Path(ray.get(self._errors, timeout=1)).read_text(errors="replace")
            lines = [line for line in text.splitlines() if line and line[0] != ":"]  # Ray's marks
        fatal = [i for i, line in enumerate(lines) if line.startswith("Fatal Python error")]
        shown = lines[fatal[-1] :][:_LINES] if fatal else lines[-_LINES:]
        return "\n".join(["its process died" + ":" * bool(shown), *shown])

    def overdue(self) -> WorkerError:
        """Return the error of a worker that has not started again in time."""
        return WorkerError(
            f"{self.name} has not started again within 'runtime.wait_seconds', "
            f"{self.restarts.wait_seconds:g} s, on {cluster.nodes()}: add nodes, and continue with "
            "--resume"
        )

    def stop(self) -> None:
        """End the process."""
        if self._host is not None:
            ray.kill(self._host)
            self._host = None


def start_all(workers: Sequence[Worker]) -> None:
    """Start workers at the same time; raise the error of the first that cannot be made.

    A report says every 30 seconds which of them have not joined.
    """
    names = {worker.start(): worker.name for worker in workers}
    waiting = list(names)
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=cluster.REPORT)
        try:
            ray.get(ready)
        except Failures as error:
            raise cause_of(error) from error
        if waiting:
            report(names[each] for each in waiting)


def report(names: Iterable[str]) -> None:
    """Name the workers that have not joined."""
    late = cluster.in_words(names)
    _log.warning("waiting for %s to start, on %s", late, cluster.nodes())


def call_all(
    workers: Sequence[Worker],
    method: str,
    args: Sequence[tuple[Any, ...]],
    timeout: float,
    lost: Callable[[int], None] = lambda _: None,
) -> list[Any]:
    """Call a method of all workers; those that fail are restarted, and called again.

    Args:
        workers: The workers.
        method: The method.
        args: Arguments for each of them.
        timeout: Seconds after which a worker that does not answer has failed.
        lost: Called with the number of a worker that failed.
    """
    found: list[Any] = [None] * len(workers)
    waiting = {workers[i].send(method, *given): i for i, given in enumerate(args)}
    changed = workers[0].restarts.changed
    changed()
    while waiting:
        ready, others = ray.wait(list(waiting), timeout=timeout)
        for reference in ready or others:
            i = waiting.pop(reference)
            try:
                found[i] = ray.get(reference, timeout=None if ready else 0)
            except Failures as error:
                lost(i)
                restart(workers[i], error)
                waiting[workers[i].send(method, *args[i])] = i
            else:
                workers[i].state = "idle"
            changed()
    return found


def restart(worker: Worker, error: BaseException) -> None:
    """Restart a worker until it starts, has failed too often, or lacks resources for too long."""
    made, limit = worker.restart(error), worker.restarts.wait_seconds
    deadline = time.monotonic() + limit
    while True:
        try:
            ray.get(made, timeout=min(cluster.REPORT, limit))
        except GetTimeoutError:
            if time.monotonic() >= deadline:
                raise worker.overdue() from error
            report([worker.name])
        except Failures as again:
            made = worker.restart(again)
        else:
            return


def process_options(bundle: dict[str, float], group: PlacementGroup, index: int) -> dict[str, Any]:
    """Return Ray's options for a process with one bundle of a placement group."""
    return {
        "num_cpus": bundle.get("CPU", 0),
        "num_gpus": bundle.get("GPU", 0),
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=index
        ),
    }


def cause_of(error: BaseException) -> BaseException:
    """Return what was raised in a worker."""
    return error.cause if isinstance(error, RayTaskError) and error.cause else error


def reason_of(error: BaseException) -> str:
    """Return in a line why a worker failed."""
    if isinstance(error, GetTimeoutError):
        return "it did not answer within 'runtime.timeout' seconds"
    cause = cause_of(error)
    if isinstance(cause, RayActorError):
        return "its process died"
    if isinstance(cause, WorkerDiedError):
        return " ".join(str(cause).splitlines()[:2])
    return f"{type(cause).__name__}: {cause}"


def full_text(error: BaseException) -> str:
    """Return the traceback of what was raised in a worker, or else why it failed."""
    if isinstance(error, RayTaskError):
        return re.sub(r"\x1b\[\d+m", "", str(error)).rstrip()  # without colours
    return str(error) if isinstance(error, WorkerDiedError) else reason_of(error)

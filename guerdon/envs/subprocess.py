"""`SubprocessVectorEnv`: environments in their own processes, restarted when they fail."""

import logging
import selectors
import time
import weakref
from typing import Any

import numpy as np

from guerdon.envs.factory import EnvFactory
from guerdon.envs.ids import UnusableEnvironmentError
from guerdon.envs.rows import unstack
from guerdon.envs.vector import Step, Transition, VectorEnv, batched, check_spaces, to_seed
from guerdon.envs.worker import Worker, WorkerDiedError, close_workers, pickled

_log = logging.getLogger(__name__)

_START_SECONDS = 120.0


class EnvironmentFailedError(RuntimeError):
    """Raised if environments failed more often than allowed."""


class SubprocessVectorEnv(VectorEnv):
    """The backends ``subprocess`` and ``async_subprocess``.

    A process that dies, raises an error or hangs is replaced by a new one with another seed; its
    open episode is reported in `Step.broken`.

    Args:
        factory: Makes each environment.
        n_envs: Number of environments.
        synchronous: Whether all environments step together. Otherwise a step starts some of them,
            and returns when any `wait_num` are ready.
        timeout: Seconds after which an unresponsive environment counts as hung.
        max_restarts: Restarts, over all environments, before `EnvironmentFailedError`.
        wait_num: Number of environments to wait for, if not synchronous.
    """

    def __init__(
        self,
        factory: EnvFactory,
        n_envs: int,
        *,
        synchronous: bool = True,
        timeout: float = 60.0,
        max_restarts: int = 10,
        wait_num: int = 1,
    ) -> None:
        self.n_envs = n_envs
        self.spec_id = factory.name
        self.synchronous = synchronous
        self.restarts = 0
        self._factory = factory
        self._pickled = pickled(factory)
        self._timeout = timeout
        self._max_restarts = max_restarts
        self._wait_num = wait_num
        self._sequences = np.random.SeedSequence().spawn(n_envs)
        self._pending: dict[int, float] = {}  # deadlines of pending answers
        self._restarted: set[int] = set()  # restarts not yet reported
        self._ready: list[int] = []  # environments of the last Step
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, Worker] = {}
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, self._selector)
        try:
            self._start_all()
        except WorkerDiedError as error:
            self.close()
            raise EnvironmentFailedError(f"{self.spec_id!r} could not be made: {error}") from None
        except BaseException:
            self.close()
            raise

    # --- processes

    def _start_all(self) -> None:
        spaces: dict[int, Any] = {}
        for i in range(self.n_envs):
            self._start(i)
        while self._pending:
            for i in self._wait():
                spaces[i] = tuple(self._workers[i].receive())
                del self._pending[i]
            if self._overdue():
                raise WorkerDiedError(f"it took longer than {_START_SECONDS:.0f} s")
        check_spaces([spaces[i] for i in range(self.n_envs)])
        self.observation_space, self.action_space = spaces[0]

    def _start(self, i: int) -> None:
        self._workers[i] = one = Worker(self._pickled, i)
        self._selector.register(one.pipe, selectors.EVENT_READ, i)
        self._pending[i] = time.monotonic() + _START_SECONDS + self._timeout

    def _restart(self, i: int, why: str) -> None:
        """Replace the process of a failed environment, if restarts are left."""
        self._selector.unregister(self._workers[i].pipe)
        self._workers.pop(i).kill()
        self.restarts += 1
        if self.restarts > self._max_restarts:
            self.close()
            raise EnvironmentFailedError(
                f"environment {i} of {self.spec_id!r} failed, and all {self._max_restarts} "
                f"restarts are used up (env.max_restarts); last error: {why}"
            )
        *trace, last = why.splitlines()
        more = "\n".join(["", *trace, last]) if trace else ""
        text = "environment %d of %r failed and is restarted; its episode is lost: %s%s"
        _log.warning(text, i, self.spec_id, last, more)
        self._restarted.add(i)
        self._start(i)
        self._workers[i].send("reset", to_seed(self._sequences[i].spawn(1)[0]))

    # --- answers

    def _send(self, i: int, command: str, argument: Any) -> None:
        self._workers[i].send(command, argument)
        self._pending[i] = time.monotonic() + self._timeout

    def _wait(self) -> list[int]:
        """Wait for an answer or the first deadline."""
        left = max(0.0, min(self._pending.values()) - time.monotonic())
        return [key.data for key, _ in self._selector.select(left)]

    def _overdue(self) -> list[int]:
        now = time.monotonic()
        return [i for i, deadline in self._pending.items() if deadline < now]

    def _gather(self, wanted: int) -> dict[int, Transition]:
        """Wait for `wanted` environments; return all that are ready by then, in order."""
        rows: dict[int, Transition] = {}
        while len(rows) < wanted:
            ready = self._wait()
            for i in ready:
                try:
                    content = self._workers[i].receive()
                except (WorkerDiedError, UnusableEnvironmentError) as error:
                    rows.pop(i, None)  # it may have died right after a valid answer
                    self._restart(i, str(error))
                    continue
                if isinstance(content, tuple):  # not a list, the spaces of a restarted one
                    del self._pending[i]
                    rows[i] = content
            for i in self._overdue():
                if i not in ready:
                    self._restart(i, f"it gave no answer within {self._timeout:g} s (env.timeout)")
        return dict(sorted(rows.items()))

    # --- the interface

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise RuntimeError(f"the environments of {self.spec_id!r} are closed: make new ones")

    def reset(self, seed: int | None = None) -> Any:
        """Start a new episode in every environment; see `VectorEnv.reset`."""
        self._check_open()
        while self._pending:  # discard results of running steps
            self._gather(1)
        if seed is not None:
            self._sequences = np.random.SeedSequence(seed).spawn(self.n_envs)
        for i, one in enumerate(self._seeds(seed)):
            self._send(i, "reset", one)
        rows = self._gather(self.n_envs)
        self._restarted.clear()
        self._ready = list(rows)
        return batched(self.observation_space, list(rows.values()), self._ready, "reset").obs

    def step(self, act: Any, env_ids: np.ndarray | None = None) -> Step:
        """Step some environments, and return those that are ready.

        Args:
            act: One action for each of `env_ids`.
            env_ids: Environments to step; None for those of the last `Step`, or all after `reset`.
        """
        self._check_open()
        if self.synchronous:
            self._check_ids(env_ids)
        ids = self._ready if env_ids is None else [int(i) for i in env_ids]
        busy = self._pending.keys() & set(ids) - self._restarted
        if busy:
            raise ValueError(f"environments {sorted(busy)} are still at their last step")
        for i, action in zip(ids, unstack(self.action_space, act, len(ids)), strict=True):
            if i not in self._restarted:  # otherwise it is being reset
                self._send(i, "step", action)
        wanted = self.n_envs if self.synchronous else min(self._wait_num, len(self._pending))
        rows = self._gather(wanted)
        self._ready = list(rows)
        step = batched(self.observation_space, list(rows.values()), self._ready)
        if not self.synchronous:
            step = step._replace(env_ids=np.array(self._ready, np.int64))
        broken = sorted(self._restarted.intersection(rows))
        if broken:
            self._restarted.difference_update(broken)
            step = step._replace(dummy=np.isin(self._ready, broken), broken=np.array(broken))
        return step

    def example(self) -> Any:
        """Return an environment like the first, made in this process."""
        return self._factory.build(0)

    def render(self) -> Any:
        """Raise an error: frames are not sent between processes."""
        raise NotImplementedError("environments in processes do not render: use backend 'base'")

    def close(self) -> None:
        """Close all environments and end their processes."""
        self._finalizer()


def _shut_down(workers: dict[int, Worker], selector: selectors.BaseSelector) -> None:
    close_workers(workers.values())
    workers.clear()
    selector.close()

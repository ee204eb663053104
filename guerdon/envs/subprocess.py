"""`SubprocessVectorEnv`: environments in processes of their own, restarted when they fail."""

from __future__ import annotations

import logging
import selectors
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from guerdon.envs.memory import SharedRows, is_shareable, read_rows
from guerdon.envs.processes import Worker, WorkerDiedError, close_workers
from guerdon.envs.rows import batch_info, replaced, stack, unstack
from guerdon.envs.seeding import first_seed
from guerdon.envs.vector import Step, VectorEnv, check_all, check_spaces
from guerdon.envs.worker import cloudpickled

if TYPE_CHECKING:
    from guerdon.envs.recipe import Recipe

_log = logging.getLogger(__name__)

_START_SECONDS = 120.0


class EnvironmentFailedError(RuntimeError):
    """Environments failed more often than is allowed."""


class _Row(NamedTuple):
    rew: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    obs_next: Any  # None when it lies in shared memory
    obs: Any


class SubprocessVectorEnv(VectorEnv):
    """The backends ``subprocess`` and ``async_subprocess``.

    A process that dies, raises or hangs is replaced by a new one with a seed of its own; its open
    episode is reported in `Step.broken`.

    Args:
        recipe: How to make each environment.
        n_envs: How many.
        synchronous: Whether all step together. Otherwise a step is for some of them, and returns
            when some are ready, maybe others.
        timeout: Seconds to wait for an answer before an environment counts as hung.
        max_restarts: Restarts, over all environments, before `EnvironmentFailedError`.
        wait_num: How many environments have to be ready, when they do not step together.
    """

    def __init__(
        self,
        recipe: Recipe,
        n_envs: int,
        *,
        synchronous: bool = True,
        timeout: float = 60.0,
        max_restarts: int = 10,
        wait_num: int = 1,
    ) -> None:
        self.n_envs = n_envs
        self.spec_id = recipe.name
        self.synchronous = synchronous
        self.restarts = 0
        self._recipe = cloudpickled(recipe)
        self._timeout = timeout
        self._max_restarts = max_restarts
        self._wait_num = wait_num
        self._sequences = np.random.SeedSequence().spawn(n_envs)
        self._pending: dict[int, float] = {}  # who has to answer, and until when
        self._restarted: set[int] = set()
        self._ready: list[int] = []  # whom the last Step was for
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, Worker] = {}
        self._memory: list[SharedRows] = []  # one, or none
        self._finalizer = weakref.finalize(
            self, _shut_down, self._workers, self._memory, self._selector
        )
        self._start_all()

    # --- processes

    def _start_all(self) -> None:
        spaces: dict[int, Any] = {}
        try:
            for i in range(self.n_envs):
                self._start(i)
            while self._pending:
                for i in self._wait():
                    spaces[i] = self._workers[i].receive()[1].fn
                    del self._pending[i]
                if self._overdue():
                    raise WorkerDiedError(f"it took longer than {_START_SECONDS:.0f} s")
            check_spaces([spaces[i] for i in range(self.n_envs)])
        except WorkerDiedError as error:
            self.close()
            raise EnvironmentFailedError(f"{self.spec_id!r} could not be made: {error}") from None
        except BaseException:
            self.close()
            raise
        self.observation_space, self.action_space = spaces[0]
        if is_shareable(self.observation_space):
            self._memory.append(SharedRows(self.observation_space, self.n_envs))
            for one in self._workers.values():
                one.send("memory", self._memory[0].name)

    def _start(self, i: int) -> None:
        self._workers[i] = one = Worker((self._recipe, i, self.n_envs))
        self._selector.register(one.pipe, selectors.EVENT_READ, i)
        self._pending[i] = time.monotonic() + _START_SECONDS + self._timeout

    def _restart(self, i: int, why: str) -> None:
        """Puts a new process in the place of one that failed, if that is still allowed."""
        self._selector.unregister(self._workers[i].pipe)
        self._workers.pop(i).kill()
        self.restarts += 1
        if self.restarts > self._max_restarts:
            self.close()
            raise EnvironmentFailedError(
                f"environment {i} of {self.spec_id!r} failed, and all {self._max_restarts} "
                f"restarts are used up (env.max_restarts); what happened last: {why}"
            )
        _log.warning("environment %d is restarted, its episode is lost: %s", i, why)
        self._restarted.add(i)
        self._start(i)
        if self._memory:
            self._workers[i].send("memory", self._memory[0].name)
        self._workers[i].send("reset", first_seed(self._sequences[i].spawn(1)[0]))

    # --- answers

    def _send(self, i: int, command: str, argument: Any) -> None:
        self._workers[i].send(command, argument)
        self._pending[i] = time.monotonic() + self._timeout

    def _wait(self) -> list[int]:
        """Waits until there is an answer or the first of those who have to answer is overdue."""
        left = max(0.0, min(self._pending.values()) - time.monotonic())
        return [key.data for key, _ in self._selector.select(left)]

    def _overdue(self) -> list[int]:
        now = time.monotonic()
        return [i for i, deadline in self._pending.items() if deadline < now]

    def _gather(self, wanted: int) -> dict[int, _Row]:
        """Waits for so many environments, and takes all that are ready by then."""
        rows: dict[int, _Row] = {}
        while len(rows) < wanted:
            ready = self._wait()
            for i in ready:
                try:
                    kind, content = self._workers[i].receive()
                except WorkerDiedError as error:
                    rows.pop(i, None)  # it may have died right after a good answer
                    self._restart(i, str(error))
                    continue
                if kind != "spaces":  # those of a restarted one are known
                    del self._pending[i]
                    rows[i] = (
                        _Row(*content)
                        if kind == "step"
                        else _Row(0.0, False, False, {}, content, None)
                    )
            for i in self._overdue():
                if i not in ready:
                    self._restart(i, f"it gave no answer within {self._timeout:g} s (env.timeout)")
        return rows

    # --- the interface

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise RuntimeError(f"the environments of {self.spec_id!r} are closed: make new ones")

    def reset(self, seed: int | None = None) -> Any:
        """Starts a new episode in every environment."""
        self._check_open()
        while self._pending:  # steps that nobody will ask for any more
            self._gather(1)
        seeds: list[int | None] = [None] * self.n_envs
        if seed is not None:
            *self._sequences, of_actions = np.random.SeedSequence(seed).spawn(self.n_envs + 1)
            self.action_space.seed(first_seed(of_actions))
            seeds = [first_seed(sequence) for sequence in self._sequences]
        for i in range(self.n_envs):
            self._send(i, "reset", seeds[i])
        rows = self._gather(self.n_envs)
        self._restarted.clear()
        self._ready = list(range(self.n_envs))
        return self._observations(rows, self._ready)

    def step(self, act: Any, env_ids: np.ndarray | None = None) -> Step:
        """Takes a step in some environments, and returns those that are ready.

        Args:
            act: An action for each of `env_ids`.
            env_ids: None is those of the last `Step`, or all of them after `reset`.
        """
        self._check_open()
        ids = self._ready if env_ids is None else [int(i) for i in env_ids]
        if self.synchronous and env_ids is not None:
            check_all(env_ids, self.n_envs)
        busy = self._pending.keys() & set(ids) - self._restarted
        if busy:
            raise ValueError(f"environments {sorted(busy)} are still at their last step")
        for i, action in zip(ids, unstack(self.action_space, act, len(ids)), strict=True):
            if i not in self._restarted:  # else it died after its last answer, and is reset now
                self._send(i, "step", action)
        wanted = self.n_envs if self.synchronous else min(self._wait_num, len(self._pending))
        return self._assembled(self._gather(wanted))

    def _assembled(self, rows: dict[int, _Row]) -> Step:
        self._ready = ids = sorted(rows)
        n = len(ids)
        obs = obs_next = self._observations(rows, ids)
        ended = [k for k, i in enumerate(ids) if rows[i].terminated or rows[i].truncated]
        if ended:
            obs = replaced(obs_next, ended, self._firsts(rows, ids))
        infos = {k: rows[i].info for k, i in enumerate(ids) if rows[i].info}
        dummy = broken = None
        if not self._restarted.isdisjoint(ids):
            broken = np.array(sorted(self._restarted.intersection(ids)), np.int64)
            self._restarted.difference_update(ids)
            dummy = np.isin(ids, broken)
        return Step(
            env_ids=None if self.synchronous else np.array(ids, np.int64),
            obs_next=obs_next,
            rew=np.array([rows[i].rew for i in ids]),
            terminated=np.array([rows[i].terminated for i in ids], bool),
            truncated=np.array([rows[i].truncated for i in ids], bool),
            info=batch_info(infos, n) if infos else {},
            obs=obs,
            dummy=dummy,
            broken=broken,
        )

    def _observations(self, rows: dict[int, _Row], ids: list[int]) -> Any:
        if self._memory:
            return read_rows(self._memory[0].obs_next, ids)
        return stack(self.observation_space, [rows[i].obs_next for i in ids])

    def _firsts(self, rows: dict[int, _Row], ids: list[int]) -> Any:
        """First observations of new episodes, where there are any."""
        if self._memory:
            return read_rows(self._memory[0].obs, ids)
        return {k: rows[i].obs for k, i in enumerate(ids)}

    def example(self) -> Any:
        """An environment like the first, made anew in this process."""
        return self._recipe.fn.build(0)

    def render(self) -> Any:
        """Not here: frames stay in the processes."""
        raise NotImplementedError("environments in processes do not render: use backend 'base'")

    def close(self) -> None:
        """Ends all environments and their processes."""
        self._finalizer()


def _shut_down(
    workers: dict[int, Worker], memory: list[SharedRows], selector: selectors.BaseSelector
) -> None:
    close_workers(workers.values())
    workers.clear()
    for one in memory:
        one.close()
    memory.clear()
    selector.close()

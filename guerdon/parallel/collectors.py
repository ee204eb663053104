"""The shards of a run in processes of their own: `RayShards`, `AsyncShards`."""

import copy
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import ray

from guerdon.collect.shards import Order, ShardInfo, ShardRollout, shares
from guerdon.data.leaves import check_like
from guerdon.parallel import cluster
from guerdon.parallel.logs import Journal
from guerdon.parallel.workers import Failures, Worker, call_all, report, start_all

Rollouts = tuple[list[tuple[int, ShardRollout]], dict[str, float]]
_AHEAD = 2  # orders that an asynchronous collector has: one to work on, and the next


class RayShards:
    """Shards as workers, which collect while the learner waits; see `guerdon.collect.Shards`.

    A worker that fails is restarted with other random numbers, and repeats its order.

    Args:
        workers: One for each shard.
        timeout: Seconds after which a worker that does not answer is restarted.
    """

    def __init__(self, workers: Sequence[Worker], timeout: float) -> None:
        self.number = len(workers)
        self.journal = Journal()
        self._workers, self._timeout = list(workers), timeout
        self._lost_steps = 0
        self.steps_lost: int | None = None
        """Steps after the checkpoints that a learner was restarted from; None without restarts."""
        self._cut: set[int] = set()  # shards of which rows are missing
        start_all(workers)

    def info(self) -> ShardInfo:
        """See `Shards`."""
        # A copy, since arrays from Ray's shared memory cannot be written to.
        info: ShardInfo = copy.deepcopy(self._workers[0].call("info", timeout=self._timeout))
        return info

    def collect(self, order: Order) -> Rollouts:
        """See `Shards`."""
        given, episodes = ray.put(order), shares(order.n_episode, self.number)
        found = self._on_all("collect", [(given, each) for each in episodes], order.n_step or 0)
        accepted = [(i, self._accepted(i, rollout)) for i, rollout in enumerate(found)]
        return accepted, self._metrics()

    def _accepted(self, number: int, rollout: ShardRollout) -> ShardRollout:
        """Record a rollout that is learned from."""
        self._workers[number].version = rollout.version
        rollout.restarted = number in self._cut
        self._cut.discard(number)
        self.journal.add(number, self._workers[number].starts, rollout)
        return rollout

    def _metrics(self) -> dict[str, float]:
        restarts = self._workers[0].restarts.number
        metrics: dict[str, float] = {
            "runtime/restarts": restarts,
            "runtime/lost_steps": self._lost_steps,
        }
        if self.steps_lost is not None:
            metrics["runtime/steps_lost"] = self.steps_lost
        return metrics

    def _on_all(self, method: str, args: Sequence[tuple[Any, ...]], steps: int = 0) -> list[Any]:
        """Call a method of all shards; `steps` are lost if a worker fails."""
        lost = partial(self._lost, steps=steps)
        return call_all(self._workers, method, args, self._timeout, lost)

    def _lost(self, number: int, steps: int) -> None:
        self._cut.add(number)
        self._lost_steps += steps

    def break_off(self) -> None:
        """See `Shards`."""
        self._on_all("break_off", [()] * self.number)

    def training_state(self) -> dict[str, Any]:
        """See `Shards`."""
        return {
            "shards": self._on_all("training_state", [()] * self.number),
            "starts": [worker.starts for worker in self._workers],
            **self._counts(),
        }

    def _counts(self) -> dict[str, Any]:
        return {
            "lost_steps": self._lost_steps,
            "steps_lost": self.steps_lost,
            "accepted": dict(self.journal.accepted),
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """See `Shards`."""
        accepted, starts = state.get("accepted", {}), state.get("starts", ())
        lost = state.get("steps_lost")
        counters = [state.get("lost_steps", 0), lost or 0, *accepted.values(), *starts]
        check_like(counters, [0] * len(counters), "collectors")
        self._lost_steps, self.steps_lost = state.get("lost_steps", 0), lost
        self.journal.accepted = dict(accepted)
        for worker, number in zip(self._workers, starts, strict=False):
            worker.starts = max(worker.starts, number)
        if state["shards"] is not None:
            self._on_all("load_training_state", [(each,) for each in state["shards"]])
            return
        for worker in self._workers:  # with random numbers that were not used before
            worker.stop()
        start_all(self._workers)

    def close(self) -> None:
        """See `Shards`."""
        for worker in self._workers:
            worker.stop()


class _Sent(NamedTuple):
    """An order that a collector works on, or will."""

    reference: Any
    steps: int
    """How many it is for; 0 for the start of the collector."""
    limit: float
    """Time at which the collector has failed."""


class AsyncShards(RayShards):
    """Shards as workers, which collect while the learner learns.

    Each has its next order before it has finished one, so that it never waits for the learner.
    `collect` takes rollouts in the order in which they are finished. A checkpoint does not reset
    the environments: after a resume, collectors start with new random numbers.

    Args:
        workers: See `RayShards`.
        timeout: See `RayShards`.
        max_staleness: Iterations after which rollouts are dropped; None for never.
    """

    def __init__(
        self, workers: Sequence[Worker], timeout: float, max_staleness: int | None
    ) -> None:
        super().__init__(workers, timeout)
        self._max_staleness = max_staleness
        self._sent: list[deque[_Sent]] = [deque() for _ in workers]
        self._report_at = 0.0  # time of the next report on collectors that have not started
        self._dropped_steps = 0

    def collect(self, order: Order) -> Rollouts:
        """See `Shards`."""
        given, episodes = ray.put(order), shares(order.n_episode, self.number)
        accepted: list[tuple[int, ShardRollout]] = []
        missing = order.n_episode or (order.n_step or 0) * self.number
        while missing > 0:
            for i in range(self.number):
                self._send(i, given, order, episodes[i])
            for i in self._ready():
                rollout = self._received(i)
                if rollout is None:
                    continue
                stale = order.version - rollout.version
                if self._max_staleness is not None and stale > self._max_staleness:
                    self._dropped_steps += rollout.collected.n_step
                    self._cut.add(i)
                    continue
                accepted.append((i, self._accepted(i, rollout)))
                found = rollout.collected
                missing -= found.n_step if order.n_episode is None else found.n_episode
        staleness = [order.version - rollout.version for _, rollout in accepted]
        return accepted, self._metrics() | {
            "runtime/staleness": sum(staleness) / len(staleness),
            "runtime/max_staleness": max(staleness),
            "runtime/dropped_steps": self._dropped_steps,
        }

    def _send(self, number: int, given: Any, order: Order, n_episode: int | None) -> None:
        """Give a collector as many orders as it may have."""
        sent, worker = self._sent[number], self._workers[number]
        while sum(each.steps > 0 for each in sent) < _AHEAD:
            reference = worker.send("collect", given, n_episode)
            sent.append(_Sent(reference, order.n_step or 1, time.monotonic() + self._timeout))

    def _ready(self) -> list[int]:
        """Wait for rollouts; return the collectors that have one, failed, or do not answer.

        None are returned from time to time while collectors start.
        """
        first = [sent[0] for sent in self._sent]
        references, now = [each.reference for each in first], time.monotonic()
        limits = [each.limit for each in first if each.steps]
        ray.wait(references, timeout=max(min([*limits, now + cluster.REPORT]) - now, 0.0))
        ready, _ = ray.wait(references, num_returns=self.number, timeout=0)
        now = time.monotonic()
        starting = [
            i for i, each in enumerate(first) if not each.steps and each.reference not in ready
        ]
        if starting and now >= self._report_at:
            report(self._workers[i].name for i in starting)
            self._report_at = now + cluster.REPORT
        if len(starting) == self.number and now >= max(each.limit for each in first):
            raise self._workers[0].overdue()
        return [
            i
            for i, each in enumerate(first)
            if each.reference in ready or (each.steps and each.limit <= now)
        ]

    def _received(self, number: int) -> ShardRollout | None:
        """Return the oldest rollout of a collector; None if it failed, or has just started."""
        sent = self._sent[number]
        try:
            rollout: ShardRollout | None = ray.get(sent[0].reference, timeout=0)
        except Failures as error:
            self._lost(number, sum(each.steps for each in sent))
            sent.clear()
            made = self._workers[number].restart(error)  # others go on while it starts
            now, wait = time.monotonic(), self._workers[number].restarts.wait_seconds
            sent.append(_Sent(made, 0, now + wait))
            self._report_at = max(self._report_at, now + cluster.REPORT)
            return None
        sent.popleft()
        self._workers[number].restarts.changed()
        if sent:  # it begins with the next one now
            sent[0] = sent[0]._replace(limit=time.monotonic() + self._timeout)
        return rollout

    def break_off(self) -> None:
        """Do nothing: collectors go on."""

    def training_state(self) -> dict[str, Any]:
        """See `Shards`."""
        return {
            "shards": None,
            "starts": [worker.starts for worker in self._workers],
            "dropped_steps": self._dropped_steps,
            **self._counts(),
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """See `Shards`."""
        super().load_training_state(state)
        self._dropped_steps = state.get("dropped_steps", 0)
        check_like(self._dropped_steps, 0, "dropped_steps")

"""Learning in several workers: the learner sends each batch to the others."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayTaskError
from torch import Tensor

from guerdon.data import Batch
from guerdon.parallel.logs import worker_logger
from guerdon.parallel.workers import Failures, Worker, full_text, reason_of
from guerdon.policy import Policy
from guerdon.policy.ranks import Ranks, digest, join, leave, meeting
from guerdon.training.callback import Callback
from guerdon.training.run import Run


class RankError(RuntimeError):
    """Another learner failed."""


class Rank:
    """A copy of the policy in another worker, which learns from the same batches.

    Args:
        policy: The copy.
        rank: Number of the learner.
        size: Number of all learners.
    """

    def __init__(self, policy: Policy, rank: int, size: int) -> None:
        self._policy, self._rank, self._size = policy, rank, size

    def join(self, host: str, port: int, seconds: float, state: dict[str, Any]) -> None:
        """Join the others, and continue from the state of the first one's policy."""
        policy, store = self._policy, meeting(host, port)
        add = join(self._rank, self._size, store, policy.device, seconds)
        policy.learn_with(Ranks(self._rank, self._size, add))
        policy.load_training_state(state)

    def learn(self, batch: Batch, options: dict[str, Any], now: dict[str, Any]) -> None:
        """Learn from a batch, which is the whole one; see `LeadingRanks.learn`."""
        policy = self._policy
        policy.updates = now["updates"]
        policy.generator.set_state(torch.tensor(now["generator"]))
        for name, rate in now["learning_rates"].items():
            policy.optimizers[name].learning_rate = rate
        policy.updating = True
        try:
            policy.ranks.learn(policy, batch.to_device(policy.device), options)
        except BaseException:
            leave()  # so that the others do not wait
            raise

    def digest(self) -> str:
        """See `digest`."""
        return digest(self._policy)


class LeadingRanks(Ranks, Callback):
    """What the learner that has the run does with the others.

    Args:
        policy: Its policy.
        workers: The others, which are started.
        host: Address of this node.
        seconds: Seconds after which a learner that does not answer has failed.
    """

    def __init__(
        self, policy: Policy, workers: Sequence[Worker], host: str, seconds: float
    ) -> None:
        self._workers, self._seconds, size = list(workers), seconds, len(workers) + 1
        store, state = meeting(host), ray.put(policy.training_state())
        sent = [worker.send("join", host, store.port, seconds, state) for worker in workers]
        try:
            self._together = join(0, size, store, policy.device, seconds)
        except RuntimeError as error:
            raise RankError(f"the learners do not find each other: {error}") from error
        super().__init__(0, size, self._added)
        self._answers(sent)
        policy.learn_with(self)

    def learn(self, policy: Policy, batch: Batch, options: Mapping[str, Any]) -> dict[str, Any]:
        """See `Ranks`; the others get the batch, and what changes without learning."""
        now = {
            "updates": policy.updates,
            "generator": policy.generator.get_state().numpy(),
            "learning_rates": {
                name: each.learning_rate for name, each in policy.optimizers.items()
            },
        }
        given = ray.put(batch.to_numpy())
        sent = [worker.send("learn", given, dict(options), now) for worker in self._workers]
        try:
            metrics = super().learn(policy, batch, options)
        except RankError:
            self._answers(sent)
            raise
        self._answers(sent)
        return metrics

    def on_checkpoint(self, run: Run, path: Path) -> None:  # noqa: ARG002
        """Raise an error if the others have other parameters."""
        found = self._answers([worker.send("digest") for worker in self._workers])
        if {*found} != {digest(run.policy)}:
            raise RankError("the learners have different parameters")
        worker_logger("learner").info("%d learners have the same parameters", self.size)

    def _answers(self, references: Sequence[Any]) -> list[Any]:
        """Return results; raise an error that names the first learner that failed."""
        found, errors = [], list[tuple[Worker, BaseException]]()
        for worker, reference in zip(self._workers, references, strict=True):
            try:
                found.append(ray.get(reference, timeout=self._seconds))
            except Failures as error:
                worker.log.info("%s", full_text(error))
                errors.append((worker, error))
        if errors:  # others may have failed since one has died
            worker, first = min(errors, key=lambda each: isinstance(each[1], RayTaskError))
            raise RankError(f"{worker.name}: {reason_of(first)}") from first
        return found

    def _added(self, value: Tensor) -> None:
        try:
            self._together(value)
        except RuntimeError as error:
            raise RankError(f"the learners have lost each other: {error}") from error

"""Annotation, scoring and training of the reward in processes of their own: `RemoteReward`."""

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import ray
import torch

from guerdon.config import ConfigError
from guerdon.data.batch import Batch
from guerdon.parallel.workers import Failures, Worker, call_all, restart, start_all
from guerdon.reward.base import Metrics
from guerdon.reward.composition import ENDS, Reward
from guerdon.training.parts import Seeds, ShardMaker, prepare_reward

_ROWS = 1_024  # transitions from which on sending them costs less than scoring them
_CALLS = 6  # of the worker that trains, asynchronously: those of two iterations


class RewardHost:
    """Copies of the reward in a worker: one that scores, and one that is trained.

    Args:
        make: Makes a copy.
    """

    def __init__(self, make: Callable[[], Reward]) -> None:
        self._make = make
        self._scoring, self._version = make(), 0
        self._trained: Reward | None = None

    def _at(self, version: int, state: Any) -> Reward:
        if version != self._version:
            self._scoring.load_training_state(copy.deepcopy(state))
            self._version = version
        return self._scoring

    def annotate(self, version: int, state: Any, batch: Batch, memory: Any) -> tuple[Batch, Any]:
        """Return what `Reward.annotate` adds to a rollout, and the memory after it."""
        found, after = self._at(version, state).annotate(*copy.deepcopy((batch, memory)))
        return Batch({name: found[name] for name in ("mask", "annotations", "columns")}), after

    def scores(self, version: int, state: Any, batch: Batch) -> dict[str, np.ndarray]:
        """Return the rewards of each term; see `Reward.scores`."""
        reward = self._at(version, state)
        found = reward.scores(copy.deepcopy(batch).to_device(reward.models[0].device))
        return {name: rew.numpy(force=True) for name, rew in found.items()}

    def on_trained(self, state: Any, method: str, *args: Any) -> tuple[Any, Any]:
        """Call a method of the copy that is trained.

        Args:
            state: Its state, if it is new.
            method: The method.
            *args: Its arguments.

        Returns:
            The result and, after a training with an effect, the new `Reward.portable_state`.
        """
        if self._trained is None:
            self._trained = self._make()
            self._trained.load_training_state(copy.deepcopy(state))
        found = getattr(self._trained, method)(*copy.deepcopy(args))
        is_new = bool(found) and method in ("train", "pretrain")
        return found, self._trained.portable_state() if is_new else None


@dataclass(frozen=True)
class RewardMaker:
    """Makes the reward of each worker, for environments that are only described."""

    make: ShardMaker
    observation_space: Any
    action_space: Any
    n_envs: int
    example: None = None

    def __call__(self, number: int, start: int) -> RewardHost:  # noqa: ARG002 - has no state
        """Make the reward of a worker."""
        return RewardHost(self._reward)

    def _reward(self) -> Reward:
        config, env = self.make.config, cast("Any", self)
        policy = self.make.policy(env)
        reward = prepare_reward(config, policy, env, Seeds.of(config.seed).reward)
        reward.scaler = None  # the learner has it
        return reward


class RemoteReward(Reward):
    """A reward that workers annotate, score and train.

    The learner has a copy with the newest networks, and the first worker the data of the training.
    If there are several workers, the first one only trains.

    Args:
        reward: The learner's copy.
        workers: The workers.
        timeout: Seconds after which a worker that does not answer is restarted.
        waits: Whether to wait for every training. Otherwise the learner goes on with the reward as
            it is, and waits only for a worker that is two iterations behind.
    """

    def __init__(
        self, reward: Reward, workers: Sequence[Worker], timeout: float, *, waits: bool
    ) -> None:
        _check(reward)
        vars(self).update(vars(reward))
        self._trains = self.cotrain and any(model.collects for model in self.models)
        self._trainer = workers[0]
        self._scorers = workers[1:] if self._trains and len(workers) > 1 else workers
        self._timeout, self._waiting = timeout, 0 if waits else _CALLS
        self._calls: deque[Any] = deque()  # of the trainer, oldest first
        self._version = 0
        self._shared: Any = None
        self._lost_calls = 0
        start_all(workers)

    def _reference(self) -> Any:
        """Return Ray's reference to the state of the learner's copy."""
        if self._shared is None:
            self._version += 1
            self._shared = ray.put(self.portable_state())
        return self._shared

    # --- scoring

    def new_memory(self, n_envs: int) -> Any:
        """See `Reward`; a list with the memory of each worker that annotates."""
        if not self._annotators or self.ends_online:
            return super().new_memory(n_envs)
        shares = np.array_split(np.arange(n_envs), min(n_envs, len(self._scorers)))
        return [super(RemoteReward, self).new_memory(len(share)) for share in shares]

    def annotate(self, batch: Batch, memory: Any) -> tuple[Batch, Any]:
        """See `Reward`; each worker annotates some of the environments."""
        if not isinstance(memory, list):
            return super().annotate(batch, memory)
        reads = {name for model in self._annotators.values() for name in model.reads}
        read = Batch({name: batch[name] for name in {*reads, *ENDS, "mask", "first"}})
        shares = np.array_split(np.arange(batch.rew.shape[1]), len(memory))
        given = [(read[:, share], part) for share, part in zip(shares, memory, strict=True)]
        found = self._on_scorers("annotate", given)
        added = copy.deepcopy(Batch.cat([part for part, _ in found], axis=1))
        return batch.replace(**dict(added.items())), [after for _, after in found]

    def scores(self, batch: Batch) -> dict[str, torch.Tensor]:
        """See `Reward`; workers score large batches."""
        if batch.rew.numel() < _ROWS or self.changes_replay:
            return super().scores(batch)
        rows = np.array_split(np.arange(len(batch.rew)), min(len(batch.rew), len(self._scorers)))
        arrays = batch.to_numpy()
        found = self._on_scorers("scores", [(arrays[part[0] : part[-1] + 1],) for part in rows])
        return {
            name: torch.tensor(np.concatenate([part[name] for part in found])).to(batch.rew.device)
            for name in self.terms
        }

    def _on_scorers(self, method: str, args: Sequence[tuple[Any, ...]]) -> list[Any]:
        state = self._reference()
        given = [(self._version, state, *each) for each in args]
        return call_all(self._scorers[: len(args)], method, given, self._timeout, self._lost_scorer)

    # --- training

    def _collect(self, batch: Batch) -> None:
        if self._trains:
            self._call("collect_data", batch)

    def pretrain(self) -> Metrics:
        """See `Reward`."""
        metrics: Metrics = self._answer("pretrain")
        return metrics

    def train(self) -> Metrics:
        """See `Reward`; metrics are those of the newest training that has ended."""
        metrics: Metrics = {}
        if self._trains:
            self._call("train")
            while len(self._calls) > self._waiting:
                metrics |= self._oldest() or {}
        self.updates += bool(metrics or self.scaler)
        return metrics

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """See `Reward`."""
        if self._trains:
            self._call("clear_data", iter)

    def _call(self, method: str, *args: Any) -> None:
        """Begin to call a method of the copy that is trained."""
        self._calls.append(self._trainer.send("on_trained", self._reference(), method, *args))

    def _oldest(self) -> Any:
        """Wait for the oldest call; return its result."""
        try:
            found, state = ray.get(self._calls[0], timeout=self._timeout)
        except Failures as error:
            self._forget()
            restart(self._trainer, error)
            return None
        self._calls.popleft()
        self._take(state)
        return found

    def _answer(self, method: str, *args: Any) -> Any:
        """Call a method of the copy that is trained, after all earlier calls."""
        while self._calls:
            self._oldest()
        given = [(self._reference(), method, *args)]
        ((found, state),) = call_all([self._trainer], "on_trained", given, self._timeout)
        self._take(state)
        return found

    def _take(self, state: Any) -> None:
        """Load the new networks of the copy that is trained, if there are some."""
        if state is not None:
            for name, part in copy.deepcopy(state["terms"]).items():
                self.terms[name].model.load_training_state(part)
            self._shared = None

    def _forget(self) -> None:
        """Count the calls of the trainer that are lost with it; its data are lost, too."""
        self._lost_calls += len(self._calls)
        self._calls.clear()

    def _lost_scorer(self, number: int) -> None:
        if self._scorers[number] is self._trainer:
            self._forget()

    def reward_stats(self) -> Metrics:
        """See `Reward`."""
        return super().reward_stats() | {"runtime/lost_reward_calls": self._lost_calls}

    # --- state

    def training_state(self) -> dict[str, Any]:
        """See `Reward`."""
        if not self._trains:
            return super().training_state()
        terms: dict[str, Any] = self._answer("training_state")["terms"]
        return self._state(terms)

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `Reward`."""
        super().load_training_state(state)
        self._shared = None
        if self._trains:
            self._answer("load_training_state", state)


def _check(reward: Reward) -> None:
    """Raise an error if workers cannot do the work of a reward."""
    key = "'runtime.num_reward_workers'"
    for name, (model, _) in reward.terms.items():
        if reward.cotrain and "density" in type(model).requirements(model.config):
            raise ConfigError(
                f"the reward {name!r} needs the policy, which only the learner has: leave {key} out"
            )
        if getattr(model.config, "record_path", None) is not None:
            raise ConfigError(
                f"'record_path' of the reward {name!r} needs the learner's files: leave it or {key}"
                " out"
            )

"""Collecting in shards: groups of environments, each with random generators of its own.

A `Shard` steps its environments with a copy of the policy. Shards are in this process
(`LocalShards`) or in others (`guerdon.parallel`); a `ShardedCollector` adds what they collect to
the buffer of the learner. What a shard does depends on its order alone, not on where it is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from guerdon.collect.collector import Collected, Collector, Watch
from guerdon.data import ReplayBuffer
from guerdon.data.batch import Batch, from_leaves
from guerdon.data.leaves import to_numpy
from guerdon.data.rollout import Rollout
from guerdon.envs import Step, VectorEnv
from guerdon.policy import Policy
from guerdon.reward import Reward

_STEP = ("obs_next", "rew", "terminated", "truncated")
Weights = dict[str, np.ndarray]
"""Parameters and buffers of a policy by name."""


def weights_of(policy: Policy) -> Weights:
    """Return what a copy of a policy needs to act."""
    return {name: to_numpy(value) for name, value in policy.state_dict().items()}


def load_weights(policy: Policy, weights: Weights) -> None:
    """Load the result of `weights_of`, which may be read-only."""
    policy.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})


@dataclass(frozen=True)
class Order:
    """What shards collect, and with which weights."""

    weights: Weights
    env_steps: int = 0
    """Progress of the run; see `Policy.advance`."""
    progress: float = 0.0
    """See `Policy.advance`."""
    reward: dict[str, Any] | None = None
    """State of the reward, if it ends episodes online."""
    n_step: int | None = None
    """Transitions that each shard collects."""
    n_episode: int | None = None
    """Episodes that all shards collect together."""
    random: bool = False
    """Whether to sample actions from the action space."""
    version: int = 0
    """Number of the weights."""


@dataclass
class ShardRollout:
    """What a shard collected for an order."""

    fields: Batch | None
    """Rows [T, n_envs, ...] with ``mask``; None if there are none."""
    collected: Collected
    lost_rows: dict[int, int] = field(default_factory=dict)
    """Newest rows of earlier rollouts, by environment, whose episode is lost."""
    number: int = 0
    """Number of rollouts that the shard has made, with this one."""
    version: int = 0
    """Number of the weights that acted."""
    restarted: bool = False
    """Whether the shard was restarted, so that its open episodes are lost."""


class ShardInfo:
    """Facts about the environments of a shard."""

    def __init__(self, env: VectorEnv) -> None:
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.spec_id = env.spec_id
        self.n_envs = env.n_envs
        self.synchronous = env.synchronous
        self.can_begin = env.can_begin


class Shard:
    """A group of environments, with a copy of the policy.

    Args:
        policy: The copy, on the CPU.
        env: The environments.
        seed: Seed of all random numbers of this shard.
        reward: A copy of the reward, if it ends episodes online.
        store_info: Whether to store ``info`` with transitions.
        watch: See `Collector`.
    """

    def __init__(
        self,
        policy: Policy,
        env: VectorEnv,
        seed: np.random.SeedSequence,
        *,
        reward: Reward | None = None,
        store_info: bool = False,
        watch: Watch | None = None,
    ) -> None:
        resets, noise, layers = seed.generate_state(3).tolist()
        policy.generator.manual_seed(noise)
        self._policy, self._env, self._reward = policy, env, reward
        self._rollout, self._rollouts = Rollout(1, env.n_envs), 0
        self._collector = _ShardCollector(
            policy, env, self._rollout,
            reward=reward, seed=resets, store_info=store_info, watch=watch,
        )  # fmt: skip
        # Of PyTorch's global generator, which layers such as dropout draw from.
        self._layers = torch.Generator().manual_seed(layers).get_state()

    def collect(self, order: Order, n_episode: int | None = None) -> ShardRollout:
        """Collect with the weights of an order.

        Args:
            order: The order.
            n_episode: This shard's number of episodes, if the order is for episodes.
        """
        collector = self._collector
        collector.lost_rows = {}
        self._rollout.reset()
        with self._own_layers():
            load_weights(self._policy, order.weights)
            self._policy.advance(order.env_steps, order.progress)
            if self._reward is not None and order.reward is not None:
                self._reward.load_training_state(order.reward)
            collected = collector.collect(order.n_step, n_episode, order.random)
        self._rollouts += 1
        return ShardRollout(
            collector.rows(), collected, collector.lost_rows, self._rollouts, order.version
        )

    @contextmanager
    def _own_layers(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._layers)
            yield
            self._layers = torch.get_rng_state()

    def info(self) -> ShardInfo:
        """Return facts about the environments."""
        return ShardInfo(self._env)

    def break_off(self) -> None:
        """See `Collector.break_off`."""
        self._collector.break_off()

    def training_state(self) -> dict[str, Any]:
        """Return everything needed to resume after `break_off`."""
        return {
            "collector": self._collector.training_state(),
            "noise": self._policy.generator.get_state(),
            "layers": self._layers,
            "rollouts": self._rollouts,
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore `training_state`."""
        self._collector.load_training_state(state["collector"])
        self._policy.generator.set_state(state["noise"])
        self._layers, self._rollouts = state["layers"], state["rollouts"]

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


class _ShardCollector(Collector):
    """Notes the rows of earlier rollouts whose episodes are lost, and returns its rows."""

    buffer: Rollout
    lost_rows: dict[int, int]

    def _drop_episodes(self, env_ids: np.ndarray) -> None:
        for env in map(int, env_ids):
            length = int(self._lengths[env])
            earlier = length - len(self.buffer.newest_rows(env, length))
            if earlier:
                self.lost_rows[env] = earlier
        super()._drop_episodes(env_ids)

    def rows(self) -> Batch | None:
        """Return the rows of the last `collect`; they are valid until the next one."""
        if not self.buffer.cursors.any():
            return None
        more = (name for name in ("policy", "info") if name in self.buffer.field_names())
        names = ("obs", "act", "rew", "terminated", "truncated", "obs_next", *more)
        batch = self.buffer.rollout(names)[0]
        return from_leaves({name: batch[name] for name in (*names, "mask")})


class Shards(Protocol):
    """All shards of a run, wherever they are."""

    number: int

    def info(self) -> ShardInfo:
        """Return facts about the environments of one shard."""

    def collect(self, order: Order) -> tuple[list[tuple[int, ShardRollout]], dict[str, float]]:
        """Return rollouts, each with the number of its shard, and metrics."""

    def break_off(self) -> None:
        """Cut open episodes of all shards."""

    def training_state(self) -> dict[str, Any]:
        """Return everything needed to resume after `break_off`."""

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore `training_state`."""

    def close(self) -> None:
        """Close all shards."""


def shares(total: int | None, number: int) -> list[int | None]:
    """Divide episodes among shards."""
    if total is None:
        return [None] * number
    return [total // number + (i < total % number) for i in range(number)]


class LocalShards:
    """Shards in this process, one after the other.

    Args:
        make: Makes the shard of a number that was started so often before.
        number: Number of shards.
    """

    def __init__(self, make: Callable[[int, int], Shard], number: int) -> None:
        self.number, self._make = number, make
        self._shards: list[Shard] = []
        try:
            for i in range(number):
                self._shards.append(make(i, 0))
        except BaseException:
            self.close()
            raise

    def info(self) -> ShardInfo:
        """See `Shards`."""
        return self._shards[0].info()

    def collect(self, order: Order) -> tuple[list[tuple[int, ShardRollout]], dict[str, float]]:
        """See `Shards`."""
        episodes = shares(order.n_episode, self.number)
        return [(i, shard.collect(order, episodes[i])) for i, shard in enumerate(self._shards)], {}

    def break_off(self) -> None:
        """See `Shards`."""
        for shard in self._shards:
            shard.break_off()

    def training_state(self) -> dict[str, Any]:
        """See `Shards`."""
        return {"shards": [shard.training_state() for shard in self._shards]}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """See `Shards`."""
        if state["shards"] is None:  # of an asynchronous run: random numbers not used before
            self.close()
            self._shards = [self._make(i, each) for i, each in enumerate(state["starts"])]
            return
        for shard, saved in zip(self._shards, state["shards"], strict=True):
            shard.load_training_state(saved)

    def close(self) -> None:
        """See `Shards`."""
        for shard in self._shards:
            shard.close()


class ShardedEnv(VectorEnv):
    """The environments of all shards, which only the shards step.

    Args:
        shards: The shards.
        example: Returns an environment for reading; see `VectorEnv.example`.
    """

    def __init__(self, shards: Shards, example: Callable[[], Any]) -> None:
        info, self.shards, self._example = shards.info(), shards, example
        self.observation_space, self.action_space = info.observation_space, info.action_space
        self.spec_id, self.n_envs = info.spec_id, info.n_envs * shards.number
        self.synchronous, self.can_begin = info.synchronous, info.can_begin

    def reset(self, seed: int | None = None) -> Any:  # noqa: ARG002
        """Raise an error."""
        raise RuntimeError("the environments of shards are stepped by their shards alone")

    def step(self, act: Any, env_ids: np.ndarray | None = None) -> Step:  # noqa: ARG002
        """Raise an error."""
        return self.reset()  # type: ignore[no-any-return]

    def example(self) -> Any:
        """See `VectorEnv`."""
        return self._example()

    def close(self) -> None:
        """Close all shards."""
        self.shards.close()


class ShardedCollector(Collector):
    """Collects with shards, and adds their rows to the buffer.

    Args:
        policy: Policy that learns; shards act with copies of its weights.
        env: Environments of all shards.
        buffer: A `Rollout` or `ReplayBuffer`.
        reward: Annotates new transitions.
        store_info: Whether to store ``info`` with transitions, if the shards do.
    """

    def __init__(
        self,
        policy: Policy,
        env: ShardedEnv,
        buffer: ReplayBuffer | Rollout,
        *,
        reward: Reward | None = None,
        store_info: bool = False,
    ) -> None:
        super().__init__(policy, env, buffer, reward=reward, store_info=store_info)
        self._shards = env.shards
        self._ids = np.split(self._everyone, self._shards.number)
        self._progress = 0, 0.0
        self._version = 0

    def advance(self, env_steps: int, progress: float) -> None:
        """See `Collector`."""
        self._progress = env_steps, progress

    def break_off(self) -> None:
        """Cut open episodes of all shards."""
        super().break_off()
        self._shards.break_off()

    def _collect(self, n_step: int, n_episode: int | None, random: bool) -> Collected:
        assert self.buffer is not None
        if n_episode is not None:  # every shard resets its environments
            super().break_off()
        self._since = self.buffer.written
        self._version += 1
        online = self.reward is not None and self.reward.ends_online
        order = Order(
            weights_of(self.policy),
            *self._progress,
            reward=self.reward.portable_state() if online and self.reward is not None else None,
            n_step=-(-n_step // self._shards.number) or None,
            n_episode=n_episode,
            random=random,
            version=self._version,
        )
        rollouts, metrics = self._shards.collect(order)
        collected = Collected(metrics=metrics)
        for number, rollout in rollouts:
            ids, found = self._ids[number], rollout.collected
            lost = ids if rollout.restarted else ids[list(rollout.lost_rows)]
            self.buffer.cut(lost)
            if self.watch is not None and len(lost):
                self.watch({}, _broken(lost), None)
            for env, rows in rollout.lost_rows.items():
                self.buffer.discard(self.buffer.newest_rows(int(ids[env]), rows))
            collected.merge(found)
        self._add([(n, rollout.fields) for n, rollout in rollouts if rollout.fields is not None])
        return collected

    def _add(self, rollouts: Sequence[tuple[int, Batch]]) -> None:
        """Add the rows of rollouts; those of different shards together, which is faster."""
        assert self.buffer is not None
        waiting = list(rollouts)
        while waiting:
            chosen: dict[int, Batch] = {}
            for number, fields in waiting:
                chosen.setdefault(number, fields)  # of one shard, rollouts are in time order
            waiting = [each for each in waiting if chosen[each[0]] is not each[1]]
            length = max(len(fields.mask) for fields in chosen.values())
            parts = [_padded(chosen[number], length) for number in sorted(chosen)]
            batch = Batch.cat(parts, axis=1) if len(parts) > 1 else parts[0]
            ids = np.concatenate([self._ids[number] for number in sorted(chosen)])
            everyone = len(ids) == self.env.n_envs > 1
            mask = batch.pop("mask")
            info = batch.get("info") if self.store_info else batch.pop("info", None)
            for t in range(length):
                real = None if mask[t].all() else mask[t]
                if self.watch is not None:
                    shown = {} if info is None else info[t].to_dict()
                    row = [batch[t][name] for name in _STEP]
                    self.watch({}, Step._make([ids, *row, shown, None, None, None]), ~mask[t])
                self.buffer.add(batch[t], None if everyone else ids, real)

    def _check_rollout(self) -> None:
        """Do nothing: shards have checked their observations."""

    def training_state(self) -> dict[str, Any]:
        """See `Collector`."""
        return {**self._shards.training_state(), "version": self._version}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """See `Collector`."""
        self._shards.load_training_state(state)
        self._version = state["version"]
        super().break_off()


def _broken(env_ids: np.ndarray) -> Step:
    """Return a step without rows, which says that the open episodes of environments are lost."""
    none = np.zeros(0, bool)
    return Step(env_ids[:0], None, none, none, none, {}, None, broken=env_ids)


def _padded(fields: Batch, length: int) -> Batch:
    """Repeat the first rows [T, n_envs, ...] up to a length, as rows that are no transitions."""
    missing = length - len(fields.mask)
    if not missing:
        return fields
    index = np.concatenate([np.arange(length - missing), np.zeros(missing, int)])
    padded: Batch = fields[index]
    for name in ("mask", "terminated", "truncated"):
        padded[name][length - missing :] = False
    return padded

"""Policies whose every action can be traced, and what Counting must have done under them."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from guerdon.collect import Collected, Collector
from guerdon.data import Batch, ReplayBuffer, Rollout
from guerdon.envs import Counting, VectorEnv, make_vec
from guerdon.policy import Policy
from tests.envs.walking import Pattern, Row

FIELDS = ("obs", "act", "rew", "terminated", "truncated", "obs_next", "policy")


def action_for(obs: np.ndarray) -> np.ndarray:
    """An action that tells which observation it answers."""
    return (5 * obs[:, 0] + 3 * obs[:, 1] + obs[:, 2]) % 4


class Tracing(Policy):
    """Acts by `action_for`, and stores what it saw."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__({}, env.observation_space, env.action_space)
        self.calls = 0

    def forward(self, batch: Batch, state: Any = None) -> Batch:
        assert torch.is_inference_mode_enabled()
        assert state is None
        self.calls += 1
        return Batch(act=action_for(batch.obs), policy=Batch(seen=batch.obs.copy()))


class Remembering(Tracing):
    """Counts its steps in the state, and stores the count it was given."""

    def forward(self, batch: Batch, state: Any = None) -> Batch:
        assert torch.is_inference_mode_enabled()
        self.calls += 1
        if state is None:
            state = torch.zeros(len(batch.obs), 2)
        assert state.shape == (len(batch.obs), 2)
        policy = Batch(steps=state[:, 0].numpy().copy(), number=state[:, 1].numpy().copy())
        number = torch.from_numpy(batch.obs[:, 0] + 1).float()
        after = torch.stack([state[:, 0] + 1, number], 1)
        return Batch(act=action_for(batch.obs), state=after, policy=policy)


def modes_vector(mode: AutoresetMode, patterns: Sequence[Pattern], copy: bool = True) -> VectorEnv:
    """Gymnasium's vector environment in one autoreset mode, a pattern for each environment."""
    makers = [partial(Counting, i, p.lengths, p.truncates) for i, p in enumerate(patterns)]
    return VectorEnv(SyncVectorEnv(makers, copy=copy, autoreset_mode=mode))


def backend_vector(
    backend: str, patterns: Sequence[Pattern], own: Sequence[dict] = (), **kwargs: Any
) -> VectorEnv:
    """A vector environment of `make_vec`, a pattern for each environment."""
    settings = [{"number": i, **pattern.kwargs()} for i, pattern in enumerate(patterns)]
    for setting, more in zip(settings, own, strict=False):
        setting |= more
    options = {"settings": settings, "timeout": 20, **kwargs}
    return make_vec("guerdon/Counting-v0", len(patterns), backend=backend, **options)


def make_collector(
    env: VectorEnv,
    policy: Policy | None = None,
    container: type[ReplayBuffer | Rollout] = ReplayBuffer,
    **options: Any,
) -> Collector:
    buffer = Rollout(4, env.n_envs) if container is Rollout else ReplayBuffer(20_000, env.n_envs)
    return Collector(policy or Tracing(env), env, buffer, **options)


def rows_of(batch: Batch, env: int) -> Batch:
    """The transitions of one environment in a rollout, in time order."""
    return batch[batch.mask[:, env], env]


def check_true(rows: Batch, env: int, pattern: Pattern) -> list[Row]:
    """Holds stored transitions against the environment; which ones they are, in order."""
    found = [(int(episode), int(step)) for _, episode, step in rows.obs_next]
    for k, (episode, step) in enumerate(found):
        assert rows.obs[k].tolist() == [env, episode, step - 1]
        assert rows.obs_next[k].tolist() == [env, episode, step]
        assert rows.rew[k] == step
        over = step == pattern.length(episode)
        assert rows.truncated[k] == (over and pattern.truncated(episode))
        assert rows.terminated[k] == (over and not pattern.truncated(episode))
    if len(rows.rew):
        np.testing.assert_array_equal(rows.act, action_for(rows.obs))
    return found


def check_first(batch: Batch) -> None:
    """An episode begins where Counting has made no step."""
    np.testing.assert_array_equal(batch.first, batch.mask & (batch.obs[..., 2] == 0))


def ended(rows: Sequence[Row], pattern: Pattern) -> list[tuple[int, float]]:
    """Lengths and returns of the episodes whose last row is among these."""
    lengths = [step for episode, step in rows if step == pattern.length(episode)]
    return [(length, length * (length + 1) / 2) for length in lengths]


def reported(collected: Collected) -> list[tuple[int, float]]:
    """Lengths and returns as a collector tells them."""
    return sorted(zip(collected.lengths, collected.returns, strict=True))


class Follower:
    """Follows collectors through any calls, and knows which row every environment is at."""

    def __init__(self, collector: Collector, patterns: Sequence[Pattern]) -> None:
        self.collector = collector
        self.patterns = patterns
        self.stored: list[list[Row]] = [[] for _ in patterns]
        self.after_reset = [True] * len(patterns)

    def break_off(self) -> None:
        self.collector.break_off()
        self.after_reset = [True] * len(self.patterns)

    def collect(self, **amount: int) -> tuple[Collected, list[list[Row]]]:
        """Collects, and checks everything that is new."""
        if "n_episode" in amount:
            self.after_reset = [True] * len(self.patterns)
        buffer = self.collector.buffer
        emptied = isinstance(buffer, ReplayBuffer) and not len(buffer)
        collected = self.collector.collect(**amount)
        fresh, _ = self.collector.fresh(FIELDS)
        check_first(fresh[1:] if emptied else fresh)  # an emptied ring takes any row for the first
        new: list[list[Row]] = []
        for env, pattern in enumerate(self.patterns):
            rows = check_true(rows_of(fresh, env), env, pattern)
            assert rows == self._expected(env, len(rows))
            new.append(rows)
            self.stored[env] += rows
            self.after_reset[env] &= not rows
        assert collected.n_step == sum(map(len, new)) == fresh.mask.sum()
        over = [one for env, p in enumerate(self.patterns) for one in ended(new[env], p)]
        assert reported(collected) == sorted(over)
        assert collected.n_episode == len(over)
        if "n_episode" in amount:
            self.after_reset = [True] * len(self.patterns)
        if isinstance(buffer, Rollout):  # it holds one iteration
            buffer.reset()
        return collected, new

    def _expected(self, env: int, number: int) -> list[Row]:
        """The rows that have to come next."""
        if self.after_reset[env]:
            return self.patterns[env].rows(number)
        episode, step = self.stored[env][-1]
        done = sum(self.patterns[env].length(e) for e in range(episode)) + step
        return self.patterns[env].rows(done + number)[done:]

    def check_buffer(self) -> None:
        """All that was ever new is stored, and nothing else."""
        buffer = self.collector.buffer
        assert isinstance(buffer, ReplayBuffer)
        batch, _ = buffer.rollout(FIELDS)
        check_first(batch)
        for env, pattern in enumerate(self.patterns):
            assert check_true(rows_of(batch, env), env, pattern) == self.stored[env]
        assert len(buffer) == sum(map(len, self.stored))
        sample, _ = buffer.sample(0)
        np.testing.assert_array_equal(sample.obs_next - sample.obs, [[0, 0, 1]] * len(buffer))
        np.testing.assert_array_equal(sample.policy.seen, sample.obs)

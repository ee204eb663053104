"""Walks through Counting environments, and holds every row against what they must have done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from guerdon.data import Batch, ReplayBuffer
from guerdon.envs import Counting, VectorEnv, make_vec

Row = tuple[int, int]  # episode, step


@dataclass
class Pattern:
    """How episodes of Counting go."""

    lengths: Sequence[int] = (3, 5, 1)
    truncates: Sequence[bool] = (False, True)

    def length(self, episode: int) -> int:
        return self.lengths[episode % len(self.lengths)]

    def truncated(self, episode: int) -> bool:
        return self.truncates[episode % len(self.truncates)]

    def rows(self, n: int) -> list[Row]:
        """The first rows of an environment."""
        rows: list[Row] = []
        episode = 0
        while len(rows) < n:
            rows += [(episode, step + 1) for step in range(self.length(episode))]
            episode += 1
        return rows[:n]

    def kwargs(self) -> dict:
        return {"lengths": list(self.lengths), "truncates": list(self.truncates)}


@dataclass
class Walk:
    """What came out of a walk."""

    buffer: ReplayBuffer
    rows: list[list[Row]]
    n_dummies: int = 0
    broken: list[int] = field(default_factory=list)


def numbers(n_envs: int, **kwargs) -> list[dict]:
    """Settings that tell each Counting its number."""
    return [{"number": i, **kwargs} for i in range(n_envs)]


def gymnasium_vector(
    mode: AutoresetMode, pattern: Pattern, n_envs: int, copy: bool = True
) -> VectorEnv:
    makers = [partial(Counting, i, pattern.lengths, pattern.truncates) for i in range(n_envs)]
    return VectorEnv(SyncVectorEnv(makers, copy=copy, autoreset_mode=mode))


def made(backend: str, pattern: Pattern, n_envs: int, **kwargs) -> VectorEnv:
    settings = numbers(n_envs, **pattern.kwargs())
    return make_vec(
        "guerdon/Counting-v0", n_envs, backend=backend, settings=settings, timeout=20, **kwargs
    )


def walk(
    env: VectorEnv,
    pattern: Pattern,
    n_steps: int,
    resets_next_step: bool = False,
    before_step: Callable[[int], None] = lambda _: None,
    until: Callable[[Walk], bool] = lambda _: False,
) -> Walk:
    """Steps, checks each row, and writes all of them into a buffer; `n_steps` are the most."""
    found = Walk(ReplayBuffer(100_000, env.n_envs, seed=0), [[] for _ in range(env.n_envs)])
    obs = env.reset(0)
    np.testing.assert_array_equal(obs, [[i, 0, 0] for i in range(env.n_envs)])
    current = list(obs)
    ended = [False] * env.n_envs
    ids = np.arange(env.n_envs)
    for t in range(n_steps):
        if until(found):
            break
        before_step(t)
        act = np.arange(len(ids)) % 4
        step = env.step(act) if t % 2 else env.step(act, ids)
        kept = [row.copy() for row in current]
        ids = np.arange(env.n_envs) if step.env_ids is None else step.env_ids
        assert (step.env_ids is None) == env.synchronous
        check_shapes(step, len(ids))
        for k, i in enumerate(ids):
            check_row(step, k, i, current[i], ended[i], pattern, resets_next_step, found)
            ended[i] = bool(step.terminated[k] | step.truncated[k])
            current[i] = step.obs[k]
        broken = [] if step.broken is None else step.broken.tolist()
        found.broken += broken
        if broken:
            found.buffer.cut(broken)
        rows = Batch(
            obs=np.stack([kept[i] for i in ids]),
            act=np.arange(len(ids)),
            rew=step.rew,
            terminated=step.terminated,
            truncated=step.truncated,
            obs_next=step.obs_next,
        )
        real = np.ones(len(ids), bool) if step.dummy is None else ~step.dummy
        if real.any():
            found.buffer.add(rows[real], env_ids=ids[real])
    return found


def check_shapes(step, n: int) -> None:
    assert step.rew.dtype.kind == "f"
    assert step.terminated.dtype == step.truncated.dtype == bool
    for array in (step.obs, step.obs_next, step.rew, step.terminated, step.truncated):
        assert len(array) == n
    assert step.dummy is None or step.dummy.any()
    assert step.broken is None or len(step.broken)


def check_row(step, k, i, obs, was_ended, pattern, resets_next_step, found) -> None:
    """One row of a step, after `obs`."""
    obs_next, new = step.obs_next[k].tolist(), step.obs[k].tolist()
    if step.dummy is not None and step.dummy[k]:
        found.n_dummies += 1
        assert step.rew[k] == 0
        assert not step.terminated[k]
        assert not step.truncated[k]
        assert new == obs_next
        broken = step.broken is not None and i in step.broken
        assert new == ([i, 0, 0] if broken else [i, obs[1] + 1, 0])
        assert broken or (resets_next_step and was_ended)
        if broken:
            found.rows[i].clear()
        return
    assert not (resets_next_step and was_ended)
    assert obs_next == [i, obs[1], obs[2] + 1]
    assert step.rew[k] == obs_next[2] == step.info["step"][k]
    assert step.info["_step"][k]
    assert not step.info.get("_new", np.zeros(k + 1))[k]
    done = obs_next[2] == pattern.length(obs[1])
    assert step.terminated[k] == (done and not pattern.truncated(obs[1]))
    assert step.truncated[k] == (done and pattern.truncated(obs[1]))
    assert new == ([i, obs[1] + 1, 0] if done and not resets_next_step else obs_next)
    found.rows[i].append((obs_next[1], obs_next[2]))


def check_buffer(found: Walk, n_rows: int) -> None:
    """Everything reads back as true transitions."""
    assert len(found.buffer) == n_rows
    batch, _ = found.buffer.sample(0)
    np.testing.assert_array_equal(batch.obs_next[:, :2], batch.obs[:, :2])
    np.testing.assert_array_equal(batch.obs_next[:, 2], batch.obs[:, 2] + 1)
    np.testing.assert_array_equal(batch.rew, batch.obs_next[:, 2])

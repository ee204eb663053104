"""The rows before a transition: from rollout to rollout, in a buffer, and of a batch alone."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.data import Batch, ReplayBuffer
from guerdon.reward import make_reward
from guerdon.reward.history import Past, alone, before_in


@dataclass
class Reader:
    history: int
    fields: tuple[str, ...] = ("obs",)


class Stream:
    """Environments whose observations are their steps so far, and that end at random."""

    def __init__(self, n_envs, seed):
        self.generator = np.random.default_rng(seed)
        self.episodes = [[] for _ in range(n_envs)]
        self.number = np.zeros(n_envs, int)

    def rollout(self, n_steps):
        """A rollout, and for each row the observations before it in its episode."""
        shape = n_steps, len(self.episodes)
        obs, done = np.zeros(shape, np.float32), self.generator.random(shape) < 0.2
        earlier = np.empty(shape, object)
        for step, env in np.ndindex(shape):
            obs[step, env] = self.number[env]
            earlier[step, env] = list(self.episodes[env])
            self.episodes[env].append(float(self.number[env]))
            self.number[env] += 1
            if done[step, env]:
                self.episodes[env] = []
        cut = done.copy()
        cut[-1] = True
        zeros = np.zeros(shape, np.float32)
        rows = Batch(obs=obs, rew=zeros, terminated=done, truncated=np.zeros(shape, bool))
        return rows.replace(mask=np.ones(shape, bool), cut=cut), earlier

    def break_off(self, env):
        self.episodes[env] = []


def check(before, earlier, length):
    for place in np.ndindex(earlier.shape):
        expected = earlier[place][-length:]
        mask = before.mask[place]
        assert mask.tolist() == [False] * (length - len(expected)) + [True] * len(expected)
        assert before.obs[place][mask].tolist() == expected


@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(1, 6), min_size=1, max_size=4),
       st.integers(0, 1000), st.booleans())  # fmt: skip
def test_a_rollout_goes_on_from_the_one_before(length, n_envs, steps, seed, breaks):
    stream, past, reader = Stream(n_envs, seed), Past(), Reader(length)
    for number, n_steps in enumerate(steps):
        data, earlier = stream.rollout(n_steps)
        past.follow(data, reader)
        check(past.before(data, reader), earlier, length)
        if breaks and number % 2:
            past.break_off(np.array([0]))
            stream.break_off(0)


@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 1000))
def test_rows_that_are_no_data_belong_to_no_episode(length, n_steps, seed):
    data, earlier = Stream(1, seed).rollout(n_steps)
    # As an environment that resets in a step of its own: after each end comes a row of no data.
    ends = data.terminated[:, 0]
    rows = np.repeat(np.arange(n_steps), 1 + ends)
    dummy = np.append(False, rows[1:] == rows[:-1])[:, None]
    shown = data[rows].replace(mask=~dummy)
    before = Past().before(shown.replace(terminated=shown.terminated & ~dummy), Reader(length))
    assert not before.mask[dummy[:, 0]].any()
    check(before[~dummy[:, 0]], earlier, length)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40), st.integers(0, 1000))
def test_a_buffer_knows_what_was_before_any_of_its_rows(length, n_envs, n_steps, seed):
    stream = Stream(n_envs, seed)
    data, earlier = stream.rollout(n_steps)
    buffer = ReplayBuffer(20 * n_envs, n_envs=n_envs)
    for step in range(n_steps):
        row = data[step]
        if n_envs == 1:
            row = row[0]
        buffer.add(
            obs=row.obs,
            act=np.zeros_like(row.rew),
            rew=row.rew,
            terminated=row.terminated,
            truncated=row.truncated,
            obs_next=row.obs + 1,
        )
    kept = min(n_steps, 20)
    batch, rows = buffer.rollout(("obs", "rew"))
    oldest = data.obs[n_steps - kept]
    known = np.empty((kept, n_envs), object)
    for step, env in np.ndindex(known.shape):
        known[step, env] = [x for x in earlier[n_steps - kept + step, env] if x >= oldest[env]]
    check(before_in(buffer, rows, batch.mask, Reader(length)), known, length)


def test_transitions_alone_are_one_episode_after_the_other():
    data = Batch(obs=np.arange(5.0), rew=np.zeros(5), terminated=np.array([0, 0, 1, 0, 0], bool),
                 truncated=np.zeros(5, bool))  # fmt: skip
    before = alone(data, Reader(2))
    assert before.mask.tolist() == [[False, False], [False, True], [True, True],
                                    [False, False], [False, True]]  # fmt: skip
    assert before.obs[before.mask].tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize("shape", [(6,), (6, 4), (6, 2, 2), (6, 1, 2, 2)])
def test_transitions_alone_may_have_any_leading_dimensions(shape):
    n_envs = int(np.prod(shape[1:]))
    data, earlier = Stream(n_envs, 0).rollout(6)
    data = data.apply(lambda leaf: leaf.reshape(shape))
    data.obs = np.stack([data.obs, -data.obs], -1)
    before = alone(data, Reader(2))
    assert before.obs.shape == (*shape, 2, 2)
    assert (before.obs[..., 1] == -before.obs[..., 0]).all()
    check(before.replace(obs=before.obs[..., 0]), earlier.reshape(shape), 2)


def test_before_a_single_transition_there_is_nothing():
    data, _ = Stream(1, 0).rollout(3)
    before = alone(data[1, 0], Reader(2))
    assert before.mask.tolist() == [False, False]
    assert before.obs.shape == (2,)
    del data.terminated, data.truncated, data.cut
    assert alone(data, Reader(1)).mask[:, 0, 0].tolist() == [False, True, True]


def held(data):
    """Whether the observation was positive now and in the two rows before."""
    before = (data.before.obs > 0) & data.before.mask
    return ((data.obs > 0) & before.all(-1)).astype(np.float32)


def test_a_users_rule_may_look_back():
    reward = make_reward({"type": "function", "target": held, "history": 2, "fields": ["obs"]})
    obs = np.array([1.0, 1, 1, -1, 1, 1, 1, 1])
    data = Batch(obs=obs, rew=np.zeros(8), terminated=np.array([0] * 5 + [1, 0, 0], bool),
                 truncated=np.zeros(8, bool))  # fmt: skip
    (model,) = reward.models
    assert model.estimate(data).rew.tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert "before" not in model.estimate(data)
    items = [{"obs": x, "action": 0, "next_obs": x, "reward": 0.0, "done": False} for x in obs]
    assert [item["reward"] for item in model.estimate(items)] == [0, 0, 1, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("on_policy", [True, False])
def test_what_the_learner_sees_looks_back_too(on_policy):
    reward = make_reward({"type": "function", "target": held, "history": 2, "fields": ["obs"]})
    assert reward.learns  # it has to be shown rollouts in order
    buffer = ReplayBuffer(8, n_envs=2)
    seen = []
    for start in (0, 2, 4):
        for step in range(start, start + 2):
            buffer.add(
                obs=np.array([1.0, float(step != 2)]),
                act=np.zeros(2),
                rew=np.zeros(2),
                terminated=np.array([step == 3, False]),
                truncated=np.zeros(2, bool),
                obs_next=np.ones(2),
            )
        data, rows = buffer.rollout(("obs", "rew", "terminated", "truncated"))
        data, rows = data[-2:], rows[-2:]
        reward.collect_data(data, rows)
        if on_policy:
            seen.append(reward.resolve(data, rows, buffer).rew)
            buffer.reset()
    if not on_policy:
        _, rows = buffer.rollout(("obs",))
        seen = [reward.resolve(buffer[rows], rows, buffer).rew]
    expected = np.array([[0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1]]).T
    if not on_policy:  # the buffer holds four steps of each
        expected = np.array([[0, 0, 0, 0], [0, 0, 0, 1]]).T
    assert np.concatenate(seen).tolist() == expected.tolist()

"""The rows before a transition: of rollouts, of buffers, and of transitions of no run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.data import Batch, ReplayBuffer, Rollout
from guerdon.reward import make_reward
from guerdon.reward.transitions import as_rollout, rows_before
from tests.reward.cases import CPU


class Stream:
    """Environments whose observations number their steps, and whose episodes end at random."""

    def __init__(self, n_envs, seed):
        self.generator = np.random.default_rng(seed)
        self.episodes = [[] for _ in range(n_envs)]
        self.number = np.zeros(n_envs, int)

    def rollout(self, n_steps):
        """Transitions, and for each the observations before it in its episode."""
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
        zeros = np.zeros(shape, np.float32)
        rows = Batch(obs=obs, act=zeros, rew=zeros, terminated=done, truncated=zeros > 0)
        return rows.replace(obs_next=obs + 1), earlier

    def cut(self, env):
        self.episodes[env] = []


def check(before, earlier, history):
    for place in np.ndindex(earlier.shape):
        expected = earlier[place][-history:]
        mask = before.mask[place]
        assert mask.tolist() == [False] * (history - len(expected)) + [True] * len(expected)
        assert before.obs[place][mask].tolist() == expected


def before_rows(data, history):
    return rows_before(as_rollout(data, ("obs",)), history, ("obs",))


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(0, 1000),
    st.booleans(),
)
def test_episodes_continue_from_rollout_to_rollout(history, n_envs, steps, seed, cuts):
    stream, rollout = Stream(n_envs, seed), Rollout(6, n_envs, history)
    for number, n_steps in enumerate(steps):
        data, earlier = stream.rollout(n_steps)
        for row in data:
            rollout.add(row)
        batch, rows = rollout.rollout(("obs",))
        check(rollout.before(rows, batch.mask, history, ("obs",)), earlier, history)
        if cuts and number % 2:
            rollout.cut(np.array([0]))
            stream.cut(0)
        rollout.reset()


@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 1000))
def test_rows_that_are_no_transitions_belong_to_no_episode(history, n_steps, seed):
    data, earlier = Stream(1, seed).rollout(n_steps)
    # As an environment that resets in a step of its own: after each end comes such a row.
    ends = data.terminated[:, 0]
    rows = np.repeat(np.arange(n_steps), 1 + ends)
    dummy = np.append(False, rows[1:] == rows[:-1])[:, None]
    shown = data[rows].replace(mask=~dummy)
    before = before_rows(shown.replace(terminated=shown.terminated & ~dummy), history)
    assert not before.mask[dummy[:, 0]].any()
    check(before[~dummy[:, 0]], earlier, history)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40), st.integers(0, 1000))
def test_a_buffer_reads_what_was_before_any_of_its_rows(history, n_envs, n_steps, seed):
    data, earlier = Stream(n_envs, seed).rollout(n_steps)
    buffer = ReplayBuffer(20 * n_envs, n_envs=n_envs)
    for row in data:
        buffer.add(row, env_ids=np.arange(n_envs))
    kept = min(n_steps, 20)
    batch, rows = buffer.rollout(("obs", "rew"))
    oldest = data.obs[n_steps - kept]
    known = np.empty((kept, n_envs), object)
    for step, env in np.ndindex(known.shape):
        known[step, env] = [x for x in earlier[n_steps - kept + step, env] if x >= oldest[env]]
    check(buffer.before(rows, batch.mask, history, ("obs",)), known, history)


def test_transitions_of_no_run_are_one_episode_after_the_other():
    ends = np.array([0, 0, 1, 0, 0], bool)
    data = Batch(obs=np.arange(5.0), rew=np.zeros(5), terminated=ends)
    rollout = as_rollout(data, ("obs",))
    assert rollout.first[:, 0].tolist() == [True, False, False, True, False]
    assert rollout.mask.all()
    assert not rollout.truncated.any()
    before = before_rows(data, 2)[:, 0]
    assert before.mask.tolist() == [[False, False], [False, True], [True, True],
                                    [False, False], [False, True]]  # fmt: skip
    assert before.obs[before.mask].tolist() == [0, 0, 1, 3]


class Looking:
    """A reward function that keeps what it was called with."""

    def __call__(self, data):
        self.before = data.before
        return data.rew


@pytest.mark.parametrize("shape", [(6,), (6, 4), (6, 2, 2), (6, 1, 2, 2)])
def test_transitions_of_no_run_may_have_any_leading_dimensions(shape):
    n_envs = int(np.prod(shape[1:]))
    data, earlier = Stream(n_envs, 0).rollout(6)
    data = data.apply(lambda leaf: leaf.reshape(shape))
    data.obs, looking = np.stack([data.obs, -data.obs], -1), Looking()
    section = {"type": "function", "target": looking, "history": 2, "fields": ["obs"]}
    make_reward(section).score(data)
    before = looking.before
    assert before.obs.shape == (*shape, 2, 2)
    assert (before.obs[..., 1] == -before.obs[..., 0]).all()
    check(before.replace(obs=before.obs[..., 0]), earlier.reshape(shape), 2)


def test_before_a_single_transition_there_is_nothing():
    data, _ = Stream(1, 0).rollout(3)
    before = before_rows(data[1, 0], 2)
    assert before.mask.tolist() == [[[False, False]]]
    assert before.obs.shape == (1, 1, 2)
    del data.terminated, data.truncated
    assert before_rows(data, 1).mask[:, 0, 0].tolist() == [False, True, True]


def held(data):
    """Whether the observation was positive now and in the two rows before."""
    before = (data.before.obs > 0) & data.before.mask
    return ((data.obs > 0) & before.all(-1)).astype(np.float32)


HELD = {"type": "function", "target": held, "history": 2, "fields": ["obs"]}


def test_a_reward_function_may_read_the_rows_before():
    reward = make_reward(HELD)
    obs = np.array([1.0, 1, 1, -1, 1, 1, 1, 1])
    data = Batch(obs=obs, rew=np.zeros(8), terminated=np.array([0] * 5 + [1, 0, 0], bool))
    (model,) = reward.models
    assert model.estimate(data).rew.tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert "before" not in model.estimate(data)
    items = [{"obs": x, "action": 0, "next_obs": x, "reward": 0.0, "done": False} for x in obs]
    assert [item["reward"] for item in model.estimate(items)] == [0, 0, 1, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("on_policy", [True, False])
def test_a_learner_reads_the_rows_before(on_policy):
    reward = make_reward(HELD)
    assert reward.history == 2
    source = Rollout(2, 2, reward.history) if on_policy else ReplayBuffer(8, n_envs=2)
    seen = []
    for start in (0, 2, 4):
        for step in range(start, start + 2):
            zeros = np.zeros(2)
            row = {"obs": np.array([1.0, step != 2]), "act": zeros, "rew": zeros, "obs_next": zeros}
            source.add(row | {"terminated": [step == 3, False], "truncated": zeros > 0})
        if on_policy:
            seen.append(reward.view(source, CPU).rollout(("act",))[0].rew)
            source.reset()
    if on_policy:
        expected = np.array([[0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1]]).T
    else:  # the buffer holds four steps of each
        seen = [reward.view(source, CPU).rollout(("act",))[0].rew]
        expected = np.array([[0, 0, 0, 0], [0, 0, 0, 1]]).T
    assert np.concatenate(seen).tolist() == expected.tolist()

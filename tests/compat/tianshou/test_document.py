"""The code of Tianshou's document, with ``guerdon.compat`` before its imports."""

# ruff: noqa: ARG001, ARG002 - the documents' interfaces

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from guerdon.compat.tianshou.data import Collector, ReplayBuffer
from guerdon.compat.tianshou.policy import BasePolicy
from guerdon.data import Batch
from tests.compat.snippets import run, run_session

BATCH = """
    >>> import torch, numpy as np
    >>> from tianshou.data import Batch
    >>> data = Batch(a=4, b=[5, 5], c='2312312', d=('a', -2, -3))
    >>> # the list will automatically be converted to numpy array
    >>> data.b
    array([5, 5])
    >>> data.b = np.array([3, 4, 5])
    >>> print(data)
    Batch(
        a: 4,
        b: array([3, 4, 5]),
        c: '2312312',
        d: array(['a', '-2', '-3'], dtype=object),
    )
    >>> data = Batch(obs={'index': np.zeros((2, 3))}, act=torch.zeros((2, 2)))
    >>> data[:, 1] += 6
    >>> print(data[-1])
    Batch(
        obs: Batch(
                 index: array([0., 6., 0.]),
             ),
        act: tensor([0., 6.]),
    )
"""
BUFFER = """
    >>> import pickle, numpy as np
    >>> from tianshou.data import ReplayBuffer
    >>> buf = ReplayBuffer(size=20)
    >>> for i in range(3):
    ...     buf.add(obs=i, act=i, rew=i, done=i, obs_next=i + 1, info={})
    >>> buf.obs
    array([0., 1., 2., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.,
           0., 0., 0., 0.])
    >>> len(buf)
    3
    >>> pickle.dump(buf, open('buf.pkl', 'wb'))
    >>> buf2 = ReplayBuffer(size=10)
    >>> for i in range(15):
    ...     buf2.add(obs=i, act=i, rew=i, done=i, obs_next=i + 1, info={})
    >>> len(buf2)
    10
    >>> buf2.obs
    array([10., 11., 12., 13., 14.,  5.,  6.,  7.,  8.,  9.])
    >>> buf.update(buf2)
    array([ 0.,  1.,  2.,  5.,  6.,  7.,  8.,  9., 10., 11., 12., 13., 14.,
            0.,  0.,  0.,  0.,  0.,  0.,  0.])
    >>> batch_data, indice = buf.sample(batch_size=4)
    >>> batch_data.obs == buf[indice].obs
    array([ True,  True,  True,  True])
    >>> len(buf)
    13
    >>> buf = pickle.load(open('buf.pkl', 'rb'))
    >>> len(buf)
    3
"""
STACKED = """
    >>> import numpy as np
    >>> from tianshou.data import ReplayBuffer
    >>> buf = ReplayBuffer(size=9, stack_num=4, ignore_obs_next=True)
    >>> for i in range(16):
    ...     done = i % 5 == 0
    ...     buf.add(obs={'id': i}, act=i, rew=i, done=done,
    ...             obs_next={'id': i + 1})
    >>> print(buf)
    ReplayBuffer(
        act: array([ 9., 10., 11., 12., 13., 14., 15.,  7.,  8.]),
        done: array([0., 1., 0., 0., 0., 0., 1., 0., 0.]),
        info: Batch(),
        obs: Batch(
                 id: array([ 9., 10., 11., 12., 13., 14., 15.,  7.,  8.]),
             ),
        policy: Batch(),
        rew: array([ 9., 10., 11., 12., 13., 14., 15.,  7.,  8.]),
    )
    >>> index = np.arange(len(buf))
    >>> print(buf.get(index, 'obs').id)
    [[ 7.  7.  8.  9.]
     [ 7.  8.  9. 10.]
     [11. 11. 11. 11.]
     [11. 11. 11. 12.]
     [11. 11. 12. 13.]
     [11. 12. 13. 14.]
     [12. 13. 14. 15.]
     [ 7.  7.  7.  7.]
     [ 7.  7.  7.  8.]]
    >>> np.allclose(buf.get(index, 'obs')['id'], buf[index].obs.id)
    True
    >>> print(buf[:].obs_next.id)
    [[ 7.  8.  9. 10.]
     [ 7.  8.  9. 10.]
     [11. 11. 11. 12.]
     [11. 11. 12. 13.]
     [11. 12. 13. 14.]
     [12. 13. 14. 15.]
     [12. 13. 14. 15.]
     [ 7.  7.  7.  8.]
     [ 7.  7.  8.  9.]]
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open
@pytest.mark.parametrize("text", [BATCH, BUFFER, STACKED], ids=["batch", "buffer", "stacked"])
def test_sessions_print_what_the_document_shows(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_session(text)


def test_a_session_with_another_output_fails():
    with pytest.raises(AssertionError):
        run_session(BATCH.replace("array([5, 5])", "array([5, 6])"))


# --- the policy


class Walk:
    """An environment with the API of Gym: five steps to the right, from 0."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=5):
        self.length = length

    def seed(self, seed):
        self.seeded = seed

    def reset(self):
        self.place = 0
        return np.zeros(1, np.float32)

    def step(self, action):
        self.place += 1
        obs = np.array([self.place], np.float32)
        return obs, float(self.place), self.place == self.length, {}


class Values(np.ndarray):
    """Values of actions, with the maximum as the document takes it."""

    def max(self, dim):
        return np.asarray(self).max(dim)


TWO_STEP = """
    from tianshou.policy import BasePolicy

    class DQN_2step(BasePolicy):

        def __init__(self, model, gamma):
            super().__init__()
            self.model, self._gamma = model, gamma
            self.states = []

        def forward(self, batch, state=None, eps=0.1):
            obs = torch.as_tensor(batch.obs, dtype=torch.float32)
            if self.updating:
                return self.model(obs).detach().numpy().view(Values)
            return Batch(act=self.model(obs).argmax(-1).numpy())

        def learn(self, batch, **kwargs):
            self.learned = batch
            self.states.append((self.training, self.updating))
            return {"loss": 0.5}

        def process_fn(self, batch, buffer, indice):
            buffer_len = len(buffer)
            batch_2 = buffer[(indice + 2) % buffer_len]
            Q = self(batch_2, eps=0)  # shape: (batch_size, action_shape)
            maxQ = Q.max(dim=-1)
            batch.returns = batch.rew \\
                + self._gamma * buffer.rew[(indice + 1) % buffer_len] \\
                + self._gamma ** 2 * maxQ
            return batch
"""


def two_step():
    model = nn.Linear(1, 2)
    kind = run(TWO_STEP, torch=torch, Batch=Batch, Values=Values)["DQN_2step"]
    return kind(model, 0.5), model


@pytest.mark.parametrize("n_envs", [1, 3])
def test_process_fn_reads_two_steps_ahead(n_envs):
    policy, model = two_step()
    buffer = ReplayBuffer(size=100)
    env = Walk() if n_envs == 1 else [Walk(5 + n) for n in range(3)]
    collector = Collector(policy, env, buffer)
    result = collector.collect(n_step=12)
    assert len(buffer) >= 12
    assert result.n_step >= len(buffer)
    policy.update(8, buffer)
    assert policy.states == [(True, True)]
    assert not policy.updating
    batch, size = policy.learned, len(buffer)
    _, rows = buffer.sample(0)
    assert rows.tolist() == list(range(size))
    rewards, obs = buffer.rew[:size], buffer.obs[:size]
    values = model(torch.from_numpy(obs)).amax(-1).detach().numpy()
    at = np.flatnonzero(np.isin(rewards, batch.rew))
    expected = rewards + 0.5 * np.roll(rewards, -1) + 0.25 * np.roll(values, -2)
    assert len(at)
    assert {round(float(number), 4) for number in batch.returns} <= {
        round(float(number), 4) for number in expected[at]
    }


EVALUATE = """
    obs, done = env.reset(), False
    while not done:
        batch = Batch(obs=[obs])
        act = policy(batch).act[0]
        obs, rew, done, info = env.step(act)
"""


def test_one_episode_without_a_collector():
    policy, _ = two_step()
    env = Walk()
    left = run(EVALUATE, env=env, policy=policy, Batch=Batch)
    assert left["rew"] == env.place == 5
    assert left["act"] in (0, 1)


def test_the_states_of_a_policy():
    policy, _ = two_step()
    seen = []

    def forward(batch, state=None, eps=None):
        seen.append((policy.training, policy.updating))
        return Batch(act=np.zeros(len(batch.obs), int))

    policy.forward = forward
    collector = Collector(policy, Walk())
    collector.collect(n_step=1)
    with policy.testing():
        collector.collect(n_step=1)
    assert seen == [(True, False), (False, False)]


# --- indices and rows


@pytest.mark.parametrize("n_envs", [1, 2, 5])
def test_a_field_is_indexed_as_the_buffer_is(n_envs):
    buffer = ReplayBuffer(size=20, n_envs=n_envs)
    for i in range(3):
        rows = {"obs": i + 10 * np.arange(n_envs), "act": np.zeros(n_envs, int)}
        rows |= {
            "rew": np.full(n_envs, i),
            "done": np.full(n_envs, i == 2),
            "obs_next": rows["obs"],
        }
        buffer.add(rows, np.arange(n_envs))
    stored = buffer.stored_rows()
    assert len(stored) == 3 * n_envs
    for name in ("obs", "rew", "done", "obs_next"):
        assert getattr(buffer, name)[stored].tolist() == buffer[stored][name].tolist()
    batch, indices = buffer.sample(0)
    assert indices.tolist() == stored.tolist()
    assert batch.done.tolist() == [False, False, True] * n_envs


def test_a_list_of_three_rows_shows_three():
    names = run("from tianshou.data import ListReplayBuffer")
    buffer = names["ListReplayBuffer"]()
    for i in range(3):
        buffer.add(obs=i, act=i, rew=i, done=False, obs_next=i + 1)
    assert buffer.obs.tolist() == [0, 1, 2]
    assert buffer.obs_next.tolist() == [1, 2, 3]
    assert buffer.done.tolist() == [False] * 3
    assert "array([0, 1, 2])" in repr(buffer)


def test_prioritized_buffers_have_no_axis_of_environments():
    names = run("from tianshou.data import PrioritizedReplayBuffer")
    buffer = names["PrioritizedReplayBuffer"](8, 0.6, 0.4, n_envs=2)
    rows = {"obs": np.arange(2), "act": np.zeros(2), "rew": np.ones(2), "done": np.ones(2, bool)}
    buffer.add(**rows, obs_next=np.arange(2))
    assert buffer.obs.tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    batch, indices = buffer.sample(4)
    assert buffer.obs[indices].tolist() == batch.obs.tolist()


@pytest.mark.parametrize("single", [Walk, lambda: gymnasium.make("CartPole-v1")])
def test_one_environment_is_collected_from(single):
    class Zero(BasePolicy):
        def forward(self, batch, state=None):
            return Batch(act=np.zeros(len(batch.obs), int))

    buffer = ReplayBuffer(size=50)
    found = Collector(Zero(), single(), buffer, seed=3).collect(n_episode=2)
    assert found.n_episode == len(found.returns) == 2
    assert found.n_step == len(buffer) == sum(found.lengths)


def test_an_abandoned_episode_is_not_continued():
    policy, _ = two_step()
    buffer = ReplayBuffer(size=100)
    collector = Collector(policy, [Walk(5), Walk(9)], buffer)
    for begin in (collector.reset, lambda: None):  # collecting episodes resets, too
        collector.collect(n_step=5)
        begin()
        collector.collect(n_episode=2)
    lengths = np.diff(np.flatnonzero(buffer.done[: len(buffer)]), prepend=-1)
    assert set(lengths.tolist()) == {5, 9}


def test_truncation_of_the_older_api():
    class Limited(Walk):
        def step(self, action):
            obs, rew, done, _ = super().step(action)
            return obs, rew, done, {"TimeLimit.truncated": done}

    policy, _ = two_step()
    buffer = ReplayBuffer(size=50)
    Collector(policy, Limited(), buffer).collect(n_episode=1)
    batch, _ = buffer.sample(0)
    assert batch.truncated.tolist() == [False] * 4 + [True]
    assert not batch.terminated.any()


@pytest.mark.parametrize("n_envs", [1, 2])
def test_infos_are_stored(n_envs):
    class Fast(Walk):
        def step(self, action):
            obs, rew, done, _ = super().step(action)
            return obs, rew, done, {"speed": 3.0 * self.place}

    policy, _ = two_step()
    buffer = ReplayBuffer(size=50)
    Collector(policy, [Fast() for _ in range(n_envs)], buffer).collect(n_episode=2)
    batch, _ = buffer.sample(0)
    assert batch.info.speed.tolist() == [3.0, 6.0, 9.0, 12.0, 15.0] * 2
    without = ReplayBuffer(size=50)
    Collector(policy, Fast(), without, store_info=False).collect(n_episode=1)
    assert not without.info


def test_a_learned_reward_reaches_the_arrays_of_process_fn():
    from guerdon.reward import make_reward

    policy, _ = two_step()
    buffer = ReplayBuffer(size=100)
    Collector(policy, Walk(), buffer).collect(n_step=10)
    seen = []
    policy.process_fn = lambda batch, view, rows: seen.append((batch, view.rew[rows])) or batch
    policy.post_process_fn = lambda *given: seen.append((policy.learned, given[2]))
    policy.update(4, buffer, make_reward({"type": "constant", "value": 7.0}))
    (batch, viewed), (learned, rows) = seen
    assert learned is policy.learned
    assert len(rows) == 4
    assert isinstance(batch.rew, np.ndarray)
    assert batch.rew.tolist() == viewed.tolist() == [7.0] * 4
    assert set(batch.rew_env) <= {1.0, 2.0, 3.0, 4.0, 5.0}

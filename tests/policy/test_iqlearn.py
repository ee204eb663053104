"""Inverse soft Q-learning: its loss by hand, and what it reads."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.config import ConfigError
from guerdon.data import Batch, Demonstrations
from guerdon.policy import create_policy
from guerdon.training.run import train
from tests.rounding import assert_close

PAIR = spaces.Box(-10.0, 10.0, (2,), np.float32)
TWO = spaces.Discrete(2)
ARM = spaces.Box(-2.0, 2.0, (1,), np.float32)
LOG2, LOG3, LOG4 = np.log([2.0, 3.0, 4.0])


class Shown(torch.nn.Module):
    """Critics whose values are the observation itself, and twice that."""

    def forward(self, obs):
        return {"q_value": torch.stack([obs, 2 * obs])}


def made(action_space=TWO, **options):
    config = {"type": "iqlearn", "gamma": 0.5, "temperature": 1.0, **options}
    return create_policy(config, PAIR, action_space)


def by_hand(**options):
    policy = made(**options)
    policy.critic = policy.critic_target = Shown()
    return policy


def two_rows():
    """One transition of the policy, after which the episode ends, and one of the expert."""
    return Batch(
        obs=np.float32([[0.0, 0.0], [0.0, LOG3]]),
        act=np.array([0, 1]),
        obs_next=np.float32([[0.0, LOG3], [0.0, 0.0]]),
        terminated=np.array([True, False]),
        is_expert=np.array([False, True]),
    ).to_device(torch.device("cpu"))


# Of the expert's transition with the first critic: Q = log 3, V = log 4, V' = log 2.
# With the second: Q = 2 log 3, V = log(1 + 9), V' = log 2.
REWARDS = np.array([LOG3 - 0.5 * LOG2, 2 * LOG3 - 0.5 * LOG2])


def test_the_loss_of_the_values_of_the_policy_and_the_expert():
    # Without those of the policy, values outside the demonstrations are only extrapolated.
    policy = by_hand(alpha=0.5)
    loss, _ = policy.loss(policy.process_fn(two_rows(), None, None))
    of_policy, of_expert = LOG2, np.mean([LOG4, np.log(10.0)]) - 0.5 * LOG2
    penalty = np.mean(np.square([0.0, REWARDS[0], 0.0, REWARDS[1]])) / (4 * 0.5)
    value = (of_policy + of_expert) / 2
    assert float(loss) == pytest.approx(value - REWARDS.mean() + penalty, rel=1e-5)


def test_the_loss_of_the_values_of_the_expert():
    policy = by_hand(alpha=0.5, method="value_expert")
    loss, reward = policy.loss(policy.process_fn(two_rows(), None, None))
    assert_close(reward, [[0.0, REWARDS[0]], [0.0, REWARDS[1]]])
    value = np.mean([LOG4, np.log(10.0)]) - 0.5 * LOG2
    penalty = np.mean(np.square([0.0, REWARDS[0], 0.0, REWARDS[1]])) / (4 * 0.5)
    assert float(loss) == pytest.approx(value - REWARDS.mean() + penalty, rel=1e-5)


def test_the_loss_of_the_values_of_first_observations():
    policy = by_hand(method="v0", alpha=2.0)
    policy.first_obs = np.float32([[0.0, LOG3]])
    loss, _ = policy.loss(policy.process_fn(two_rows(), None, None))
    penalty = np.mean(np.square([0.0, REWARDS[0], 0.0, REWARDS[1]])) / (4 * 2.0)
    start = 0.5 * np.mean([LOG4, np.log(10.0)])
    assert float(loss) == pytest.approx(start - REWARDS.mean() + penalty, rel=1e-5)


def test_the_recovered_reward_is_q_minus_the_next_value():
    found = by_hand().recovered_reward(two_rows())
    assert_close(found, [0.0, REWARDS.mean()])


def test_actions_are_sampled_by_their_values():
    policy = by_hand(temperature=1.5)  # the critics' mean of 1.5 log 3 is 3 times as likely
    obs = np.tile(np.float32([0.0, LOG3]), (8_000, 1))
    assert np.mean(policy(Batch(obs=obs)).act) == pytest.approx(0.75, abs=0.02)
    assert (policy.predict(obs[:9]) == 1).all()
    log_prob = policy.log_prob(obs[:2], torch.tensor([0, 1]))
    assert_close(log_prob.exp(), [0.25, 0.75])


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
def test_half_of_a_batch_is_demonstrated(action_space):
    policy, generator = made(action_space, temperature="auto"), np.random.default_rng(0)
    act = np.stack([np.asarray(action_space.sample()) for _ in range(20)])
    ends = np.arange(20) == 19
    episode = Batch(
        obs=generator.normal(size=(20, 2)).astype("f4"), act=act, rew=np.zeros(20),
        terminated=ends, truncated=ends & False, obs_next=np.ones((20, 2), np.float32),
    )  # fmt: skip
    policy.load_expert_data(Demonstrations([episode, episode[:5]]))
    np.testing.assert_array_equal(policy.first_obs, episode.obs[[0, 0]])
    buffer = policy.make_buffer(64, 1, 0)
    for _ in range(10):
        buffer.add(obs=np.full(2, 9.0, np.float32), act=act[0], rew=7.0, terminated=False,
                   truncated=False, obs_next=np.full(2, 9.0, np.float32))  # fmt: skip
    batch, indices = policy.read(8, buffer, policy.fields)
    assert len(indices) == 4
    assert batch.is_expert.tolist() == [False] * 4 + [True] * 4
    assert (batch.obs[:4] == 9).all()
    assert {row.tobytes() for row in batch.obs[4:].numpy()} <= {x.tobytes() for x in episode.obs}
    metrics = policy.update(8, buffer)
    assert all(np.isfinite(float(value)) for value in metrics.values())


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'v0' needs the first observations of episodes"):
        made(method="v0", subsample=20)
    with pytest.raises(ConfigError, match=r"'policy.n_step' has no effect, since iqlearn has no"):
        made(n_step=3)
    with pytest.raises(ValueError, match=r"iqlearn learns from demonstrations: set 'policy.expert"):
        made().load_expert_data()
    options = ("cartpole_fixed_iqlearn", "reward=gail", f"run.dir={tmp_path / 'run'}")
    with pytest.raises(ConfigError, match="'reward' is set, but iqlearn learns from no reward"):
        train(*options, display="none")

"""A rollout and a replay buffer that hold the same transitions teach a policy the same."""

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from guerdon.collect import Collector
from guerdon.data import ReplayBuffer, Rollout
from guerdon.envs import make_vec
from guerdon.reward import make_reward
from tests.collect.acting import backend_vector, make_collector, modes_vector
from tests.envs.walking import Pattern
from tests.policy.cases import CASES, N_ENVS, assert_same_weights, hashed, make_env, make_policy
from tests.policy.hand import processed

ON_POLICY = ["ppo", "ppo_continuous", "a2c", "a2c_continuous", "impala", "impala_continuous"]
HASH = {"type": "function", "target": hashed, "fields": ("obs",)}
REWARDS = {
    "none": None,
    "env": {"type": "env"},
    "function": HASH,
    "both": {"terms": {"env": {"weight": 0.5}, "function": HASH}, "scale": 2.0, "clip": (-1, 1)},
}
CPU = torch.device("cpu")


def containers():
    return Rollout(15, N_ENVS), Rollout(1, N_ENVS, storage="cpu"), ReplayBuffer(400, N_ENVS)


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("case", ON_POLICY)
def test_a_rollout_and_a_replay_buffer_give_the_same_updates(case, name):
    id_, length = CASES[case].env
    learned = []
    for buffer in containers():
        # Every row is a transition: with reset rows between them, the order of rows would differ.
        env = make_vec(id_, N_ENVS, backend="base", max_episode_steps=length)
        policy, section = make_policy(CASES[case]), REWARDS[name]
        reward = section and make_reward(section)
        collector = Collector(policy, env, buffer, seed=3)
        metrics = []
        for _ in range(3):
            collector.collect(n_step=60)
            metrics.append(policy.update(16, buffer, reward, repeat=2))
            buffer.reset()
        learned.append((policy, [{k: float(v) for k, v in each.items()} for each in metrics]))
    for policy, metrics in learned[1:]:
        assert_same_weights(learned[0][0], policy)
        assert metrics == learned[0][1]


@pytest.mark.parametrize("case", ON_POLICY)
def test_reset_rows_and_unequal_columns_change_no_advantage(case):
    found = []
    for buffer in containers():
        policy = make_policy(CASES[case])
        Collector(policy, make_env(CASES[case]), buffer, seed=3).collect(n_episode=10)
        rows = processed(policy, buffer)
        assert len(rows.advantage) == len(buffer) < np.prod(buffer.rollout()[0].mask.shape)
        found.append(rows[np.lexsort(rows.obs.numpy().T)])
    for other in found[1:]:
        for key, value in found[0].items():
            torch.testing.assert_close(value, other[key], rtol=1e-5, atol=1e-5)


# --- rewards that read earlier rows

PATTERNS = [Pattern((3, 11), (False, True)), Pattern((1,)), Pattern((7, 2), (True, False))]


def steps_before(data):
    """The steps of this row and of the two before, as the digits of a number."""
    steps = np.where(data.before.mask, data.before.obs[..., 2] + 1, 0)
    return data.obs[..., 2] + 1 + 100 * steps[..., 1] + 10_000 * steps[..., 0]


def by_hand(obs):
    step = obs[..., 2].astype(int) + 1
    return step + 100 * np.maximum(step - 1, 0) + 10_000 * np.maximum(step - 2, 0)


LOOKS_BACK = {"type": "function", "target": steps_before, "fields": ("obs",), "history": 2}


def history_vector(kind, **options):
    if isinstance(kind, AutoresetMode):
        return modes_vector(kind, PATTERNS)
    return backend_vector(kind, PATTERNS, **options)


def resolved(reward, buffer):
    """Observations and rewards of all transitions of a buffer."""
    batch, _ = reward.view(buffer, CPU).rollout(("obs",))
    return batch.obs[batch.mask].numpy(), batch.rew[batch.mask].numpy()


FAILING = {"own": [{"fails_at": 9}, {}, {"fails_at": 6}], "max_restarts": 99}


@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, {}) for kind in (*AutoresetMode, "base", "async_subprocess")]
    + [pytest.param("subprocess", FAILING, id="failing")],
)
@pytest.mark.parametrize("n_step", [3, 4, 10, 31])
def test_earlier_rows_are_read_across_rollouts_as_from_a_replay_buffer(kind, options, n_step):
    reward = make_reward(LOOKS_BACK)
    with history_vector(kind, **options) as env:
        collector = Collector(make_collector(env).policy, env, Rollout(4, 3, reward.history))
        for _ in range(60 // n_step):
            collector.collect(n_step=n_step)
            obs, rew = resolved(reward, collector.buffer)
            np.testing.assert_array_equal(rew, by_hand(obs))
            collector.buffer.reset()
    with history_vector(kind, **options) as env:
        collector = make_collector(env)
        for _ in range(60 // n_step):
            collector.collect(n_step=n_step)
        obs, rew = resolved(reward, collector.buffer)
        np.testing.assert_array_equal(rew, by_hand(obs))
        batch, _ = reward.view(collector.buffer, CPU).sample(32, length=3, fields=("obs",))
        np.testing.assert_array_equal(batch.rew[batch.mask], by_hand(batch.obs.numpy())[batch.mask])


def test_breaking_off_forgets_earlier_rows():
    reward, env = make_reward(LOOKS_BACK), history_vector("base")
    collector = Collector(make_collector(env).policy, env, Rollout(4, 3, reward.history))
    for _ in range(3):
        collector.collect(n_step=6)
        obs, rew = resolved(reward, collector.buffer)
        np.testing.assert_array_equal(rew, by_hand(obs))
        collector.buffer.reset()
        collector.break_off()

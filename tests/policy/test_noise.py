"""Noise on actions while collecting."""

import numpy as np
import pytest
import torch

from guerdon.collect import Collector
from guerdon.data import Batch
from guerdon.envs import make_vec
from guerdon.policy import create_policy
from guerdon.policy.noise import NoiseConfig, add_noise


def draws(config, steps, seed=0):
    generator, state, found = torch.Generator().manual_seed(seed), None, []
    for _ in range(steps):
        act, state = add_noise(torch.zeros(3, 2), state, config, generator)
        found.append(act)
    return torch.stack(found)


def test_without_noise_nothing_is_drawn():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    act = torch.rand(3, 2)
    assert add_noise(act, None, NoiseConfig(), generator) == (act, None)
    assert torch.equal(generator.get_state(), before)


def test_independent_noise_is_normal():
    generator = torch.Generator().manual_seed(0)
    found = draws(NoiseConfig(exploration_noise=0.2), 4)
    expected = [torch.empty(3, 2).normal_(generator=generator) * 0.2 for _ in range(4)]
    torch.testing.assert_close(found, torch.stack(expected))


def test_correlated_noise_keeps_a_share_of_the_noise_before():
    plain = draws(NoiseConfig(exploration_noise=0.01), 5)
    found = draws(NoiseConfig(exploration_noise=0.01, noise_correlation=0.5), 5)
    expected = torch.zeros(3, 2)
    for step in range(5):
        expected = 0.5 * expected + plain[step]
        torch.testing.assert_close(found[step], expected)


def test_noisy_actions_stay_within_bounds():
    assert draws(NoiseConfig(exploration_noise=5.0), 10).abs().max() == 1.0


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_noise_starts_at_zero_with_each_episode_and_not_in_tests(name):
    env = make_vec("Pendulum-v1", 2, max_episode_steps=3)
    noisy = {"exploration_noise": 0.3, "noise_correlation": 0.9}
    policy = create_policy({"type": name, **noisy}, env.observation_space, env.action_space, seed=1)
    seen = []
    forward = policy.forward

    def watched(batch, state=None):
        seen.append(None if state is None else state.clone())
        return forward(batch, state)

    policy.forward = watched
    collector = Collector(policy, env, policy.make_buffer(100, 2, 0), seed=0)
    collector.collect(n_step=10)
    assert seen[0] is None
    assert [bool(state.any()) for state in seen[1:]] == [True, True, False, True]
    policy.eval()
    obs = np.zeros((2, 3), np.float32)
    first, second = (forward(Batch(obs=obs)) for _ in range(2))
    assert "state" not in first
    np.testing.assert_array_equal(first.act, second.act)

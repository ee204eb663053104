"""EPIC on a case small enough for paper, and its laws on random tables."""

import numpy as np
import pytest
import torch

from guerdon import ops
from tests.rounding import assert_close

N, A, GAMMA = 5, 3, 0.9


def canonical(table, gamma):
    """Canonically shaped rewards of a table [s, a, s'], with uniform actions and states."""
    table = torch.as_tensor(table, dtype=torch.float64)
    mean = table.mean((1, 2))
    s, a, after = (part.flatten() for part in torch.meshgrid(
        *(torch.arange(n) for n in table.shape), indexing="ij"
    ))  # fmt: skip
    return ops.canonical_reward(table[s, a, after], mean[s], mean[after], mean.mean(), gamma)


def distance(one, other):
    return float(ops.pearson_distance(canonical(one, GAMMA), canonical(other, GAMMA)))


def table(seed):
    return np.random.default_rng(seed).normal(size=(N, A, N))


def test_a_case_by_hand():
    # Two states, one action, gamma 1/2. R(0, 0) = 0, R(0, 1) = 4, R(1, 0) = 2, R(1, 1) = 0. The
    # means are 2 and 1, and 3/2 over all, so that 3/4 is subtracted everywhere:
    # 0 + 1 - 2, 4 + 1/2 - 2, 2 + 1 - 1, 0 + 1/2 - 1.
    rewards = np.array([[[0.0, 4.0]], [[2.0, 0.0]]])
    expected = np.array([-1.0, 2.5, 2.0, -0.5]) - 0.75
    assert_close(canonical(rewards, 0.5), expected)
    # Reward 1 for entering state 1: all means are 1/2, so that 1/2 is subtracted.
    other = canonical(np.array([[[0.0, 1.0]], [[0.0, 1.0]]]), 0.5)
    assert_close(other, [-0.5, 0.5, -0.5, 0.5])
    # Centred: -7/4, 7/4, 5/4, -5/4 and -1/2, 1/2, -1/2, 1/2. Their products sum to
    # 7/8 + 7/8 - 5/8 - 5/8 = 1/2, and their squares to 148/16 and 1.
    found = float(ops.pearson_distance(canonical(rewards, 0.5), other))
    assert found == pytest.approx(np.sqrt((1 - 0.5 / np.sqrt(148 / 16)) / 2))


@pytest.mark.parametrize("seed", range(5))
def test_scale_and_shaping_are_no_difference(seed):
    reward, potential = table(seed), np.random.default_rng(seed + 50).normal(size=N)
    shaping = GAMMA * potential[None, None, :] - potential[:, None, None]
    assert distance(reward, 3.5 * reward + 2.0 + 7 * shaping) == pytest.approx(0, abs=1e-6)
    assert distance(reward, -reward + shaping) == pytest.approx(1)
    assert distance(reward, reward + 7 * shaping**2) > 0.1  # not a shaping


def test_unrelated_rewards_are_at_the_square_root_of_a_half():
    found = [distance(table(seed), table(seed + 100)) for seed in range(50)]
    assert np.mean(found) == pytest.approx(np.sqrt(0.5), abs=0.02)


def test_it_is_a_distance():
    for seed in range(20):
        a, b, c = (table(3 * seed + i) for i in range(3))
        assert distance(a, b) == pytest.approx(distance(b, a))
        assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


def test_constants_have_no_distance():
    assert torch.isnan(ops.pearson_distance(torch.zeros(4), torch.arange(4.0)))
    with pytest.raises(ValueError, match="same shape"):
        ops.pearson_distance(torch.zeros(4), torch.zeros(3))

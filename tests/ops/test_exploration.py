import math

import pytest
import torch

from guerdon.ops.exploration import (
    epsilon_greedy,
    epsilon_greedy_sample,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# --- schedules


def test_a_linear_epsilon_arrives_and_stays():
    epsilon = epsilon_greedy(1.0, 0.1, 100, "linear")
    assert [epsilon(step) for step in (0, 50, 100, 200)] == pytest.approx([1, 0.55, 0.1, 0.1])


def test_an_exponential_epsilon_shrinks_by_e_each_decay():
    epsilon = epsilon_greedy(start=0.95, end=0.05, decay=10, type="exp")
    assert [epsilon(step) for step in (0, 10, 20)] == pytest.approx(
        [0.95, 0.05 + 0.9 / math.e, 0.05 + 0.9 / math.e**2]
    )
    assert epsilon(10**6) == pytest.approx(0.05)


def test_a_schedule_may_rise_and_starts_at_its_start():
    schedule = epsilon_greedy(0.4, 1.0, 10, "linear")
    assert [schedule(step) for step in (-3, 5, 99)] == pytest.approx([0.4, 0.7, 1.0])


def test_unknown_types_and_empty_schedules_are_refused():
    with pytest.raises(ValueError, match="'linear' and 'exp', not 'cosine'"):
        epsilon_greedy(1, 0, 10, "cosine")
    for kind in ("linear", "exp"):
        with pytest.raises(ValueError, match="positive"):
            epsilon_greedy(1, 0, 0, kind)


# --- random actions


def test_without_epsilon_the_best_action_is_taken():
    q_value = torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    assert epsilon_greedy_sample(q_value, 0.0, seeded()).tolist() == [1, 0]


def test_epsilon_is_the_share_of_random_actions():
    q_value = torch.tensor([0.0, 0.0, 1.0, 0.0]).expand(100_000, 4)
    for epsilon in (0.2, 1.0):
        act = epsilon_greedy_sample(q_value, epsilon, seeded())
        share = torch.bincount(act, minlength=4) / 100_000
        # a random action is each of the four; 5 standard deviations are below 0.007
        each = epsilon / 4
        assert share.tolist() == pytest.approx([each, each, each + 1 - epsilon, each], abs=0.007)


def test_random_actions_follow_the_generator():
    q_value = torch.zeros(50, 6)
    first = epsilon_greedy_sample(q_value, 0.5, seeded(1))
    assert torch.equal(first, epsilon_greedy_sample(q_value, 0.5, seeded(1)))
    assert not torch.equal(first, epsilon_greedy_sample(q_value, 0.5, seeded(2)))

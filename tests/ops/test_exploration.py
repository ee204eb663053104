import math

import numpy as np
import pytest
import torch

from guerdon.ops.exploration import (
    GaussianNoise,
    OrnsteinUhlenbeckNoise,
    epsilon_greedy,
    epsilon_greedy_sample,
    linear_schedule,
)


def seeded(kind, seed=0):
    if kind == "numpy":
        return np.random.default_rng(seed)
    return torch.Generator().manual_seed(seed)


def zeros(kind, *shape):
    return np.zeros(shape, np.float32) if kind == "numpy" else torch.zeros(shape)


@pytest.fixture(params=["numpy", "torch"])
def kind(request):
    return request.param


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
    schedule = linear_schedule(0.4, 1.0, 10)
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
    assert epsilon_greedy_sample(q_value, 0.0, seeded("torch")).tolist() == [1, 0]


def test_epsilon_is_the_share_of_random_actions():
    q_value = torch.tensor([0.0, 0.0, 1.0, 0.0]).expand(100_000, 4)
    for epsilon in (0.2, 1.0):
        act = epsilon_greedy_sample(q_value, epsilon, seeded("torch"))
        share = torch.bincount(act, minlength=4) / 100_000
        # a random action is each of the four; 5 standard deviations are below 0.007
        each = epsilon / 4
        assert share.tolist() == pytest.approx([each, each, each + 1 - epsilon, each], abs=0.007)


def test_random_actions_follow_the_generator():
    q_value = torch.zeros(50, 6)
    first = epsilon_greedy_sample(q_value, 0.5, seeded("torch", 1))
    assert torch.equal(first, epsilon_greedy_sample(q_value, 0.5, seeded("torch", 1)))
    assert not torch.equal(first, epsilon_greedy_sample(q_value, 0.5, seeded("torch", 2)))


# --- noise


def test_gaussian_noise_has_its_scale_and_its_bound(kind):
    act = zeros(kind, 50_000, 2)
    noise = GaussianNoise(0.3, seeded(kind))(act)
    assert type(noise) is type(act)
    assert noise.dtype == act.dtype
    assert float(noise.mean()) == pytest.approx(0, abs=0.006)
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)
    bounded = GaussianNoise(0.3, seeded(kind), clip=0.2)(act)
    np.testing.assert_array_equal(bounded, noise.clip(-0.2, 0.2))


def test_noise_follows_the_generator(kind):
    act = zeros(kind, 4, 2)
    for noise in (GaussianNoise, OrnsteinUhlenbeckNoise):
        one, two = noise(1.0, seeded(kind)), noise(1.0, seeded(kind))
        for _ in range(3):
            np.testing.assert_array_equal(one(act), two(act))


def test_ornstein_uhlenbeck_noise_wanders_back(kind):
    act = zeros(kind, 2, 1)
    draw = GaussianNoise(1.0, seeded(kind))  # the same random numbers
    pushes = [draw(act) for _ in range(3)]
    noise = OrnsteinUhlenbeckNoise(0.2, seeded(kind), theta=0.5, dt=0.25)
    first, second = noise(act), noise(act)
    # scale * sqrt(dt) = 0.1, and 1 - theta * dt = 0.875 of what was
    np.testing.assert_allclose(first, 0.1 * pushes[0], rtol=1e-6)
    np.testing.assert_allclose(second, 0.875 * first + 0.1 * pushes[1], rtol=1e-6)


def test_noise_of_an_ended_episode_starts_again(kind):
    act = zeros(kind, 2, 1)
    noise = OrnsteinUhlenbeckNoise(0.0, seeded(kind), theta=0.5)
    noise.state = act + 1
    given = noise(act)
    assert given.tolist() == [[0.5], [0.5]]
    noise.reset(np.array([True, False]) if kind == "numpy" else torch.tensor([True, False]))
    assert given.tolist() == [[0.5], [0.5]]
    assert noise(act).tolist() == [[0], [0.25]]
    noise.reset()
    assert noise(act).tolist() == [[0], [0]]


def test_a_changed_number_of_rows_is_refused(kind):
    noise = OrnsteinUhlenbeckNoise(1.0, seeded(kind))
    noise(zeros(kind, 2, 1))
    with pytest.raises(ValueError, match=r"reset\(\)"):
        noise(zeros(kind, 3, 1))


def test_the_wrong_kind_of_generator_is_refused():
    with pytest.raises(TypeError, match="numpy's Generator"):
        GaussianNoise(1.0, seeded("torch"))(zeros("numpy", 2))

import copy
import math
import warnings

import numpy as np
import pytest
import torch

from guerdon.data.demonstrations import split_rows
from guerdon.reward import Setting, create_reward_model
from guerdon.reward.red import RED, _noise, choose_sigma
from tests.reward.experts import (
    ARM,
    IMAGE,
    TWO,
    VECTOR,
    as_items,
    demonstrations,
    noise,
    rows,
    transitions,
)
from tests.rounding import assert_close


def make(observation_space=VECTOR, action_space=TWO, experts=None, **options):
    setting = Setting(observation_space, action_space, n_envs=4, seed=1)
    model = RED({"type": "red", "update_per_collect": 300, **options}, setting)
    model.load_expert_data(experts or noise(observation_space, action_space))
    return model


def on_a_curve(seed, n_rows=200, spread=0.0):
    """States on a circle; the action is the half of it that the state is on."""
    generator = np.random.default_rng(seed)
    angle = generator.uniform(0, 2 * np.pi, n_rows)
    obs = np.stack([np.cos(angle), np.sin(angle), np.zeros(n_rows)], -1)
    obs = (obs + spread * generator.normal(size=obs.shape)).astype(np.float32)
    return rows(obs, (angle < np.pi).astype(np.int64))


def curves():
    return demonstrations(*(on_a_curve(seed) for seed in range(5)), action_space=TWO)


# --- the formula


def test_the_reward_is_exp_of_minus_sigma_times_the_error():
    model, data = make(sigma=2.5), transitions((6,))
    with torch.no_grad():
        tensors = model.tensors(data)
        difference = model.network.predictor(tensors) - model.network.target(tensors)
    expected = np.exp(-2.5 * np.square(difference.numpy()).mean(-1))
    assert_close(model.estimate(data).rew, expected)
    assert 0 < expected.min() < expected.max() < 1


@pytest.mark.parametrize(
    ("held_out", "perturbed", "expected"),
    [
        ([1e-4], [0.1], math.log(5) / 0.1),
        # x + x^2 = 2 * 0.2 for x = exp(-0.1 sigma)
        ([1e-4, 2e-4], [0.1, 0.2], -math.log((math.sqrt(2.6) - 1) / 2) / 0.1),
        # Held-out demonstrations limit it: exp(-0.05 sigma) = 0.7.
        ([0.05], [0.1], -math.log(0.7) / 0.05),
        # A predictor that fits well does not raise it.
        ([0.0], [0.1], math.log(5) / 0.1),
    ],
)
def test_sigma_is_chosen_by_rewards_of_demonstrations(held_out, perturbed, expected):
    sigma = choose_sigma(torch.tensor(held_out), torch.tensor(perturbed))
    assert sigma == pytest.approx(expected, rel=1e-5)


def test_perturbed_demonstrations_have_small_rewards_and_held_out_ones_large_rewards():
    model = make(experts=curves(), update_per_collect=1000)
    metrics = model.train()
    assert metrics["sigma"] == model.network.sigma
    assert metrics["perturbed_reward"] == pytest.approx(0.2, rel=1e-3)
    assert metrics["held_out_reward"] > 0.7
    rows = model.held_out
    noise = rows.apply(lambda leaf: _noise(leaf, np.random.default_rng(0)))
    with torch.no_grad():
        assert 0.1 < model.network(noise).mean() < 0.3
        assert model.network(rows).mean() == pytest.approx(metrics["held_out_reward"].item())


@pytest.mark.filterwarnings("ignore:red: ")
def test_a_given_sigma_is_used():
    model = make(experts=curves(), sigma=40.0)
    assert model.train()["sigma"] == 40.0
    assert model.network.sigma == 40.0


# --- training


def test_it_is_trained_once():
    model = make(experts=curves(), update_per_collect=150)
    metrics = model.train()
    assert set(metrics) == {"loss", "error", "sigma", "held_out_reward", "perturbed_reward"}
    assert model.trained == 150
    before = copy.deepcopy(model.network.state_dict())
    assert model.train() is None
    assert model.pretrain() is None
    assert model.trained == 150
    for name, value in model.network.state_dict().items():
        assert torch.equal(value, before[name])


def test_pretraining_replaces_training():
    model = make(experts=curves())
    assert model.pretrain()["held_out_reward"] > 0.7
    assert model.train() is None


def test_the_target_is_frozen_and_the_predictor_learns():
    model = make(experts=curves())
    before = copy.deepcopy(model.network)
    model.train()
    for name, value in model.network.target.named_parameters():
        assert torch.equal(value, dict(before.target.named_parameters())[name])
    assert model.network.error(model.expert).mean() < 0.1 * before.error(model.expert).mean()


def test_demonstrations_have_the_largest_rewards():
    model = make(experts=curves(), update_per_collect=1000)
    model.train()
    like, beside, wrong = on_a_curve(9), on_a_curve(9, spread=0.3), on_a_curve(9)
    wrong.act = 1 - wrong.act
    rew = [model.estimate(data).rew.mean() for data in (like, beside, wrong)]
    assert rew[0] > 0.9
    assert rew[1] < 0.6 * rew[0]
    assert rew[2] < 0.75 * rew[0]


def test_the_policys_transitions_are_not_used():
    first, second = make(experts=curves()), make(experts=curves())
    first.collect_data(transitions((30, 4)))
    first.train()
    second.train()
    assert first.collects == ()
    data = transitions((5,))
    np.testing.assert_array_equal(first.estimate(data).rew, second.estimate(data).rew)


@pytest.mark.parametrize(
    ("sigma", "message"),
    [
        (1e-6, r"perturbed demonstrations have a mean reward of 1\.0, .* or a larger 'sigma'"),
        (1e6, r"perturbed demonstrations have a mean reward of 0\.0, .* set a smaller 'sigma'"),
        (1e6, r"held-out demonstrations have a mean reward of 0\..*, which is below 0\.7"),
    ],
)
@pytest.mark.filterwarnings("ignore:red: ")
def test_rewards_out_of_range_are_a_warning(sigma, message):
    model = make(experts=curves(), sigma=sigma)
    with pytest.warns(UserWarning, match=message):
        model.train()


def test_a_predictor_that_does_not_tell_noise_from_demonstrations_is_a_warning():
    model = make(IMAGE, update_per_collect=1)  # demonstrations of noise
    with pytest.warns(UserWarning, match="red: .* perturbed demonstrations have"):
        metrics = model.train()
    assert metrics["held_out_reward"] == pytest.approx(0.7, rel=1e-3)


def test_rewards_in_range_are_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(experts=curves()).train()


# --- demonstrations


def test_whole_episodes_are_held_out():
    lengths = np.array([3, 5, 2, 4, 6])
    fitted, held_out = split_rows(lengths, 0.2, np.random.default_rng(0))
    assert sorted([*fitted, *held_out]) == list(range(20))
    episode = np.repeat(np.arange(5), lengths)
    assert set(episode[fitted]) & set(episode[held_out]) == set()
    assert len(set(episode[held_out])) == 1


@pytest.mark.parametrize(("n_rows", "expected"), [(1, (1, 1)), (2, (1, 1)), (20, (16, 4))])
def test_of_a_single_episode_rows_are_held_out(n_rows, expected):
    fitted, held_out = split_rows(np.array([n_rows]), 0.2, np.random.default_rng(0))
    assert (len(fitted), len(held_out)) == expected
    assert n_rows == 1 or not set(fitted) & set(held_out)


def test_the_sample_size_is_the_number_of_rows_to_fit():
    assert len(make(experts=curves(), sample_size=50).expert["act"]) == 50
    assert len(make(experts=curves(), sample_size=None).expert["act"]) == 800
    assert len(make(experts=curves(), sample_size=100_000).expert["act"]) == 800
    assert len(make(experts=curves()).held_out["act"]) == 200


def test_inputs_are_normalised_by_the_demonstrations():
    wide = demonstrations(rows(curves().transitions().obs * 1000, curves().transitions().act))
    model = make(experts=wide)
    normalizer = model.network.predictor.input.normalizers["obs"]
    np.testing.assert_allclose(normalizer.scale[:2], 1.4e-3, rtol=0.05)
    assert torch.equal(model.network.target.input.normalizers["obs"].scale, normalizer.scale)


def test_noise_has_three_times_the_spread_and_the_same_dtypes():
    generator = np.random.default_rng(0)
    assert _noise(torch.randn(500, 3), generator).std() == pytest.approx(3.0, rel=0.1)
    image = torch.arange(500, dtype=torch.uint8).view(125, 4)
    drawn = _noise(image, generator)
    assert drawn.dtype == torch.uint8
    assert sorted(drawn.ravel().tolist()) == sorted(image.ravel().tolist())
    assert sorted(_noise(torch.tensor([1, 3, 3]), generator).tolist()) == [1, 3, 3]


# --- the interface


@pytest.mark.filterwarnings("ignore:red: ")
@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("observation_space", [VECTOR, IMAGE], ids=["vectors", "images"])
def test_spaces(observation_space, action_space):
    model = make(observation_space, action_space, update_per_collect=3)
    model.train()
    data = transitions((5, 4), observation_space, action_space)
    rew = model.estimate(data).rew
    assert rew.shape == (5, 4)
    assert len(np.unique(rew)) == 20
    data.act = data.act[::-1].copy()
    assert (model.estimate(data).rew != rew).any()


def test_the_score_of_a_transition_depends_on_nothing_else():
    model, data = make(experts=curves()), transitions((8, 4))
    model.train()
    before = copy.deepcopy(data)
    whole = model.estimate(data).rew
    np.testing.assert_array_equal(model.estimate(data).rew, whole)
    pieces = [model.estimate(data[i]).rew for i in range(8)]
    assert_close(np.stack(pieces), whole, rtol=1e-4)
    order = np.random.default_rng(0).permutation(8)
    assert_close(model.estimate(data[order]).rew, whole[order], rtol=1e-4)
    assert data == before


def test_estimate_returns_a_list_for_a_list():
    model, data = make(experts=curves()), transitions((6,))
    items = as_items(data)
    found = model.estimate(items)
    assert [item["reward"] for item in items] == [7.0] * 6
    assert [item["reward"] for item in found] == model.estimate(data).rew.tolist()


def test_it_works_outside_a_run_by_the_documented_calls():
    config = {"type": "red", "update_per_collect": 300}
    model = create_reward_model(config, Setting.of(curves()))
    model.load_expert_data(curves())
    model.train()
    model.clear_data(iter=1)
    assert model.estimate(as_items(on_a_curve(9, 4)))[0]["reward"] > 0


@pytest.mark.filterwarnings("ignore:red: ")
def test_a_resumed_model_trains_exactly_as_the_first():
    model, other = make(experts=curves()), make(experts=curves())
    model.fit(20)
    other.load_training_state(model.training_state())
    model.fit(20)
    other.fit(20)
    data = transitions((6,))
    np.testing.assert_array_equal(other.estimate(data).rew, model.estimate(data).rew)


def test_a_trained_state_needs_no_demonstrations_and_no_training():
    model = make(experts=curves())
    model.train()
    other = RED({"type": "red", "update_per_collect": 300}, Setting(VECTOR, TWO, seed=5))
    other.load_training_state(model.training_state())
    data = transitions((6,))
    np.testing.assert_array_equal(other.estimate(data).rew, model.estimate(data).rew)
    assert other.fitted
    assert other.train() is None

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.reward import REWARDS, make_reward
from guerdon.reward.base import Setting
from guerdon.reward.curiosity import InverseModel, Moments
from guerdon.reward.scaling import ReturnScaler
from tests.reward.curious import ARM, IMAGE, NAMES, TWO, VECTOR, feed, make, rollout


def trained(name, rounds=2, **options):
    model = make(name, **options)
    for seed in range(rounds):
        feed(model, rollout(seed=seed))
        model.train()
    return model


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("observation_space", [VECTOR, IMAGE], ids=["vectors", "images"])
@pytest.mark.parametrize("name", NAMES)
def test_it_takes_vectors_and_images_and_actions_of_both_kinds(
    name, observation_space, action_space
):
    model = make(name, observation_space, action_space)
    data = feed(model, rollout((6, 4), observation_space, action_space))
    assert model.train()["loss"] > 0
    rew = model.estimate(data).rew
    assert rew.shape == (6, 4)
    assert (rew > 0).all()


def test_what_images_always_show_is_nothing_to_look_at():
    model, data = make("rnd", IMAGE), rollout((6, 4), IMAGE)
    brighter = data.replace(obs_next=(data.obs_next // 4 + 150).astype(np.uint8))
    feed(model, brighter)
    pixels = model.network.target.input.normalizers["obs"](torch.from_numpy(brighter.obs_next))
    assert abs(pixels.mean()) < 1e-5
    assert pixels.std() == pytest.approx(1.0, abs=0.01)
    assert model.network.predictor.input.normalizers is model.network.target.input.normalizers


@pytest.mark.parametrize("name", NAMES)
def test_it_takes_observations_of_several_parts(name):
    space = spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})
    parts = rollout((6, 4)), rollout((6, 4), spaces.Discrete(3))
    data = parts[0].replace(
        obs={"a": parts[0].obs, "b": parts[1].obs},
        obs_next={"a": parts[0].obs_next, "b": parts[1].obs_next},
    )
    model = make(name, space)
    data = feed(model, data)
    model.train()
    assert (model.estimate(data).rew > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_bonus_of_a_transition_depends_on_nothing_else(name):
    model = trained(name)
    data = feed(model, rollout((8, 4), seed=7))
    state, before = copy.deepcopy(model.state_dict()), copy.deepcopy(data)
    whole = model.estimate(data).rew
    np.testing.assert_array_equal(model.estimate(data).rew, whole)
    rows = [[model.estimate(data[t : t + 1, b : b + 1]).rew[0, 0] for b in range(4)]
            for t in range(8)]  # fmt: skip
    np.testing.assert_allclose(rows, whole, rtol=1e-4)
    order = np.random.default_rng(0).permutation(8)
    np.testing.assert_allclose(model.estimate(data[order]).rew, whole[order], rtol=1e-4)
    for key in data.keys():  # noqa: SIM118 - a batch iterates over rows
        np.testing.assert_array_equal(data[key], before[key])
    assert_same(model.state_dict(), state)


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_exactly_from_its_state(name):
    def go_on(model):
        for seed in (3, 4):
            data = feed(model, rollout(seed=seed))
            model.train()
            model.clear_data(seed)
        return model.estimate(data).rew

    model = trained(name)
    other = make(name, seed=99)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    np.testing.assert_array_equal(go_on(model), go_on(other))
    assert_same(model.state_dict(), other.state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_a_model_without_networks_has_no_state(name):
    model = type(make(name))({})
    assert model.state_dict() == {}
    model.load_state_dict({})


@pytest.mark.parametrize("name", ["rnd", "icm"])
def test_what_was_seen_often_is_worth_less_than_what_was_not(name):
    model = make(name, learning_rate=3e-3)
    for seed in range(60):
        feed(model, rollout((16, 4), shift=np.float32([2, 0, 0]), seed=seed % 3))
        model.train()
    known = model.estimate(rollout((16, 4), shift=np.float32([2, 0, 0]), seed=1)).rew
    other = model.estimate(rollout((16, 4), shift=np.float32([-6, 6, 6]), seed=1)).rew
    assert other.mean() > 1.5 * known.mean()


# --- the scale of the bonus


@pytest.mark.parametrize("name", NAMES)
def test_the_bonus_is_divided_by_the_spread_of_its_return_over_all_that_was_collected(name):
    model, plain = make(name, gamma=0.5), make(name, gamma=0.5, normalize_bonus=False)
    scaler = ReturnScaler(0.5)
    for seed in range(3):
        data, same = (feed(each, rollout(seed=seed)) for each in (model, plain))
        # Through the ends of episodes: a return that runs on is what the bonus is for.
        scaler.collect(plain.estimate(same).rew, np.zeros((20, 4), bool), data.mask)
    expected = plain.estimate(same).rew * scaler.scale
    np.testing.assert_allclose(model.estimate(data).rew, expected, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_no_data_change_nothing(name):
    data = rollout()
    data.mask[3, 1] = data.mask[19, 2] = False
    states = []
    for filler in (0.0, 1e3):
        filled = copy.deepcopy(data)
        for key in ("obs", "obs_next"):
            filled[key][~data.mask] = filler
        model = make(name)
        feed(model, filled)
        model.train()
        states.append(model.state_dict())
    assert_same(*states)


# --- warm-up, and how much it learns


@pytest.mark.parametrize("name", NAMES)
def test_until_it_has_seen_enough_every_bonus_is_0(name):
    model = make(name, warmup=100)
    data = feed(model, rollout())
    assert model.train() is None
    assert (model.estimate(data).rew == 0).all()
    model.clear_data(1)
    data = feed(model, rollout(seed=1))
    assert (model.estimate(data).rew > 0).all()
    assert len(model.memory) == 160  # what was seen before is still to be learned from
    assert model.train() is not None


def steps_of(model):
    return float(model.optimizers["network"].state_dict()["steps"])


@pytest.mark.parametrize(
    ("options", "steps", "rows"),
    [
        ({}, 1, 80),
        ({"update_proportion": 0.25}, 1, 20),
        ({"batch_size": 32}, 3, 27),
        ({"update_per_collect": 5, "batch_size": 32}, 5, 32),
    ],
)
def test_it_learns_from_a_share_of_what_is_new_or_as_often_as_told(options, steps, rows):
    model = make("rnd", **options)
    feed(model, rollout())
    model.train()
    assert (steps_of(model), model.rows) == (steps, rows)
    assert model.train() is None


def test_training_waits_for_enough_that_is_new():
    model = make("rnd", train_every=81)
    feed(model, rollout())
    assert model.train() is None
    model.clear_data(1)
    feed(model, rollout())
    assert model.train() is not None
    model.clear_data(2)
    assert len(model.memory) == 0


def test_data_is_forgotten_whenever_the_config_says_so_and_it_was_learned_from():
    model = make("rnd", train_every=81, clear_buffer_per_iters=2)
    feed(model, rollout())
    assert model.train() is None
    model.clear_data(2)
    feed(model, rollout())
    assert model.train() is not None
    model.clear_data(3)
    assert len(model.memory) == 160
    model.clear_data(4)
    assert len(model.memory) == 0


# --- lists, and a reward of terms


@pytest.mark.parametrize("name", NAMES)
def test_lists_of_dictionaries_are_one_episode_in_order(name):
    data = rollout((12, 1))
    items = [
        {
            "obs": torch.tensor(data.obs[i, 0]),
            "action": torch.tensor(data.act[i, 0]),
            "next_obs": torch.tensor(data.obs_next[i, 0]),
            "reward": 7.0,
        }
        for i in range(12)
    ]
    one, other = make(name), make(name)
    one.collect_data(items)
    other.collect_data(data)
    found = [item["reward"] for item in one.estimate(items)]
    np.testing.assert_allclose(found, other.estimate(data).rew[:, 0], rtol=1e-4)
    assert [item["reward"] for item in items] == [7.0] * 12


@pytest.mark.parametrize("name", NAMES)
def test_written_flat_it_comes_with_the_environments_reward(name):
    assert list(make_reward({"type": name}).terms) == [name, "env"]
    assert REWARDS.get(name).learns


@pytest.mark.parametrize("name", NAMES)
def test_on_its_own_it_finds_out_what_transitions_look_like(name):
    model = type(make(name))({"warmup": 1})
    model.collect_data(rollout())
    assert model.estimate(rollout()).rew.shape == (20, 4)


# --- parts


def test_actions_of_other_kinds_are_refused():
    setting = Setting(VECTOR, spaces.MultiBinary(3))
    with pytest.raises(ValueError, match=r"Discrete or Box.*MultiBinary.*use rnd"):
        InverseModel(setting, [16], 8)


def test_an_inverse_model_guesses_actions_that_start_anywhere():
    model = InverseModel(Setting(VECTOR, spaces.Discrete(3, start=5)), [16], 8)
    features = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    act = model.guess(torch.cat([features, features], -1)).argmax(-1) + 5
    _, metrics = model.learn(features, features, act)
    assert metrics["accuracy"] == 1.0
    _, metrics = model.learn(features, features, 5 + (act - 4) % 3)
    assert metrics["accuracy"] == 0.0


def test_moments_are_those_of_all_numbers_within_the_window():
    moments = Moments(100)
    moments.collect(np.array([1.0, 3.0]))
    moments.collect(np.array([]))
    moments.collect(np.array([5.0, 7.0, 4.0]))
    assert moments.mean == pytest.approx(4.0)
    assert moments.std == pytest.approx(2.0)


def test_moments_forget_what_is_old():
    moments = Moments(10)
    moments.collect(np.zeros(10))
    moments.collect(np.ones(5))
    assert moments.mean == pytest.approx(0.5)
    moments.collect(np.full(20, 3.0))
    assert moments.mean == pytest.approx(3.0)
    assert 0 < moments.std < 1e-5

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode

from guerdon.reward import REWARDS, Setting, make_reward
from guerdon.reward.scaling import ReturnScaler
from tests.reward.curious import NAMES, feed, make, rollout
from tests.reward.experts import ARM, IMAGE, TWO, VECTOR, as_items
from tests.rounding import assert_close

PARTS = spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})


def trained(name, rounds=2, **options):
    model = make(name, **options)
    for seed in range(rounds):
        feed(model, rollout(seed=seed))
        model.train()
    return model


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


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("observation_space", [VECTOR, IMAGE, PARTS], ids=["box", "image", "dict"])
@pytest.mark.parametrize("name", NAMES)
def test_spaces(name, observation_space, action_space):
    model = make(name, observation_space, action_space)
    batch = feed(model, rollout((6, 4), observation_space, action_space))
    assert model.train()["loss"] > 0
    rew = model.estimate(batch).rew
    assert rew.shape == (6, 4)
    assert (rew > 0).all()


def test_pixels_are_normalised():
    model, batch = make("rnd", IMAGE), rollout((6, 4), IMAGE)
    brighter = batch.replace(obs_next=(batch.obs_next // 4 + 150).astype(np.uint8))
    feed(model, brighter)
    pixels = model.network.target.input.normalizers["obs"](torch.from_numpy(brighter.obs_next))
    assert abs(pixels.mean()) < 1e-5
    assert pixels.std() == pytest.approx(1.0, abs=0.01)
    assert model.network.predictor.input.normalizers is model.network.target.input.normalizers


@pytest.mark.parametrize("name", NAMES)
def test_the_bonus_of_a_transition_depends_on_nothing_else(name):
    model = trained(name)
    batch = feed(model, rollout((8, 4), seed=7))
    state, before = copy.deepcopy(model.training_state()), copy.deepcopy(batch)
    whole = model.estimate(batch).rew
    np.testing.assert_array_equal(model.estimate(batch).rew, whole)
    rows = [[model.estimate(batch[t : t + 1, b : b + 1]).rew[0, 0] for b in range(4)]
            for t in range(8)]  # fmt: skip
    assert_close(rows, whole, rtol=1e-4)
    order = np.random.default_rng(0).permutation(8)
    assert_close(model.estimate(batch[order]).rew, whole[order], rtol=1e-4)
    assert batch == before
    assert_same(model.training_state(), state)


class Calls(TorchDispatchMode):
    """Records the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("warmup", [1, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_scoring_reads_no_number_of_a_tensor(name, warmup):
    model = make(name, warmup=warmup)
    batch = feed(model, rollout()).to_device(model.device)
    with Calls() as calls:
        rew = model.score(batch)
    assert isinstance(rew, torch.Tensor)
    assert calls.names
    assert "_local_scalar_dense.default" not in calls.names  # item() and bool(): waits for a GPU


@pytest.mark.parametrize("name", NAMES)
def test_state(name):
    def resume(model):
        for seed in (3, 4):
            batch = feed(model, rollout(seed=seed))
            model.train()
            model.clear_data(seed)
        return model.estimate(batch).rew

    model = trained(name)
    other = make(name, seed=99)
    other.load_training_state(copy.deepcopy(model.training_state()))
    np.testing.assert_array_equal(resume(model), resume(other))
    assert_same(model.training_state(), other.training_state())


@pytest.mark.parametrize("name", NAMES)
def test_portable_state_has_the_bonus_but_no_transitions(name):
    model = make(name)
    batch = feed(model, rollout())
    model.train()
    batch = feed(model, batch)
    other = make(name, seed=99)
    other.load_training_state(model.portable_state())
    np.testing.assert_array_equal(other.estimate(batch).rew, model.estimate(batch).rew)
    assert (len(model.memory), len(other.memory)) == (160, 0)
    assert other.train() is None


@pytest.mark.parametrize("name", ["rnd", "icm"])
def test_familiar_transitions_have_a_smaller_bonus(name):
    model = make(name, learning_rate=3e-3)
    for seed in range(60):
        feed(model, rollout((16, 4), shift=np.float32([2, 0, 0]), seed=seed % 3))
        model.train()
    known = model.estimate(rollout((16, 4), shift=np.float32([2, 0, 0]), seed=1)).rew
    other = model.estimate(rollout((16, 4), shift=np.float32([-6, 6, 6]), seed=1)).rew
    assert other.mean() > 1.5 * known.mean()


@pytest.mark.parametrize("name", NAMES)
def test_the_bonus_is_divided_by_the_spread_of_its_return(name):
    model, plain = make(name, gamma=0.5), make(name, normalize_bonus=False)
    scaler = ReturnScaler(0.5)
    for seed in range(3):
        batch, same = (feed(each, rollout(seed=seed)) for each in (model, plain))
        scaler.collect(plain.estimate(same).rew, batch.mask)  # across episodes
    expected = plain.estimate(same).rew * scaler.scale
    assert_close(model.estimate(batch).rew, expected, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_no_transitions_change_nothing(name):
    batch = rollout()
    batch.mask[3, 1] = batch.mask[19, 2] = False
    states = []
    for filler in (0.0, 1e3):
        filled = copy.deepcopy(batch)
        for key in ("obs", "obs_next"):
            filled[key][~batch.mask] = filler
        model = make(name)
        feed(model, filled)
        model.train()
        states.append(model.training_state())
    assert_same(*states)
    feed(model, batch.replace(mask=np.zeros_like(batch.mask)))
    assert len(model.memory) == 78


@pytest.mark.parametrize("name", NAMES)
def test_warmup(name):
    model = make(name, warmup=100)
    batch = feed(model, rollout())
    assert model.train() is None
    assert (model.estimate(batch).rew == 0).all()
    model.clear_data(1)
    batch = feed(model, rollout(seed=1))
    assert (model.estimate(batch).rew > 0).all()
    assert len(model.memory) == 160  # the transitions of the warm-up are still to be trained on
    assert model.train() is not None


@pytest.mark.parametrize(
    ("options", "steps", "rows"),
    [
        ({}, 1, 80),
        ({"update_proportion": 0.25}, 1, 20),
        ({"batch_size": 32}, 3, 27),
        ({"batch_size": 8, "max_updates": 4}, 4, 20),
        ({"update_per_collect": 5, "batch_size": 32}, 5, 32),
    ],
)
def test_number_and_size_of_gradient_steps(options, steps, rows):
    model = make("rnd", **options)
    feed(model, rollout())
    model.train()
    assert (model.optimizer.state_dict()["step"], model.minibatch_size) == (steps, rows)
    assert model.train() is None


@pytest.mark.parametrize("clear_buffer_per_iters", [None, 2])
def test_training_waits_for_new_transitions_and_keeps_them_until_then(clear_buffer_per_iters):
    model = make("rnd", train_every=81, clear_buffer_per_iters=clear_buffer_per_iters)
    feed(model, rollout())
    assert model.train() is None
    model.clear_data(2)
    feed(model, rollout())
    assert model.train() is not None
    if clear_buffer_per_iters:
        model.clear_data(3)
        assert len(model.memory) == 160
    model.clear_data(4)
    assert len(model.memory) == 0


@pytest.mark.parametrize("name", NAMES)
def test_lists_of_dictionaries(name):
    model, batch = make(name), rollout((12, 1))
    feed(model, batch)
    items = as_items(batch[:, 0])
    found = [item["reward"] for item in model.estimate(items)]
    assert_close(found, model.estimate(batch).rew[:, 0], rtol=1e-4)
    assert [item["reward"] for item in items] == [7.0] * 12


@pytest.mark.parametrize("name", NAMES)
def test_configured_alone_it_comes_with_the_reward_of_the_environment(name):
    reward = make_reward({"type": name}, Setting(VECTOR, TWO))
    assert {name: term.weight for name, term in reward.terms.items()} == {name: 1.0, "env": 1.0}
    assert REWARDS.get(name).collects

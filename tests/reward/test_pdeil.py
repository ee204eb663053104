import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.config import ConfigError
from guerdon.reward import Setting, make_reward
from guerdon.reward.pdeil import PDEIL, Gaussian
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

LINE = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def make(observation_space=VECTOR, action_space=TWO, experts=None, **options):
    setting = Setting(observation_space, action_space, n_envs=4, seed=1)
    quick = {"update_per_collect": 200} if isinstance(action_space, spaces.Discrete) else {}
    config = {"type": "pdeil", "train_every": 1, **quick, **options}
    model = PDEIL(config, setting)
    model.load_expert_data(experts or noise(observation_space, action_space))
    return model


def normal(x, mean, variance):
    return math.exp(-0.5 * (x - mean) ** 2 / variance) / math.sqrt(2 * math.pi * variance)


def line(obs, act):
    return rows(np.array(obs, np.float32)[..., None], np.array(act, np.float32)[..., None])


# --- densities


def test_a_gaussian_has_the_density_of_its_rows():
    generator = np.random.default_rng(0)
    points = torch.from_numpy(generator.normal(size=(50, 3)) @ generator.normal(size=(3, 3)) + 2)
    density = Gaussian(3, 0.1)
    density.fit(points)
    covariance = torch.cov(points.T, correction=0) + 0.1 * torch.eye(3, dtype=torch.float64)
    expected = torch.distributions.MultivariateNormal(points.mean(0), covariance)
    torch.testing.assert_close(density(points), expected.log_prob(points))
    assert density(density.mean) > density(points).max()


def test_constant_rows_have_a_density():
    density = Gaussian(2, 1e-2)
    density.fit(torch.ones(1, 2, dtype=torch.float64))
    assert density(torch.ones(2, dtype=torch.float64)).item() == pytest.approx(
        math.log(1 / (2 * math.pi * 1e-2))
    )


def test_an_unfitted_gaussian_is_the_standard_one():
    point = torch.tensor([1.0], dtype=torch.float64)
    assert Gaussian(1, 0.1)(point).exp().item() == pytest.approx(normal(1.0, 0.0, 1.0))


# --- the formula


def test_the_reward_by_hand():
    # Experts are at -1 and 1, and act as they are: everything has a mean of 0 and a spread of 1.
    model = make(LINE, LINE, demonstrations(line([-1, 1], [-1, 1])), alpha=0.3, regularization=0.5)
    model.collect_data(line([2, 4], [0, 0]))
    model.train()
    # Regularised, all of the experts' variances are 1.5, and the policy's is 1 + 0.5 around 3. Of
    # the action, 1 / 1.5 is known by the state; the rest, of spread 1/3, is left.
    state, act = 0.5, 0.8
    expert, policy = normal(state, 0, 1.5), normal(state, 3, 1.5)
    action = math.exp(-0.5 * (act - state / 1.5) ** 2 / (1 / 9 + 0.5))
    expected = expert * action / (0.3 * expert + 0.7 * policy)
    assert model.estimate(line([state], [act])).rew.tolist() == pytest.approx([expected], rel=1e-5)


def test_the_reward_of_discrete_actions_by_hand():
    model, data = make(alpha=0.4), transitions((5,))
    model.collect_data(transitions((50, 4), seed=4))
    model.train()
    network, tensors = model.network, model.tensors(transitions((5,)))
    with torch.no_grad():
        state = network.state(tensors["obs"])
        probability = network.actions.layers(state.float()).softmax(-1)[range(5), data.act]
        expert, policy = network.expert(state).exp(), network.policy(state).exp()
    expected = expert * probability / (0.4 * expert + 0.6 * policy)
    assert_close(model.estimate(data).rew, expected.numpy())


def test_before_training_only_the_action_counts():
    model, data = make(), transitions((5,))
    with torch.no_grad():
        log_action = model.network.log_action(model.tensors(data))
    assert_close(model.estimate(data).rew, log_action.exp().numpy())


def test_with_alpha_1_the_policy_has_no_effect():
    model, data = make(alpha=1.0), transitions((5,))
    model.pretrain()
    before = model.estimate(data).rew
    model.collect_data(transitions((30, 4)))
    model.train()
    assert_close(model.estimate(data).rew, before)


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e6, 1e30])
def test_nothing_overflows(action_space, scale):
    model = make(action_space=action_space, alpha=0.01)
    model.collect_data(transitions((3, 4), action_space=action_space))
    model.train()
    data = transitions((20,), action_space=action_space)
    data.obs = (data.obs * scale).astype(np.float32)
    rew = model.estimate(data).rew
    assert np.isfinite(rew).all()
    assert ((rew >= 0) & (rew <= 100)).all()


def test_the_ratio_counts_where_both_densities_are_tiny():
    # 8 standard deviations away, the wider density of the policy is the larger one.
    model = make(LINE, LINE, demonstrations(line([-1, 1] * 50, [-1, 1] * 50)))
    near, far = line([0.0], [0.0]), line([8.0], [8.0])
    model.collect_data(line(np.linspace(-9, 9, 50), np.zeros(50)))
    model.train()
    assert model.estimate(far).rew[0] < 1e-6
    assert model.estimate(near).rew[0] > 1.0


# --- training


def test_the_classifier_is_trained_once():
    model = make(update_per_collect=30)
    assert set(model.pretrain()) == {"loss"}
    assert model.trained == 30
    assert model.pretrain() is None
    model.collect_data(transitions((5, 4)))
    assert set(model.train()) == {"divergence"}
    assert model.trained == 30


def test_without_pretraining_the_first_train_trains_it():
    model = make(update_per_collect=30)
    model.collect_data(transitions((5, 4)))
    assert set(model.train()) == {"loss", "divergence"}


def test_continuous_actions_need_no_gradient_steps():
    model = make(action_space=ARM)
    assert model.fitted
    assert model.pretrain() is None
    assert model.train() is None
    model.collect_data(transitions((5, 4), action_space=ARM))
    assert set(model.train()) == {"divergence"}


def test_training_waits_for_enough_new_states():
    model = make(action_space=ARM, train_every=30)
    data = transitions((5, 4), action_space=ARM)
    model.collect_data(data)
    assert model.train() is None
    model.collect_data(data)
    assert model.train() is not None
    assert model.train() is None


def test_the_density_is_that_of_the_newest_states():
    model = make(action_space=ARM, clear_buffer_per_iters=1)
    means = []
    for shift in (5.0, -5.0):
        data = transitions((50, 4), action_space=ARM)
        data.obs += shift
        model.collect_data(data)
        metrics = model.train()
        means.append(model.network.policy.mean.mean())
        assert metrics["divergence"] > 5
        model.clear_data(iter=1)
    assert means[0] > 3
    assert means[1] < -3


def test_the_divergence_is_small_for_the_same_states():
    model = make(action_space=ARM)
    model.collect_data(transitions((50, 4), action_space=ARM))
    assert abs(model.train()["divergence"]) < 0.2


@pytest.mark.parametrize("action_space", [TWO, LINE], ids=["discrete", "continuous"])
def test_demonstrations_have_the_largest_rewards(action_space):
    generator = np.random.default_rng(0)
    obs = generator.normal(size=(400, 3)).astype(np.float32)
    obs[:, 1] = obs[:, 0] + 0.1 * obs[:, 1]
    if action_space is TWO:
        act = (obs[:, 0] > 0).astype(np.int64)
        other = 1 - act
    else:
        act = obs[:, :1] + 0.1 * obs[:, 2:]
        other = -act
    model = make(VECTOR, action_space, demonstrations(rows(obs, act)))
    model.collect_data(rows(3 * generator.normal(size=(300, 3)).astype(np.float32), act[:300]))
    model.train()
    apart = np.stack([obs[:, 0], -obs[:, 0], obs[:, 2]], -1)
    like, elsewhere, wrong = (
        model.estimate(data).rew.mean()
        for data in (rows(obs, act), rows(apart, act), rows(obs, other))
    )
    assert like > 1.0
    assert elsewhere < 0.5 * like
    assert wrong < 0.3 * like


def test_constant_actions_of_demonstrations_are_not_scaled_up():
    data = transitions((60,), action_space=ARM)
    data.act[:, 1] = 0.5
    model = make(action_space=ARM, experts=demonstrations(data))
    near = data.replace(act=data.act + np.float32([0, 1e-3]))
    assert_close(model.estimate(near).rew, model.estimate(data).rew, rtol=1e-3)


# --- the interface


def test_the_score_of_a_transition_depends_on_nothing_else():
    model, data = make(), transitions((8, 4))
    model.collect_data(data)
    model.train()
    before = copy.deepcopy(data)
    whole = model.estimate(data).rew
    np.testing.assert_array_equal(model.estimate(data).rew, whole)
    pieces = [model.estimate(data[i]).rew for i in range(8)]
    assert_close(np.stack(pieces), whole)
    order = np.random.default_rng(0).permutation(8)
    assert_close(model.estimate(data[order]).rew, whole[order])
    assert data == before


def test_collecting_changes_no_reward():
    model, data = make(), transitions((5,))
    before = model.estimate(data).rew
    model.collect_data(transitions((9, 4)))
    np.testing.assert_array_equal(model.estimate(data).rew, before)


def test_estimate_returns_a_list_for_a_list():
    model, data = make(), transitions((6,))
    items = as_items(data)
    found = model.estimate(items)
    assert [item["reward"] for item in items] == [7.0] * 6
    assert [item["reward"] for item in found] == model.estimate(data).rew.tolist()


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
def test_a_restored_model_continues_without_demonstrations(action_space):
    model = make(action_space=action_space)
    model.collect_data(transitions((20, 4), action_space=action_space))
    model.train()
    other = PDEIL(model.config, Setting(VECTOR, action_space, seed=7))
    other.load_training_state(model.training_state())
    data = transitions((6,), action_space=action_space, seed=3)
    for _ in range(2):
        np.testing.assert_array_equal(other.estimate(data).rew, model.estimate(data).rew)
        for each in (model, other):
            each.collect_data(transitions((5, 4), action_space=action_space, seed=2))
            assert set(each.train()) == {"divergence"}


def test_a_resumed_classifier_trains_exactly_as_the_first():
    model, other = make(), make()
    model.fit(20)
    other.load_training_state(model.training_state())
    model.fit(20)
    other.fit(20)
    data = transitions((6,))
    np.testing.assert_array_equal(other.estimate(data).rew, model.estimate(data).rew)


def test_actions_may_start_at_another_number_than_0():
    shifted = spaces.Discrete(3, start=5)
    model = make(action_space=shifted)
    data = transitions((4,), action_space=shifted)
    model.pretrain()
    total = sum(model.estimate(data.replace(act=np.full(4, act))).rew for act in (5, 6, 7))
    assert_close(total, 1.0)


def test_dict_observations_are_joined():
    space = spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})
    model = make(space)
    model.collect_data(transitions((5, 4), space))
    model.train()
    assert model.estimate(transitions((5, 4), space)).rew.shape == (5, 4)


# --- mistakes


@pytest.mark.parametrize("space", [IMAGE, spaces.Dict({"a": VECTOR, "b": IMAGE})])
def test_images_are_refused(space):
    with pytest.raises(ValueError, match="'pdeil' compares numbers, but observations have images"):
        make_reward({"type": "pdeil"}, Setting(space, TWO))


def test_other_actions_are_refused():
    several = spaces.MultiDiscrete([2, 3])
    with pytest.raises(ValueError, match="pdeil needs actions of a Discrete or Box space"):
        PDEIL({}, Setting(VECTOR, several))


@pytest.mark.parametrize("option", ["hidden_size", "update_per_collect", "batch_size"])
def test_options_of_the_network_are_refused_where_there_is_none(option):
    make(action_space=TWO, **{option: 3})
    with pytest.raises(ConfigError, match=rf"^'reward.{option}' has no effect, since for actions"):
        make(action_space=ARM, **{option: 3})

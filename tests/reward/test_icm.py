import numpy as np
import pytest
import torch

from tests.policy.hand import answer
from tests.reward.curious import ARM, TWO, VECTOR, feed, make, rollout


def by_hand(model, features, predicted):
    """Lets a model give these features for anything, and predict those."""
    answer(model.network.inverse.features, "layers.1.bias", *features)
    answer(model.network.predictor, "1.bias", *predicted)


@pytest.mark.parametrize("eta", [1.0, 0.01])
def test_the_bonus_is_half_the_squared_error_of_predicted_features(eta):
    model = make("icm", normalize_bonus=False, feature_size=2, eta=eta)
    by_hand(model, (1.0, 2.0), (2.0, 5.0))
    data = feed(model, rollout())
    np.testing.assert_allclose(model.estimate(data).rew, eta * (1.0 + 9.0) / 2, rtol=1e-6)


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
def test_the_prediction_depends_on_the_action(action_space):
    model = make("icm", VECTOR, action_space)
    data = feed(model, rollout(action_space=action_space))
    other = data.replace(act=(1 - data.act).astype(action_space.dtype))
    assert (model.estimate(other).rew != model.estimate(data).rew).all()


@pytest.mark.parametrize("beta", [0.2, 0.75])
def test_the_loss_weighs_both_models(beta):
    model = make("icm", feature_size=2)
    by_hand(model, (1.0, 2.0), (2.0, 5.0))
    answer(model.network.inverse.guess, "1.bias", 0.0, 0.0)
    data = feed(model, rollout())
    loss, metrics = model.network.learn(model.tensors(data[0]), beta)
    assert metrics["inverse_loss"].item() == pytest.approx(np.log(2))
    assert metrics["forward_loss"].item() == pytest.approx(5.0)
    assert loss.item() == pytest.approx((1 - beta) * np.log(2) + beta * 5.0)


def test_continuous_actions_are_guessed_by_regression():
    model = make("icm", VECTOR, ARM)
    data = feed(model, rollout(action_space=ARM))
    answer(model.network.inverse.guess, "1.bias", 0.0, 0.0)
    _, metrics = model.network.learn(model.tensors(data[0]), 0.2)
    actions = (data.act[0] - data.act.mean((0, 1))) / data.act.std((0, 1))
    assert metrics["inverse_loss"].item() == pytest.approx(np.square(actions).mean(), rel=1e-4)
    assert "accuracy" not in metrics


def controlled(action_space, seed):
    """The first number of an observation moves with the action, the others do as they like."""
    data = rollout((32, 4), VECTOR, action_space, seed=seed)
    push = data.act[..., None] * 4.0 - 2.0 if action_space is TWO else 2.0 * data.act[..., :1]
    data.obs_next[..., :1] = data.obs[..., :1] + push
    return data


@pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])
def test_it_learns_which_action_led_from_one_observation_to_the_next(action_space):
    model = make(
        "icm", VECTOR, action_space, learning_rate=1e-2, update_per_collect=10, hidden_size=[32]
    )
    for seed in range(30):
        model.collect_data(controlled(action_space, seed))
        metrics = model.train()
    if action_space is TWO:
        assert metrics["accuracy"] > 0.9
    else:
        assert metrics["inverse_loss"] < 0.75  # of both, one cannot be seen: 0.5 is the best


def test_every_network_is_trained():
    model = make("icm", update_per_collect=2)
    before = {name: value.clone() for name, value in model.network.named_parameters()}
    feed(model, rollout())
    model.train()
    for name, value in model.network.named_parameters():
        assert not torch.equal(value, before[name]), name

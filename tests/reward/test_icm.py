import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.reward import Setting
from guerdon.reward.icm import InverseModel
from tests.policy.hand import answer
from tests.reward.curious import feed, make, rollout
from tests.reward.experts import ARM, TWO, VECTOR
from tests.rounding import assert_close

ACTIONS = pytest.mark.parametrize("action_space", [TWO, ARM], ids=["discrete", "continuous"])


def set_features(model, features, predicted):
    """Make the networks return these features and predictions for any input."""
    answer(model.network.inverse.features, "layers.1.bias", *features)
    answer(model.network.predictor, "1.bias", *predicted)


def loss_of_first_row(model, batch):
    return model.network.loss(batch[0].to_device(model.device))


@pytest.mark.parametrize("eta", [1.0, 0.01])
def test_the_bonus_is_half_the_squared_error_of_predicted_features(eta):
    model = make("icm", normalize_bonus=False, feature_size=2, eta=eta)
    set_features(model, (1.0, 2.0), (2.0, 5.0))
    batch = feed(model, rollout())
    assert_close(model.estimate(batch).rew, eta * (1.0 + 9.0) / 2)


@ACTIONS
def test_the_prediction_depends_on_the_action(action_space):
    model = make("icm", VECTOR, action_space)
    batch = feed(model, rollout(action_space=action_space))
    other = batch.replace(act=(1 - batch.act).astype(action_space.dtype))
    assert (model.estimate(other).rew != model.estimate(batch).rew).all()


@pytest.mark.parametrize("beta", [0.2, 0.75])
@pytest.mark.parametrize("eta", [1.0, 0.01])
def test_the_loss_weighs_both_models(beta, eta):
    model = make("icm", feature_size=2, beta=beta, eta=eta, normalize_bonus=False)
    set_features(model, (1.0, 2.0), (2.0, 5.0))
    answer(model.network.inverse.head, "1.bias", 0.0, 0.0)
    loss, metrics = loss_of_first_row(model, feed(model, rollout()))
    assert metrics["inverse_loss"].item() == pytest.approx(np.log(2))
    assert metrics["forward_loss"].item() == pytest.approx(5.0)
    assert loss.item() == pytest.approx((1 - beta) * np.log(2) + beta * 5.0)


def test_continuous_actions_are_predicted_by_regression():
    model = make("icm", VECTOR, ARM)
    batch = feed(model, rollout(action_space=ARM))
    answer(model.network.inverse.head, "1.bias", 0.0, 0.0)
    _, metrics = loss_of_first_row(model, batch)
    actions = (batch.act[0] - batch.act.mean((0, 1))) / batch.act.std((0, 1))
    assert metrics["inverse_loss"].item() == pytest.approx(np.square(actions).mean(), rel=1e-4)
    assert "accuracy" not in metrics


def controlled(action_space, seed):
    """A rollout where the first number of an observation moves with the action."""
    batch = rollout((32, 4), VECTOR, action_space, seed=seed)
    push = batch.act[..., None] * 4.0 - 2.0 if action_space is TWO else 2.0 * batch.act[..., :1]
    batch.obs_next[..., :1] = batch.obs[..., :1] + push
    return batch


@ACTIONS
def test_it_learns_to_predict_actions(action_space):
    options = {"learning_rate": 1e-2, "update_per_collect": 10, "hidden_size": [32]}
    model = make("icm", VECTOR, action_space, **options)
    for seed in range(30):
        model.collect_data(controlled(action_space, seed))
        metrics = model.train()
    if action_space is TWO:
        assert metrics["accuracy"] > 0.9
    else:
        assert metrics["inverse_loss"] < 0.75  # one of both has no effect: 0.5 is the best


def test_every_network_is_trained():
    model = make("icm", update_per_collect=2)
    before = {name: value.clone() for name, value in model.network.named_parameters()}
    feed(model, rollout())
    model.train()
    for name, value in model.network.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_actions_of_other_kinds_are_refused():
    setting = Setting(VECTOR, spaces.MultiBinary(3))
    with pytest.raises(ValueError, match=r"Discrete or Box.*MultiBinary.*use rnd"):
        InverseModel(setting, [16], 8)


def test_discrete_actions_start_anywhere():
    model = InverseModel(Setting(VECTOR, spaces.Discrete(3, start=5)), [16], 8)
    features = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    act = model.head(torch.cat([features, features], -1)).argmax(-1) + 5
    _, metrics = model.loss(features, features, act)
    assert metrics["accuracy"] == 1.0
    _, metrics = model.loss(features, features, 5 + (act - 4) % 3)
    assert metrics["accuracy"] == 0.0

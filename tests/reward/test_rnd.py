import numpy as np
import pytest
import torch

from tests.policy.hand import answer
from tests.reward.curious import feed, make, rollout
from tests.rounding import assert_close


def test_the_bonus_is_the_mean_squared_error_of_the_prediction():
    model = make("rnd", normalize_bonus=False, embedding_size=2)
    answer(model.network.target, "layers.1.bias", 1.0, 2.0)
    answer(model.network.predictor, "layers.1.bias", 1.0, -1.0)
    batch = feed(model, rollout())
    assert_close(model.estimate(batch).rew, 4.5)


def test_only_next_observations_count():
    model = make("rnd")
    batch = feed(model, rollout())
    assert model.fields == model.collects == ("obs_next",)
    other = batch.replace(obs=batch.obs + 1, act=1 - batch.act)
    np.testing.assert_array_equal(model.estimate(other).rew, model.estimate(batch).rew)
    other = batch.replace(obs_next=batch.obs_next + 1)
    assert (model.estimate(other).rew != model.estimate(batch).rew).all()


def test_next_observations_are_normalised_and_clipped():
    model, batch = make("rnd", warmup=0), rollout()
    batch.obs_next = batch.obs_next * np.float32([1, 10, 100]) + np.float32([0, -7, 300])
    model.collect_data(batch)
    inputs = model.network.predictor.input
    normalised = inputs({"obs_next": torch.tensor(batch.obs_next)})
    assert_close(normalised.mean((0, 1)), 0.0, atol=1e-4)
    np.testing.assert_allclose(normalised.std((0, 1)), 1.0, rtol=1e-2)
    far = inputs({"obs_next": torch.tensor([[1e6, -1e6, 0.0]])})
    assert_close(far[0, :2], [5.0, -5.0])
    assert model.network.target.input.normalizers is inputs.normalizers


def test_only_the_predictor_is_trained():
    model = make("rnd", update_per_collect=3)
    before = {name: value.clone() for name, value in model.network.named_parameters()}
    feed(model, rollout())
    model.train()
    parameters = dict(model.network.named_parameters())
    changed = [name for name in parameters if not torch.equal(parameters[name], before[name])]
    assert changed
    assert all(name.startswith("predictor.") for name in changed)
    assert not any(value.requires_grad for value in model.network.target.parameters())


def test_the_target_depends_on_the_seed():
    found = []
    for seed in (1, 1, 2):
        model = make("rnd", seed=seed)
        found.append(model.estimate(feed(model, rollout())).rew.mean())
    assert found[0] == found[1]
    assert found[0] != pytest.approx(found[2])


def test_the_bonus_falls_with_training():
    model = make("rnd", learning_rate=1e-2)
    batch = feed(model, rollout())
    before = model.estimate(batch).rew.mean()
    model.fit(50)
    assert model.estimate(batch).rew.mean() < 0.2 * before


@pytest.mark.parametrize("name", ["rnd", "ngu"])
def test_a_linear_network_is_refused(name):
    with pytest.raises(ValueError, match=r"need a hidden layer.*'hidden_size'"):
        make(name, hidden_size=[])

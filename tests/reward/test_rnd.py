import numpy as np
import pytest
import torch

from tests.policy.hand import answer
from tests.reward.curious import VECTOR, feed, make, rollout


def test_the_bonus_is_the_mean_squared_error_of_the_prediction():
    model = make("rnd", normalize_bonus=False, embedding_size=2)
    answer(model.network.target, "layers.1.bias", 1.0, 2.0)
    answer(model.network.predictor, "layers.1.bias", 1.0, -1.0)
    data = feed(model, rollout())
    np.testing.assert_allclose(model.estimate(data).rew, 4.5)


def test_only_next_observations_count():
    model = make("rnd")
    data = feed(model, rollout())
    assert model.fields == ("obs_next",)
    other = data.replace(obs=data.obs + 1, act=1 - data.act)
    np.testing.assert_array_equal(model.estimate(other).rew, model.estimate(data).rew)
    other = data.replace(obs_next=data.obs_next + 1)
    assert (model.estimate(other).rew != model.estimate(data).rew).all()


def test_next_observations_are_normalised_and_clipped():
    model = make("rnd", warmup=0)
    data = rollout()
    data.obs_next = data.obs_next * np.float32([1.0, 10.0, 100.0]) + np.float32([0.0, -7.0, 300.0])
    model.collect_data(data)
    seen = model.network.predictor.input({"obs_next": torch.tensor(data.obs_next)})
    np.testing.assert_allclose(seen.mean((0, 1)), 0.0, atol=1e-4)
    np.testing.assert_allclose(seen.std((0, 1)), 1.0, rtol=1e-2)
    far = model.network.predictor.input({"obs_next": torch.tensor([[1e6, -1e6, 0.0]])})
    np.testing.assert_allclose(far[0, :2], [5.0, -5.0])
    assert model.network.target.input.normalizers is model.network.predictor.input.normalizers


def test_the_target_never_changes():
    model = make("rnd", update_per_collect=3)
    before = {name: value.clone() for name, value in model.network.named_parameters()}
    feed(model, rollout())
    model.train()
    changed = {
        name
        for name, value in model.network.named_parameters()
        if not torch.equal(value, before[name])
    }
    assert changed
    assert all(name.startswith("predictor.") for name in changed)
    assert not any(value.requires_grad for value in model.network.target.parameters())


def test_another_seed_is_another_target():
    data = rollout()
    found = []
    for seed in (1, 1, 2):
        model = make("rnd", VECTOR, seed=seed)
        feed(model, data)
        found.append(model.estimate(data).rew.mean())
    assert found[0] == found[1]
    assert found[0] != pytest.approx(found[2])


def test_novelty_falls_for_what_was_seen():
    model = make("rnd", learning_rate=1e-2)
    data = feed(model, rollout())
    before = model.estimate(data).rew.mean()
    model.fit(50)
    assert model.estimate(data).rew.mean() < 0.2 * before


@pytest.mark.parametrize("name", ["rnd", "ngu"])
def test_a_linear_network_is_refused(name):
    with pytest.raises(ValueError, match=r"need a hidden layer.*'hidden_size'"):
        make(name, hidden_size=[])

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from guerdon.nn import EnsembleMLP, ModelConfig, QCritic

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ARM = spaces.Box(-1, 1, (2,), np.float32)
SMALL = ModelConfig(hidden=[6, 5], activation="relu")


@pytest.mark.parametrize("orthogonal", [True, False])
def test_an_ensemble_is_its_members_side_by_side(orthogonal):
    ensemble = EnsembleMLP(2, 3, [4, 5], 1, "relu", orthogonal)
    x = torch.randn(7, 3)
    for member, result in enumerate(ensemble(x)):
        y = x
        for index in range(3):
            weight = getattr(ensemble, f"weight_{index}")[member]
            y = y @ weight + getattr(ensemble, f"bias_{index}")[member]
            y = y.relu() if index < 2 else y
        torch.testing.assert_close(result, y)


def test_members_begin_differently():
    first, second = EnsembleMLP(2, 3, [4], 1)(torch.randn(7, 3))
    assert not torch.allclose(first, second)


def test_without_orthogonal_weights_it_begins_as_linear_layers_do():
    ensemble = EnsembleMLP(2, 100, [200], 1, orthogonal=False)
    assert ensemble.weight_0.abs().max() <= 0.1
    expected = nn.Linear(100, 200).weight.std()
    torch.testing.assert_close(ensemble.weight_0.std(), expected, rtol=0.05, atol=0)


@pytest.mark.parametrize("n_critics", [1, 2, 5])
@pytest.mark.parametrize("lead", [(4,), (3, 4)])
def test_critics_give_a_value_each(n_critics, lead):
    critic = QCritic(VECTOR, ARM, SMALL, n_critics)
    output = critic(torch.randn(*lead, 3), torch.randn(*lead, 2))
    assert output["q_value"].shape == (n_critics, *lead)


def test_time_and_batch_are_valued_as_their_rows_are():
    critic = QCritic(VECTOR, ARM, SMALL)
    obs, act = torch.randn(3, 4, 3), torch.randn(3, 4, 2)
    whole, part = critic(obs, act)["q_value"], critic(obs[1], act[1])["q_value"]
    torch.testing.assert_close(whole[:, 1], part)


def test_double_observations_are_valued_too():
    critic = QCritic(VECTOR, ARM, SMALL)
    obs, act = torch.randn(4, 3), torch.randn(4, 2)
    assert torch.equal(critic(obs.double(), act)["q_value"], critic(obs, act)["q_value"])


def test_discrete_actions_are_all_valued():
    critic = QCritic(VECTOR, spaces.Discrete(6), SMALL)
    assert critic(torch.randn(4, 3))["q_value"].shape == (2, 4, 6)
    assert critic({"obs": torch.randn(5, 4, 3)})["q_value"].shape == (2, 5, 4, 6)


def test_the_gradient_reaches_the_action():
    critic = QCritic(VECTOR, ARM, SMALL)
    act = torch.randn(4, 2, requires_grad=True)
    critic(torch.randn(4, 3), act)["q_value"].amin(0).sum().backward()
    assert (act.grad.abs().sum(-1) > 0).all()


def test_a_critic_of_continuous_actions_asks_for_them():
    with pytest.raises(ValueError, match="pass act="):
        QCritic(VECTOR, ARM, SMALL)(torch.randn(4, 3))


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (spaces.Discrete(4), torch.tensor([0, 3])),
        (
            spaces.Dict({"a": VECTOR, "b": spaces.Discrete(2)}),
            {"a": torch.randn(2, 3), "b": torch.tensor([0, 1])},
        ),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), torch.zeros(2, 8, 8, 3, dtype=torch.uint8)),
    ],
)
def test_other_observations_are_joined_with_the_action(space, observation):
    critic = QCritic(space, ARM, SMALL)
    assert critic(observation, torch.randn(2, 2))["q_value"].shape == (2, 2)


def test_actions_of_several_dimensions_are_flattened():
    critic = QCritic(VECTOR, spaces.Box(-1, 1, (2, 3)), SMALL)
    assert critic(torch.randn(4, 3), torch.randn(4, 2, 3))["q_value"].shape == (2, 4)


def test_observations_are_normalised_before_the_critics():
    critic = QCritic(VECTOR, ARM, ModelConfig(hidden=[5], normalize_obs=True))
    obs, act = torch.randn(40, 3), torch.randn(40, 2)
    before = critic(obs, act)["q_value"]
    critic.normalizer.update(obs * 9 + 4)
    normal = (obs - obs.mean(0)) / obs.std(0, correction=0)
    fresh = QCritic(VECTOR, ARM, ModelConfig(hidden=[5]))
    fresh.load_state_dict({k: v for k, v in critic.state_dict().items() if "normalizer" not in k})
    torch.testing.assert_close(
        critic(obs * 9 + 4, act)["q_value"], fresh(normal, act)["q_value"], atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(before, fresh(obs, act)["q_value"])

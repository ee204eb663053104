"""Networks of a user's own: how they are called, and what they have to give."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from guerdon.compat.nervex.armor import Armor
from guerdon.nn import (
    ActorCritic,
    DeterministicActor,
    GaussianActor,
    ModelConfig,
    ObservationNormalizer,
    QNetwork,
)
from guerdon.nn.adapter import Adapted, adapt_model

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
PARTS = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "place": spaces.Discrete(5)})
TWO = spaces.Discrete(2)
BOX = spaces.Box(-1, 1, (2,), np.float32)


class Net(nn.Module):
    """Gives whatever a function makes of its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, inputs):
        return self.function(inputs)


def logit(obs):
    return {"logit": obs[..., :2]}


def test_a_network_that_takes_tensors_stays_as_it_is():
    model = Net(logit)
    assert adapt_model(model, QNetwork, VECTOR, TWO) is model


def test_a_network_that_takes_a_mapping_is_given_one():
    model = adapt_model(Net(lambda x: logit(x["obs"])), QNetwork, VECTOR, TWO)
    obs = torch.randn(4, 3)
    assert torch.equal(model(obs)["logit"], obs[:, :2])
    assert torch.equal(model({"obs": obs})["logit"], obs[:, :2])


def test_what_stands_beside_the_observations_reaches_the_network():
    def remembering(x):
        return {"logit": x["obs"][:, :2] + x.get("prev_state", 0)}

    model = adapt_model(Net(remembering), QNetwork, VECTOR, TWO)
    obs = torch.randn(4, 3)
    assert torch.equal(model({"obs": obs, "prev_state": 1})["logit"], obs[:, :2] + 1)


@pytest.mark.parametrize("nested", [False, True])
def test_observations_may_be_dictionaries(nested):
    def read(x):
        parts = x["obs"] if nested else x
        assert parts["image"].dtype == torch.uint8
        return {"logit": parts["image"][:, 0].float() + parts["place"][:, None]}

    model = adapt_model(Net(read), QNetwork, PARTS, TWO)
    assert isinstance(model, Adapted) == nested
    obs = {"image": torch.ones(3, 2, 2, dtype=torch.uint8), "place": torch.tensor([0, 1, 2])}
    assert model(obs)["logit"].tolist() == [[1, 1], [2, 2], [3, 3]]


def test_a_bare_tensor_is_what_the_one_key_means():
    obs = torch.randn(4, 3)
    for default, actions, key in ((QNetwork, TWO, "logit"), (DeterministicActor, BOX, "action")):
        for read in (lambda x: x[..., :2], lambda x: x["obs"][..., :2]):
            assert torch.equal(
                adapt_model(Net(read), default, VECTOR, actions)(obs)[key], obs[:, :2]
            )


@pytest.mark.parametrize(
    ("default", "actions", "output", "sentence"),
    [
        (QNetwork, TWO, lambda x: {"q": x}, r"Net does not return 'logit': .* with 'logit' \[2\]"),
        (ActorCritic, TWO, logit, r"Net does not return 'value'"),
        (ActorCritic, BOX, lambda x: {"mu": x[:, :2]}, r"does not return 'log_std' and 'value'"),
        (GaussianActor, BOX, lambda x: x, r"returns a Tensor, .* 'mu' \[2\] and 'log_std' \[2\]"),
        (DeterministicActor, BOX, lambda x: (x, x), r"returns a tuple, .* 'action' \[2\]"),
        (QNetwork, TWO, lambda x: x, r"returns \[2, 3\] as 'logit' of 2 .* tensor \[2, 2\]"),
        (QNetwork, TWO, lambda _: {"logit": [0, 0]}, r"returns list as 'logit'"),
        (
            ActorCritic, TWO, lambda x: {**logit(x), "value": x[:, :1]},
            r"returns \[2, 1\] as 'value' .* tensor \[2\]",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_told_in_a_sentence(default, actions, output, sentence):
    with pytest.raises(ValueError, match=sentence):
        adapt_model(Net(output), default, VECTOR, actions)


def test_a_network_that_takes_nothing_of_this_is_told_in_a_sentence():
    with pytest.raises(ValueError, match=r"Linear takes neither observations \(RuntimeError: mat1"):
        adapt_model(nn.Linear(7, 2), QNetwork, VECTOR, TWO)


def test_parts_called_as_halves_are_no_halves():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor, self.critic = nn.Linear(3, 2), nn.Linear(3, 1)

        def forward(self, obs):
            return {"logit": self.actor(obs), "value": self.critic(obs).squeeze(-1)}

    model = adapt_model(Halves(), ActorCritic, VECTOR, TWO)
    assert not hasattr(model, "actor")
    assert model(torch.zeros(4, 3)).keys() == {"logit", "value"}


def test_trying_a_network_leaves_no_trace():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2))
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapt_model(model, QNetwork, VECTOR, TWO)
    assert [module.training for module in model] == [True, False, True]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(weight.grad is None for weight in model.parameters())


def test_layers_that_find_their_size_have_it_afterwards():
    model = adapt_model(nn.Sequential(nn.LazyLinear(2)), QNetwork, VECTOR, TWO)
    assert [list(weight.shape) for weight in model.parameters()] == [[2, 3], [2]]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(5, 6, (3,), np.float64),
        spaces.Box(-np.inf, np.inf, (3,), np.float32),
        spaces.Discrete(4, start=7),
        spaces.MultiDiscrete([3, 4], start=[5, 6]),
        spaces.MultiBinary(3),
        spaces.Box(0, 255, (4, 40, 40), np.uint8),
        spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
    ],
)
def test_every_space_has_an_example(space):
    model = QNetwork(space, TWO, ModelConfig(hidden=[4]))
    assert adapt_model(model, QNetwork, space, TWO) is model


def test_a_normaliser_is_still_found():
    class Normalising(nn.Module):
        def __init__(self):
            super().__init__()
            self.normalizer = ObservationNormalizer((3,))

        def forward(self, x):
            return self.normalizer(x["obs"])[..., :2]

    model = Normalising()
    made = adapt_model(model, QNetwork, VECTOR, TWO)
    assert made.normalizer is model.normalizer
    assert [name for name in made.state_dict() if "mean" in name] == ["model.normalizer.mean"]


def test_a_target_of_an_adapted_network_is_a_copy():
    linear = nn.Linear(3, 2)
    armor = Armor(adapt_model(linear, QNetwork, VECTOR, TWO))
    armor.add_model("target", update_type="assign", update_kwargs={"freq": 1})
    obs = torch.randn(4, 3)
    before = linear(obs)
    with torch.no_grad():
        linear.bias += 1
    assert torch.equal(armor.target_forward(obs)["logit"], before)
    assert torch.equal(armor.forward(obs)["logit"], linear(obs))

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from guerdon.nn import (
    MODELS,
    ActorCritic,
    ModelConfig,
    QNetwork,
    create_model,
    register_model,
)

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
TWO = spaces.Discrete(2)


class FCDQN(nn.Module):
    """A network as the nerveX tutorial has its readers write one."""

    def __init__(self, input_dim, action_dim, hidden_dim_list=(128, 256), device="cpu"):
        super().__init__()
        self.sizes = (input_dim, action_dim, tuple(hidden_dim_list), device)
        self.pred = nn.Linear(input_dim, action_dim)

    def forward(self, x, info=None):  # noqa: ARG002
        return {"logit": self.pred(x["obs"])}


class Bare(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.spaces = observation_space, action_space

    def forward(self, obs):
        return {"logit": obs[..., :2]}


@pytest.fixture
def names():
    before = dict(MODELS._classes)
    yield MODELS
    MODELS._classes.clear()
    MODELS._classes.update(before)


def test_the_default_is_made_if_nobody_says_otherwise():
    model = create_model(QNetwork, VECTOR, TWO, ModelConfig(hidden=[7]))
    assert type(model) is QNetwork
    assert model.encoder.size == 7


def test_a_model_is_found_by_its_name():
    model = create_model(QNetwork, VECTOR, TWO, ModelConfig(type="actor_critic"))
    assert type(model) is ActorCritic


@pytest.mark.usefixtures("names")
def test_a_model_is_registered_by_decorator_and_by_call():
    assert register_model("bare")(Bare) is Bare
    assert register_model("bare_again", Bare) is Bare
    for name in ("bare", "bare_again"):
        assert create_model(QNetwork, VECTOR, TWO, custom=name).spaces == (VECTOR, TWO)


def test_a_model_is_found_by_its_place():
    model = create_model(QNetwork, VECTOR, TWO, ModelConfig(type="guerdon.nn:QNetwork"))
    assert type(model) is QNetwork


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no.such.module:Net", "cannot be imported"),
        ("guerdon.nn:NoSuchNet", "'guerdon.nn' has no 'NoSuchNet'"),
    ],
)
def test_a_place_that_is_not_there_is_a_clear_error(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        create_model(QNetwork, VECTOR, TWO, custom=name)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="q_network"):
        create_model(QNetwork, VECTOR, TWO, custom="q_netwrk")


def test_a_module_is_taken_as_it_is():
    model = Bare(VECTOR, TWO)
    assert create_model(QNetwork, VECTOR, TWO, custom=model) is model


def test_a_module_of_the_tutorial_is_called_as_it_expects():
    model = FCDQN(3, 2)
    obs = torch.randn(4, 3)
    made = create_model(QNetwork, VECTOR, TWO, custom=model)
    assert torch.equal(made(obs)["logit"], model.pred(obs))


def test_a_class_that_takes_sizes_is_given_sizes():
    model = create_model(QNetwork, VECTOR, TWO, ModelConfig(hidden=[9]), custom=FCDQN)
    assert model.model.sizes == (3, 2, (9,), "cpu")


def test_custom_goes_before_the_config():
    model = create_model(QNetwork, VECTOR, TWO, ModelConfig(type="actor_critic"), custom=Bare)
    assert type(model) is Bare

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

import guerdon
from guerdon.compat.nervex.model import ConvDiscreteNet, FCDiscreteNet, FCRDiscreteNet
from guerdon.nn import MODELS, ModelConfig, QNetwork, create_model


def test_they_are_found_by_name_and_by_place():
    vector, two = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
    names = {
        "fc_discrete": FCDiscreteNet,
        "conv_discrete": ConvDiscreteNet,
        "fcr_discrete": FCRDiscreteNet,
    }
    assert {name: MODELS.get(name) for name in names} == names
    for name in ("guerdon.compat.nervex.model:FCDiscreteNet", "fc_discrete"):
        model = create_model(QNetwork, vector, two, ModelConfig(type=name))
        assert type(model) is FCDiscreteNet


def test_a_net_that_takes_sizes_is_given_sizes():
    images = spaces.Box(0, 255, (3, 40, 40), np.uint8)
    model = create_model(QNetwork, images, spaces.Discrete(2), custom=ConvDiscreteNet)
    assert model(torch.zeros(1, 3, 40, 40, dtype=torch.uint8))["logit"].shape == (1, 2)


def test_the_nets_of_the_tutorial():
    assert FCDiscreteNet(4, 2, hidden_dim_list=[8])(torch.ones(3, 4))["logit"].shape == (3, 2)
    assert FCDiscreteNet((4,), 2)({"obs": torch.ones(3, 4)})["logit"].shape == (3, 2)
    net = ConvDiscreteNet([4, 84, 84], 6, dueling=True)
    assert net(torch.ones(2, 4, 84, 84))["logit"].shape == (2, 6)


def test_the_recurrent_net_of_the_tutorial_hands_its_state_on():
    net = FCRDiscreteNet(4, 2, hidden_dim_list=[8], lstm_dim=5)
    obs = torch.randn(3, 4)
    first = net({"obs": obs, "prev_state": None})
    second = net({"obs": obs, "prev_state": first["next_state"]})
    assert first["next_state"].shape == (3, 10)
    assert not torch.allclose(first["logit"], second["logit"])


def test_sizes_of_the_last_layer():
    net = FCDiscreteNet(obs_dim=[4], action_dim=[2], embedding_dim=32, dueling=True)
    assert [layer.out_features for layer in net.encoder.children()] == [128, 128, 32]
    images = torch.ones(2, 4, 84, 84)
    for embedding_dim in (512, 64):
        net = ConvDiscreteNet([4, 84, 84], 6, embedding_dim=embedding_dim)
        assert net.size == embedding_dim
        assert net(images)["logit"].shape == (2, 6)
    net = FCRDiscreteNet(obs_dim=4, action_dim=2, embedding_dim=16)
    assert net({"obs": torch.ones(3, 4)})["next_state"].shape == (3, 32)


def test_heads():
    net = FCDiscreteNet(4, 2, head_kwargs={"dueling": True, "noise": False})
    assert net.config.dueling
    with pytest.raises(ValueError, match="'noise', but only dueling heads"):
        FCDiscreteNet(4, 2, head_kwargs={"noise": True})
    with pytest.raises(ValueError, match=r"action_dim is \[2, 3\], but only one"):
        FCDiscreteNet(4, [2, 3])


def test_states_may_be_a_list():
    net, obs = FCRDiscreteNet(4, 2, embedding_dim=5), torch.randn(2, 4)
    state = net(obs)["next_state"]
    together = net({"obs": obs, "prev_state": torch.stack([torch.zeros(10), state[1]])})
    listed = net({"obs": obs, "prev_state": [None, state[1]]})
    assert torch.equal(together["logit"], listed["logit"])
    assert torch.equal(net({"obs": obs, "prev_state": [None, None]})["logit"], net(obs)["logit"])


def test_steps_one_by_one_give_what_a_segment_gives():
    net, obs, state = FCRDiscreteNet(3, 2, [5], lstm_dim=4), torch.randn(6, 2, 3), None
    whole = net(obs)
    for step in range(6):
        output = net({"obs": obs[step], "prev_state": state})
        state = output["next_state"]
        torch.testing.assert_close(output["logit"], whole["logit"][step])
    torch.testing.assert_close(state, whole["next_state"])


def test_the_names_of_networks_in_configs_are_found():
    project = tomllib.loads((Path(guerdon.__file__).parents[1] / "pyproject.toml").read_text())
    given = project["project"]["entry-points"]["guerdon.models"]
    points = {name: EntryPoint(name, value, "guerdon.models") for name, value in given.items()}
    assert {name: point.load() for name, point in points.items()} == {
        "conv_discrete": ConvDiscreteNet,
        "fc_discrete": FCDiscreteNet,
        "fcr_discrete": FCRDiscreteNet,
    }

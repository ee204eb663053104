import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.compat.nervex import CommonPolicy
from guerdon.compat.nervex.lstm import LSTMCore, RecurrentActor, RecurrentQNetwork
from guerdon.nn import ModelConfig

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
TWO = spaces.Discrete(2)


def test_steps_one_by_one_give_what_a_segment_gives():
    core = LSTMCore(3, 4)
    features = torch.randn(5, 2, 3)
    outputs, final = core(features)
    state = torch.zeros(2, 8)
    for step in range(5):
        output, state = core(features[step], state)
        torch.testing.assert_close(output, outputs[step])
    torch.testing.assert_close(state, final)
    assert final.shape == (2, 8)


def test_an_episode_that_starts_inside_forgets_what_came_before():
    core = LSTMCore(3, 4)
    features = torch.randn(5, 2, 3)
    start = torch.zeros(5, 2, dtype=torch.bool)
    start[3, 1] = True
    outputs, final = core(features, torch.randn(2, 8), start)
    fresh, fresh_final = core(features[3:, 1:])
    torch.testing.assert_close(outputs[3:, 1:], fresh)
    torch.testing.assert_close(final[1:], fresh_final)


def test_the_other_environment_remembers():
    core = LSTMCore(3, 4)
    features, state = torch.randn(5, 2, 3), torch.randn(2, 8)
    start = torch.zeros(5, 2, dtype=torch.bool)
    start[3, 1] = True
    outputs, _ = core(features, state, start)
    unbroken, _ = core(features, state)
    torch.testing.assert_close(outputs[:, 0], unbroken[:, 0])
    torch.testing.assert_close(outputs[:3, 1], unbroken[:3, 1])


def test_a_start_in_the_first_row_drops_the_given_state():
    core = LSTMCore(3, 4)
    features = torch.randn(1, 2, 3)
    outputs, _ = core(features, torch.randn(2, 8), torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(outputs, core(features)[0])


def test_a_step_takes_starts_too():
    core = LSTMCore(3, 4)
    features, state = torch.randn(2, 3), torch.randn(2, 8)
    output, _ = core(features, state, torch.tensor([True, False]))
    torch.testing.assert_close(output[0], core(features)[0][0])
    torch.testing.assert_close(output[1], core(features, state)[0][1])


def test_no_gradient_passes_the_start_of_an_episode():
    core = LSTMCore(3, 4)
    features = torch.randn(4, 1, 3, requires_grad=True)
    start = torch.tensor([[False], [False], [True], [False]])
    core(features, None, start)[0][3].sum().backward()
    assert not features.grad[:2].any()
    assert features.grad[2:].abs().sum() > 0


def test_a_recurrent_network_steps_as_it_learns():
    model = RecurrentQNetwork(VECTOR, TWO, ModelConfig(hidden=[5], lstm=4))
    obs = torch.randn(6, 2, 3)
    start = torch.zeros(6, 2, dtype=torch.bool)
    start[2, 0] = True
    whole = model(obs, start=start)
    state = None
    for step in range(6):
        inputs = {"obs": obs[step], "prev_state": state, "start": start[step]}
        output = model(inputs)
        state = output["next_state"]
        torch.testing.assert_close(output["logit"], whole["logit"][step])
    torch.testing.assert_close(state, whole["next_state"])


@pytest.mark.parametrize(
    ("action_space", "kind", "key", "shape"),
    [
        (TWO, RecurrentQNetwork, "logit", (2,)),
        (spaces.Box(-1, 1, (4,)), RecurrentActor, "action", (4,)),
    ],
)
@pytest.mark.parametrize("lead", [(3,), (2, 3)])
def test_a_common_policy_can_have_one(action_space, kind, key, shape, lead):
    config = {"type": "bare", "model": {"lstm": 5, "hidden": [6], "normalize_obs": True}}
    model = CommonPolicy(config, VECTOR, action_space)._model
    assert type(model) is kind
    output = model({"obs": torch.randn(*lead, 3)})
    assert output[key].shape == (*lead, *shape)
    assert output["next_state"].shape == (3, 10)

import math

import pytest
import torch

from guerdon.nn import (
    ContinuousHead,
    DeterministicHead,
    DiscreteHead,
    DuelingHead,
)


def fill(layer, weight, bias=None):
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias) if bias is not None else 0)


ONE = torch.ones(1, 1)


def test_a_discrete_head_is_a_linear_layer():
    head = DiscreteHead(1, 2)
    fill(head.linear, [[2.0], [3.0]], [0.5, 0.0])
    assert head(ONE)["logit"].tolist() == [[2.5, 3.0]]


def test_a_dueling_head_adds_advantages_less_their_mean():
    head = DuelingHead(1, 3)
    fill(head.value, [[10.0]])
    fill(head.advantage, [[1.0], [2.0], [6.0]])
    assert head(ONE)["logit"].tolist() == [[8.0, 9.0, 13.0]]  # 10 + (1, 2, 6) - 3


def test_a_spread_that_does_not_depend_on_the_state_is_one_vector():
    head = ContinuousHead(1, (2,))
    with torch.no_grad():
        head.log_std.fill_(-0.5)
    fill(head.linear, [[1.0], [2.0]])
    output = head(torch.ones(3, 1))
    assert output["mu"].tolist() == [[1.0, 2.0]] * 3
    assert output["log_std"].tolist() == [[-0.5, -0.5]] * 3
    output["log_std"].sum().backward()
    assert head.log_std.grad.tolist() == [3.0, 3.0]


def test_a_spread_that_depends_on_the_state_is_clamped():
    head = ContinuousHead(1, (2,), state_dependent=True)
    fill(head.linear, [[1.0], [2.0], [3.0], [-90.0]])
    output = head(ONE)
    assert output["mu"].tolist() == [[1.0, 2.0]]
    assert output["log_std"].tolist() == [[2.0, -20.0]]


def test_a_deterministic_head_is_squashed():
    head = DeterministicHead(1, (2,))
    fill(head.linear, [[0.5], [100.0]])
    torch.testing.assert_close(head(ONE)["action"], torch.tensor([[math.tanh(0.5), 1.0]]))


@pytest.mark.parametrize(
    "head",
    [
        ContinuousHead(4, (2, 3)),
        ContinuousHead(4, (2, 3), state_dependent=True),
        ContinuousHead(4, ()),
        DeterministicHead(4, (2, 3)),
    ],
)
@pytest.mark.parametrize("lead", [(5,), (5, 6)])
def test_actions_have_the_shape_of_their_space(head, lead):
    for value in head(torch.zeros(*lead, 4)).values():
        assert value.shape == (*lead, *head.shape)

import pytest
import torch

from guerdon.ops.td import (
    double_q_value,
    huber_loss,
    select_action,
    soft_value,
    squared_loss,
)
from tests.gradients import gradient_is_right

T = torch.tensor


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_actions_select_from_values_and_from_distributions():
    table = torch.arange(12.0).reshape(2, 3, 2)
    act = T([2, 0])
    assert select_action(table[..., 0], act).tolist() == [4, 6]
    assert select_action(table, act).tolist() == [[4, 5], [6, 7]]
    assert select_action(table[None], act[None]).tolist() == [[[4, 5], [6, 7]]]
    with pytest.raises(ValueError, match="cannot select"):
        select_action(table[..., 0], act[:, None])


def test_double_q_takes_the_action_of_one_network_and_the_value_of_the_other():
    q_t = T([[1.0, 9.0], [4.0, 3.0]], requires_grad=True)
    value = double_q_value(q_t, T([[5.0, 2.0], [0.0, 1.0]]))
    assert value.tolist() == [1, 3]
    assert not value.requires_grad


# --- losses


def test_the_squared_loss():
    error = T([1.0, -2.0])
    assert squared_loss(error) == 1.25  # 0.5 * (1 + 4) / 2
    assert squared_loss(error, T([1.0, 0.5])) == 0.75  # 0.5 * (1 + 2) / 2
    assert squared_loss(error, mask=T([True, False])) == 0.5


def test_the_huber_loss():
    error = T([0.5, -3.0])
    target = T([10.0, 20.0])
    value = target + error
    assert huber_loss(value, target) == 1.3125  # (0.5 * 0.25 + 3 - 0.5) / 2
    assert huber_loss(value, target, 2.0) == 2.0625  # (0.125 + 2 * (3 - 1)) / 2
    assert huber_loss(value, target, weight=T([2.0, 0.0])) == 0.125  # 0.25 / 2
    assert huber_loss(value, target, mask=T([False, True])) == 2.5


def test_the_gradients_of_losses_are_right():
    options = {"weight": normal(3), "mask": T([True, False, True])}
    error = T([0.5, 2.0, -3.0])
    assert gradient_is_right(lambda x: squared_loss(x, **options), error)
    assert gradient_is_right(lambda x: huber_loss(x, torch.zeros_like(x), **options), error)


# --- shapes


B, COLUMN = torch.zeros(3), torch.zeros(3, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: double_q_value(torch.zeros(3, 2), torch.zeros(3, 1)),
        lambda: squared_loss(B, COLUMN),
        lambda: huber_loss(B, COLUMN),
        lambda: huber_loss(B, B, mask=COLUMN > 0),
    ],
)
def test_shapes_that_would_broadcast_are_refused(call):
    with pytest.raises(ValueError, match=r"shape|axes"):
        call()


def test_the_soft_value_is_the_maximum_and_the_entropy():
    q_value = T([[1.0, 1.0], [0.0, 3.0]]).log1p()  # log 2 twice; 0 and log 4
    # log(2 + 2) and log(1 + 4); with half the temperature, 0.5 log(4 + 4) and 0.5 log(1 + 16).
    assert soft_value(q_value, 1.0).exp().tolist() == pytest.approx([4.0, 5.0])
    assert soft_value(q_value, 0.5).mul(2).exp().tolist() == pytest.approx([8.0, 17.0])
    assert soft_value(q_value, 1e-4).exp().tolist() == pytest.approx([2.0, 4.0], rel=1e-3)

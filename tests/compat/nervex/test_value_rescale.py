import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guerdon.compat.nervex.rl_utils import value_inv_transform, value_transform
from tests.gradients import gradient_is_right


def test_known_values():
    x = torch.tensor([0.0, 3.0, -3.0, 99.0])
    # sqrt(4) - 1 + 0.01 * 3 = 1.03;  sqrt(100) - 1 + 0.99 = 9.99
    expected = [0, 1.03, -1.03, 9.99]
    assert value_transform(x).tolist() == pytest.approx(expected)
    assert value_inv_transform(torch.tensor(expected)).tolist() == pytest.approx(x.tolist())
    assert value_transform(x, eps=0.0).tolist() == pytest.approx([0, 1, -1, 9])
    assert value_inv_transform(torch.tensor([0.0, 1, -1, 9]), eps=0.0).tolist() == pytest.approx(
        x.tolist()
    )


@given(x=st.floats(-1e6, 1e6), eps=st.sampled_from([0.0, 1e-3, 1e-2]))
def test_the_inverse_undoes_the_transform(x, eps):
    x = torch.tensor(x, dtype=torch.float64)
    assert value_inv_transform(value_transform(x, eps), eps).item() == pytest.approx(
        x.item(), rel=1e-9, abs=1e-12
    )


def test_small_and_large_numbers_survive_float32():
    x = torch.tensor([1e-6, 1e-3, 1.0, 1e3, 1e6])
    back = value_inv_transform(value_transform(x, 1e-3), 1e-3)
    torch.testing.assert_close(back, x, rtol=3e-6, atol=0)


def test_the_slope_is_right_everywhere_and_at_zero():
    x = torch.tensor([-5.0, -0.1, 0.3, 20.0])
    assert gradient_is_right(value_transform, x)
    assert gradient_is_right(value_inv_transform, x)
    zero = torch.zeros(1, requires_grad=True)
    value_transform(zero, 0.01).backward()
    assert zero.grad.item() == pytest.approx(0.51)  # 1 / 2 + eps
    zero = torch.zeros(1, requires_grad=True)
    value_inv_transform(zero, 0.01).backward()
    assert zero.grad.item() == pytest.approx(1 / 0.51)

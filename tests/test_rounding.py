import pytest
import torch
from torch import nn

from tests.rounding import OtherRounding, assert_close


def test_tolerances_are_those_of_the_less_exact_type():
    exact = torch.tensor([0.1, 1.0], dtype=torch.float64)
    assert_close(exact.float(), exact)
    assert_close(exact.half(), exact)
    assert_close(exact * (1 + 1e-10), [0.1, 1.0])
    assert_close(torch.tensor([1.5e-8]), [0.0])
    for other in (exact * (1 + 1e-8), (exact * (1 + 1e-4)).float()):
        with pytest.raises(AssertionError):
            assert_close(other, exact)
    with pytest.raises(AssertionError):
        assert_close(torch.tensor([1, 2]), [1, 3])


def test_another_rounding_changes_last_bits_and_nothing_else():
    torch.manual_seed(0)
    layer, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(50, 8)
    usual = layer(x)
    with OtherRounding(), torch.no_grad():
        whole, again, part = layer(x), layer(x), layer(x[:20])
        assert nn.functional.linear(torch.ones(1, 3), torch.ones(1, 3)).item() == 3.0
    assert torch.equal(whole, again)
    for one, other in ((usual, whole), (part, whole[:20])):
        assert 0.2 < (one != other).float().mean() < 1.0
        assert_close(one, other)

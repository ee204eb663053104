import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from guerdon.nn.init import apply_linear, linear, orthogonal_, seeded


def build(source):
    with seeded(source):
        return nn.Linear(3, 2).weight.detach()


def test_the_same_seed_makes_the_same_weights():
    assert torch.equal(build(3), build(3))
    assert not torch.equal(build(3), build(4))


@pytest.mark.parametrize(
    "make", [lambda: torch.Generator().manual_seed(7), lambda: np.random.default_rng(7)]
)
def test_a_generator_moves_on_with_every_use(make):
    first, second = make(), make()
    assert torch.equal(build(first), build(second))
    assert torch.equal(build(first), build(second))
    assert not torch.equal(build(make()), build(first))


def test_the_global_generator_is_left_as_it_was():
    before = torch.get_rng_state()
    build(3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_a_gpu_draws_is_seeded_too():
    def drawn(seed):
        with seeded(seed, "cuda"):
            return torch.rand(8, device="cuda")

    before = torch.cuda.get_rng_state()
    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_the_global_generator_is_put_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(KeyError), seeded(0):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)


def test_orthogonal_rows_have_the_length_of_the_gain():
    layer = linear(8, 4, gain=math.sqrt(2))
    product = layer.weight @ layer.weight.T
    assert torch.allclose(product, 2 * torch.eye(4), atol=1e-5)
    assert not layer.bias.any()


def test_orthogonal_reaches_convolutions():
    module = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False))
    orthogonal_(module, 1.0)
    flat = module[0].weight.flatten(1)
    assert torch.allclose(flat @ flat.T, torch.eye(2), atol=1e-5)


@pytest.mark.parametrize("wrap", [lambda layer: layer, weight_norm])
def test_apply_linear_is_the_call(wrap):
    layer = wrap(nn.Linear(3, 2))
    x = torch.randn(4, 3)
    assert torch.equal(apply_linear(layer, x), layer(x))
    assert apply_linear(layer, x.double()).dtype == torch.float32


def test_apply_linear_lets_hooks_see_the_output():
    layer = nn.Linear(3, 2)
    seen = []
    layer.register_forward_hook(lambda *call: seen.append(call[2]))
    output = apply_linear(layer, torch.ones(1, 3))
    assert torch.equal(seen[0], output)

"""Initialisation of weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


@contextmanager
def seeded(
    source: int | torch.Generator | np.random.Generator, device: str = "cpu"
) -> Iterator[None]:
    """Seed PyTorch's global generators in this context, and restore them afterwards.

    Args:
        source: A seed, or a generator to draw one from.
        device: Device to seed in addition to the CPU, for example for dropout.
    """
    if isinstance(source, torch.Generator):
        seed = int(torch.randint(2**62, (), generator=source, device=source.device))
    elif isinstance(source, np.random.Generator):
        seed = int(source.integers(2**62))
    else:
        seed = int(source)
    gpus = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=gpus):
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        for gpu in gpus:
            torch.cuda.set_rng_state(torch.Generator(gpu).manual_seed(seed).get_state(), gpu)
        yield


def orthogonal_(module: nn.Module, gain: float = HIDDEN_GAIN) -> nn.Module:
    """Initialise linear and convolution layers with orthogonal weights and zero biases."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def linear(n_in: int, n_out: int, gain: float | None = None) -> nn.Linear:
    """Make a linear layer: orthogonal with a gain, or with PyTorch's default initialisation."""
    layer = nn.Linear(n_in, n_out)
    if gain is not None:
        orthogonal_(layer, gain)
    return layer


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Compute ``layer(x)``, with `x` cast to the dtype of the layer.

    Avoids the lookups of `nn.Module`: the forward pass of a Q network for CartPole takes 21 instead
    of 32 microseconds, which speeds up training of `dqn`.
    """
    weight = layer._parameters.get("weight")
    if weight is None or layer._forward_hooks:  # parametrized, or has hooks
        output: Tensor = layer(x.to(layer.weight.dtype))
        return output
    if x.dtype is not weight.dtype:
        x = x.to(weight.dtype)
    return functional.linear(x, weight, layer._parameters["bias"])

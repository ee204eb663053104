"""Target networks, and networks that are frozen for a while."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def make_target(model: M) -> M:
    """A copy of a network that is not trained."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def update_target(target: nn.Module, model: nn.Module, tau: float = 1.0) -> None:
    """Move the weights of a target network towards those of a network, and copy its buffers.

    Args:
        target: What `make_target` returned.
        model: The network.
        tau: ``target += tau * (model - target)``; 1 copies the weights.
    """
    torch._foreach_lerp_([*target.parameters()], [*model.parameters()], tau)
    for to, buffer in zip(target.buffers(), model.buffers(), strict=True):
        to.copy_(buffer)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Compute no gradients of a network's weights inside, only of its inputs."""
    model.requires_grad_(False)
    try:
        yield
    finally:
        model.requires_grad_(True)

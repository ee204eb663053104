"""Target networks, and networks that are frozen for a while."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def make_target(model: M) -> M:
    """Return a copy of a network without gradients."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def update_target(target: nn.Module, model: nn.Module, tau: float = 1.0) -> None:
    """Move the weights of a target network towards those of a network, and copy its buffers.

    Args:
        target: Result of `make_target`.
        model: The network.
        tau: ``target += tau * (model - target)``; 1 copies the weights.
    """
    torch._foreach_lerp_([*target.parameters()], [*model.parameters()], tau)
    for to, buffer in zip(target.buffers(), model.buffers(), strict=True):
        to.copy_(buffer)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Disable gradients of a network's weights in this context; inputs keep theirs."""
    model.requires_grad_(False)
    try:
        yield
    finally:
        model.requires_grad_(True)

"""What the tests of losses ask of gradients."""

import torch


def gradient_is_right(function, *inputs):
    """Compares the gradient with finite differences, in float64."""
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    return torch.autograd.gradcheck(function, leaves)


def learns(function, **tensors):
    """The names of the arguments that a gradient reaches."""
    leaves = {
        name: x.detach().clone().requires_grad_(x.is_floating_point())
        for name, x in tensors.items()
    }
    result = function(**leaves)
    if result.requires_grad:
        result.sum().backward()
    return {name for name, x in leaves.items() if x.grad is not None and x.grad.any()}

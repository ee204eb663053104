"""Squeezing values, so that games with large rewards need no clipping.

https://arxiv.org/abs/1805.11593: h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x. Both functions are
written without differences of nearly equal numbers, and are smooth at 0.
"""

import torch


def value_transform(x: torch.Tensor, eps: float = 1e-2) -> torch.Tensor:
    """h(x), of any shape; `eps` keeps its inverse from growing too fast."""
    return x / (torch.sqrt(x.abs() + 1) + 1) + eps * x


def value_inv_transform(x: torch.Tensor, eps: float = 1e-2) -> torch.Tensor:
    """The inverse of `value_transform`, of any shape.

    With w = sqrt(|h^-1(x)| + 1) - 1, |x| = eps w^2 + (1 + 2 eps) w, which is solved for w.
    """
    linear = 1 + 2 * eps
    scale = 2 / (linear + torch.sqrt(linear**2 + 4 * eps * x.abs()))
    return x * scale * (x.abs() * scale + 2)

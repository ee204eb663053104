"""Pictures of another size."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


def resized(images: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Pictures with another height and width: each pixel is the mean of the area it covers.

    Args:
        images: uint8 [..., H, W]; those that have the size already are returned as they are.
        size: The height and width that they shall have.
    """
    height, width = size
    if images.shape[-2:] == (height, width):
        return images
    old_height, old_width = images.shape[-2:]
    rows = _shares(old_height, height) @ images.astype(np.float32, order="C")
    means: np.ndarray = rows @ _shares(old_width, width).T
    return means.round().astype(np.uint8)


@cache
def _shares(n: int, size: int) -> np.ndarray:
    """How much of each of `size` new pixels each of `n` old ones makes up."""
    ends = np.linspace(0, n, size + 1)[:, None]
    old = np.arange(n)
    overlap = np.minimum(ends[1:], old + 1) - np.maximum(ends[:-1], old)
    shares: np.ndarray = (overlap.clip(0) * size / n).astype(np.float32)
    return shares

"""Image augmentation that preserves success labels."""

import torch
from torch import Tensor

from guerdon.nn.spaces import BYTE

SHIFT = 4
"""Maximum shift in pixels; the border is repeated."""
CONTRAST, BRIGHTNESS = 0.1, 0.05
"""Maximum change of contrast (a factor) and brightness (a summand)."""


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift images by a few pixels, and change their contrast and brightness, each differently.

    Args:
        images: uint8 [B, C, H, W].
        generator: Random generator on the CPU.

    Returns:
        Floats in [0, 1], of the same shape.
    """
    number, _, height, width = images.shape

    def places(size: int) -> Tensor:
        moved = torch.randint(-SHIFT, SHIFT + 1, (number, 1), generator=generator)
        return (torch.arange(size) + moved).clamp_(0, size - 1).to(images.device, non_blocking=True)

    rows, columns = places(height), places(width)
    # One axis after the other: three times as fast as indexing both at once.
    moved = images.gather(2, rows[:, None, :, None].expand_as(images))
    moved = moved.gather(3, columns[:, None, None, :].expand_as(images))
    drawn = (torch.rand(2, number, 1, 1, 1, generator=generator) * 2 - 1).to(
        images.device, non_blocking=True
    )
    contrast, brightness = 1 + CONTRAST * drawn[0], BRIGHTNESS * drawn[1]
    return (moved * (BYTE * contrast)).add_(brightness).clamp_(0, 1)

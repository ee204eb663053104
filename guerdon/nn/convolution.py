"""Encoders for images."""

from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from guerdon.nn.config import ModelConfig
from guerdon.nn.init import orthogonal_
from guerdon.nn.spaces import BYTE, channels_first, image_shape, shape_of

SMALLEST_NATURE = 36


class ImageEncoder(nn.Module):
    """Converts images to floats [N, C, H, W], and applies a CNN and one linear layer.

    Channels may be first or last (the smaller axis; the last one if both are equal). Frames of a
    stack become channels. Leading dimensions are kept. Only uint8 is divided by 255.

    Args:
        space: Box of images.
        body: CNN from [N, C, H, W] to a feature map.
        size: Number of output features.
        orthogonal: Whether to initialise weights orthogonally.
    """

    def __init__(self, space: Space[Any], body: nn.Module, size: int, orthogonal: bool) -> None:
        super().__init__()
        self.shape = shape_of(space)
        self.channels_first = channels_first(space)
        self.image = image_shape(space)
        self.body = body
        with torch.no_grad():
            n_features = body(torch.zeros(1, *self.image)).numel()
        self.dense = nn.Linear(n_features, size)
        self.size = size
        if orthogonal:
            orthogonal_(self)

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [..., size]."""
        lead = observation.shape[: observation.dim() - len(self.shape)]
        images = self.to_images(observation.reshape(-1, *self.shape))
        features = torch.relu_(self.dense(self.body(images).flatten(1)))
        return features if len(lead) == 1 else features.reshape(*lead, self.size)

    def to_images(self, observation: Tensor) -> Tensor:
        """Convert observations [N, ...] to floats [N, C, H, W]."""
        if not self.channels_first:
            observation = observation.movedim(-1, -3)
        images = observation.reshape(-1, *self.image)
        # Channels-last memory format: 1.2 (nature) to 1.9 times (impala) as fast.
        images = images.contiguous(memory_format=torch.channels_last)
        if images.dtype is torch.uint8:
            return images * BYTE
        return images.to(self.dense.weight.dtype)


def nature(channels: int) -> nn.Sequential:
    """CNN of DQN (https://doi.org/10.1038/nature14236): three layers, for 36x36 and more."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, stride=4),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(inplace=True),
    )


class _Residual(nn.Module):
    """Residual block of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of `x`."""
        total: Tensor = x + self.body(x)
        return total


def impala(channels: int) -> nn.Sequential:
    """Deep CNN of IMPALA (https://arxiv.org/abs/1802.01561); each stage halves the size."""
    stages: list[nn.Module] = []
    for width in (16, 32, 32):
        stages += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.MaxPool2d(3, stride=2, padding=1),
            _Residual(width),
            _Residual(width),
        ]
        channels = width
    return nn.Sequential(*stages, nn.ReLU())


class _Block(nn.Module):
    """Basic block of a ResNet, with GroupNorm instead of BatchNorm."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False),
            _group_norm(n_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
            _group_norm(n_out),
        )
        self.stride = stride
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.skip = nn.Sequential(nn.Conv2d(n_in, n_out, 1, bias=False), _group_norm(n_out))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of `x`, reduced by the stride."""
        # A 1x1 convolution with a stride and few channels writes past its memory in oneDNN's
        # backward pass (https://github.com/uxlfoundation/oneDNN/issues/6035).
        skipped = self.skip(x[..., :: self.stride, :: self.stride])
        return torch.relu(self.body(x) + skipped)


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(4 if channels % 4 == 0 else 1, channels)


def resnet10(channels: int, width: int = 64) -> nn.Sequential:
    """ResNet-10 (https://arxiv.org/abs/1512.03385) with GroupNorm, up to the last feature map.

    Running statistics of BatchNorm would differ between acting and learning.

    Args:
        channels: Channels of the images.
        width: Channels of the first stage, doubled in each of the three others.
    """
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = zip(widths, widths[1:], (1, 2, 2, 2), strict=False)
    blocks = [_Block(*stage) for stage in stages]
    return nn.Sequential(
        nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
        _group_norm(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        *blocks,
    )


def make_image_encoder(space: Space[Any], config: ModelConfig) -> ImageEncoder:
    """Make the CNN of ``config.encoder``, for a Box of images."""
    channels, height, width = image_shape(space)
    large = min(height, width) >= SMALLEST_NATURE
    name = config.encoder if config.encoder != "auto" else ("nature" if large else "impala")
    if name == "nature" and not large:
        raise ValueError(
            f"the nature encoder needs images of at least {SMALLEST_NATURE}x{SMALLEST_NATURE}, "
            f"but these are {height}x{width}: use encoder=impala"
        )
    if name == "nature":
        return ImageEncoder(space, nature(channels), 512, config.orthogonal)
    if name == "impala":
        return ImageEncoder(space, impala(channels), 256, config.orthogonal)
    # Norm layers cancel the scale of the weights, and orthogonal ones would take seconds to make.
    pooled = nn.Sequential(*resnet10(channels), nn.AdaptiveAvgPool2d(1))
    return ImageEncoder(space, pooled, 256, orthogonal=False)

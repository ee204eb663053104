"""Changes of images: augmentation, synthetic failures, and probes of a classifier.

Images are uint8 [B, C, H, W]. What training uses is in `TRAINED`; the other functions in `PROBES`
change images in ways that a classifier has not been trained with.
"""

import itertools
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from guerdon.nn.spaces import BYTE

SHIFT = 4
"""Maximum shift in pixels; the border is repeated."""
CONTRAST, BRIGHTNESS = 0.1, 0.05
"""Maximum change of contrast (a factor) and brightness (a summand)."""

Change = Callable[[Tensor, torch.Generator], Tensor]


# --- augmentation, which keeps labels


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift images by a few pixels, and change their contrast and brightness, each differently.

    Args:
        images: uint8 [B, C, H, W].
        generator: Random generator on the CPU.

    Returns:
        Floats in [0, 1], of the same shape.
    """
    moved = shift(images, generator)
    drawn = _symmetric((2, len(images), 1, 1, 1), generator, images.device)
    contrast, brightness = 1 + CONTRAST * drawn[0], BRIGHTNESS * drawn[1]
    return (moved * (BYTE * contrast)).add_(brightness).clamp_(0, 1)


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift images by a few pixels."""
    number, _, height, width = images.shape

    def places(size: int) -> Tensor:
        moved = torch.randint(-SHIFT, SHIFT + 1, (number, 1), generator=generator)
        return (torch.arange(size) + moved).clamp_(0, size - 1).to(images.device, non_blocking=True)

    rows, columns = places(height), places(width)
    # One axis after the other: three times as fast as indexing both at once.
    moved = images.gather(2, rows[:, None, :, None].expand_as(images))
    return moved.gather(3, columns[:, None, None, :].expand_as(images))


def jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    """Change contrast and brightness of each colour, twice as much as `augment` at most."""
    drawn = _symmetric((2, *images.shape[:2], 1, 1), generator, images.device)
    return _bytes(images * (1 + 2 * CONTRAST * drawn[0]) + 2 * 255 * BRIGHTNESS * drawn[1])


# --- synthetic failures: no information is left


def uniform(images: Tensor, generator: torch.Generator) -> Tensor:
    """Replace images by one colour each; a quarter are grey, and half of all values extreme."""
    colours = _uniform((*images.shape[:2], 1, 1), generator, images.device)
    grey = _uniform((len(images), 1, 1, 1), generator, images.device) < 0.25
    colours = torch.where(grey, colours[:, :1], colours)
    return _bytes((2 * colours - 0.5) * 255).expand_as(images)


def noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Replace images by independent pixels around a colour, between weak and full contrast."""
    device = images.device
    colours = _uniform((*images.shape[:2], 1, 1), generator, device)
    strength = _uniform((len(images), 1, 1, 1), generator, device)
    return _bytes(255 * torch.lerp(colours, _uniform(images.shape, generator, device), strength))


def saturate(images: Tensor, generator: torch.Generator) -> Tensor:
    """Over-expose every other image, so that half of it is clipped; make the rest nearly black.

    Where a camera's own images are black and white, brightness is added, since factors would leave
    them as they are.
    """
    strength = _uniform((len(images), 1, 1, 1), generator, images.device)
    exposed = images * (2.0 * 8.0**strength)
    clipped = ((exposed >= 255) & (images < 255)).flatten(1).float().mean(1) >= 0.5
    brighter = images + 255 * (0.5 + 0.5 * strength)
    exposed = torch.where(clipped[:, None, None, None], exposed, brighter)
    exposed[1::2] = images[1::2] * (0.2 * strength[1::2])
    return _bytes(exposed)


SYNTHETIC: tuple[Change, ...] = (uniform, noise, saturate)


def synthetic_failures(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return as many images that show nothing, a third by each function of `SYNTHETIC`."""
    parts = images.tensor_split(len(SYNTHETIC))
    made = [change(part, generator) for change, part in zip(SYNTHETIC, parts, strict=True)]
    return torch.cat(made)


# --- probes


class Probe(NamedTuple):
    """A change of images, and what has to be left of a success."""

    change: Change
    keeps: Literal["nothing", "something", "label"]
    """``nothing``: all are failures; ``something``: failures have to stay failures; ``label``: both
    labels have to stay."""

    @property
    def trained(self) -> bool:
        """Whether training uses this change, or one of the same kind."""
        return self.change in TRAINED


def colours(images: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """Return the uniform images of a grid of colours, black, grey and white among them."""
    levels = torch.tensor([0, 64, 128, 191, 255], dtype=torch.uint8, device=images.device)
    n_channels = images.shape[1]
    if n_channels <= 3:
        grid = torch.tensor(list(itertools.product(range(5), repeat=n_channels)))
    else:  # of several colour images or others: the same colours in all of them
        grid = torch.tensor(list(itertools.product(range(5), repeat=3))).repeat(1, n_channels)
    values = levels[grid[:, :n_channels].to(images.device)]
    return values[:, :, None, None].expand(-1, *images.shape[1:])


def gradient(images: Tensor, generator: torch.Generator) -> Tensor:
    """Replace images by a smooth gradient between two colours each."""
    one, other = _uniform((2, *images.shape[:2], 1, 1), generator, images.device)
    height, width = images.shape[2:]
    way = torch.linspace(0, 1, height)[:, None] + torch.linspace(0, 1, width)
    return _bytes(255 * torch.lerp(one, other, (way / 2).to(images.device)))


def stripes(images: Tensor, generator: torch.Generator) -> Tensor:
    """Replace images by stripes of two colours each, 2 to 8 pixels wide."""
    one, other = _uniform((2, *images.shape[:2], 1, 1), generator, images.device)
    widths = torch.randint(2, 9, (len(images), 1, 1, 1), generator=generator)
    is_one = (torch.arange(images.shape[3]) // widths % 2 == 0).to(images.device)
    return _bytes(255 * torch.where(is_one, one, other)).expand_as(images)


def occlude(images: Tensor, generator: torch.Generator) -> Tensor:
    """Cover a rectangle of half the height and half the width by one colour, at a random place."""
    number, _, height, width = images.shape

    def covered(size: int) -> Tensor:
        start = torch.randint(0, size - size // 2 + 1, (number, 1), generator=generator)
        return (torch.arange(size) >= start) & (torch.arange(size) < start + size // 2)

    mask = covered(height)[:, None, :, None] & covered(width)[:, None, None, :]
    colour = _bytes(255 * _uniform((*images.shape[:2], 1, 1), generator, images.device))
    return torch.where(mask.to(images.device), colour, images)


def wash_out(images: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """Leave a tenth of the contrast; every other image is nearly white, the rest nearly black."""
    washed = images * 0.1
    washed[::2] += 0.9 * 255
    return _bytes(washed)


def over_expose(images: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """Multiply brightness by 4, and clip it."""
    return _bytes(images * 4.0)


def under_expose(images: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG001
    """Divide brightness by 4."""
    return _bytes(images * 0.25)


TRAINED: tuple[Change, ...] = (
    *(shift, jitter),  # less of it
    *SYNTHETIC,
    *(colours, wash_out, over_expose, under_expose),  # by `uniform` and `saturate`
)
"""Changes that a classifier is trained with."""
PROBES: dict[str, Probe] = {
    "uniform colours": Probe(colours, "nothing"),
    "noise": Probe(noise, "nothing"),
    "saturated": Probe(wash_out, "nothing"),
    "gradients": Probe(gradient, "nothing"),
    "stripes": Probe(stripes, "nothing"),
    "occluded": Probe(occlude, "something"),
    "over-exposed": Probe(over_expose, "something"),
    "under-exposed": Probe(under_expose, "something"),
    "shifted": Probe(shift, "label"),
    "colours jittered": Probe(jitter, "label"),
}
"""By name; `guerdon.training.fit_checks.probe_frames` evaluates them."""


# --- drawing


def _uniform(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.rand(shape, generator=generator).to(device, non_blocking=True)


def _symmetric(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    return (torch.rand(shape, generator=generator) * 2 - 1).to(device, non_blocking=True)


def _bytes(values: Tensor) -> Tensor:
    return values.round().clamp_(0, 255).to(torch.uint8)

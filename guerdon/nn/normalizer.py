"""Observations of mean 0 and variance 1."""

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from guerdon.nn.spaces import CompositeSpace, get_part, is_image, part_spaces, shape_of

EPSILON = 1e-8
_CONSTANT = 1e-6  # the spread of numbers that are the same, of their size
_NUMBERS = 1 << 22  # that become doubles at a time: a rollout of images would fill the memory


class ObservationNormalizer(nn.Module):
    """Running mean and variance, and observations put in their terms.

    Only `update` changes the statistics: calling the module is pure. Sums are kept in double
    precision and merged batch by batch (Chan et al., https://doi.org/10.1080/00031305.1983.10483115).

    Args:
        shape: The shape of one observation.
        clip: The largest absolute value of the result.
    """

    def __init__(self, shape: tuple[int, ...], clip: float = 10.0) -> None:
        super().__init__()
        self.n_dims = len(shape)
        self.clip = clip
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        # What calling needs, in the precision of observations.
        self.register_buffer("offset", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self.mean: Tensor
        self.variance: Tensor
        self.count: Tensor
        self.offset: Tensor
        self.scale: Tensor

    @torch.no_grad()
    def update(self, obs: Tensor, mask: Tensor | None = None) -> None:
        """Takes observations [..., *shape] into the statistics.

        Args:
            obs: The observations.
            mask: [...], False for rows that are no data; None if all are.
        """
        rows = obs.reshape(-1, *self.mean.shape)
        if mask is not None:
            rows = rows[mask.reshape(-1)]
        if not len(rows):
            return
        for part in torch.split(rows, max(1, _NUMBERS // max(1, self.mean.numel()))):
            self._merge(part.double())
        self.offset.copy_(self.mean)
        self.scale.copy_(torch.rsqrt(self.variance + EPSILON))

    @torch.no_grad()
    def spare_constants(self) -> None:
        """Leaves numbers that were always the same on their own scale, of which nothing is known.

        Else the least of a difference would be as large as can be.
        """
        constant = self.variance.sqrt() <= _CONSTANT * self.mean.abs().clamp(min=1)
        self.scale.masked_fill_(constant, 1.0)

    def _merge(self, rows: Tensor) -> None:
        variance, mean = torch.var_mean(rows, 0, correction=0)
        total = self.count + len(rows)
        delta = mean - self.mean
        share = len(rows) / total
        moment = self.variance * (1 - share) + variance * share
        # With no row before, `count` is 0 and `share` 1: the first variance of 1 has no weight.
        self.variance.copy_(moment + delta.square() * (self.count * share / total))
        self.mean.add_(delta * share)
        self.count.copy_(total)

    def forward(self, obs: Tensor) -> Tensor:
        """Observations [..., *shape], normalised and clipped."""
        buffers: dict[str, Any] = self._buffers
        scaled: Tensor = (obs - buffers["offset"]) * buffers["scale"]
        return scaled.clamp_(-self.clip, self.clip)


class CompositeNormalizer(nn.Module):
    """Normalisers for the parts of a Dict or Tuple space, where they have one."""

    def __init__(self, space: CompositeSpace, images: bool = False) -> None:
        super().__init__()
        made = {key: make_normalizer(part, images) for key, part in part_spaces(space).items()}
        self.keys = tuple(made)
        self.numbers = {
            key: index for index, key in enumerate(key for key in made if made[key] is not None)
        }
        self.parts = nn.ModuleList(part for part in made.values() if part is not None)

    def update(self, obs: Any, mask: Tensor | None = None) -> None:
        """Takes observations into the statistics of each part."""
        for key, number in self.numbers.items():
            part: Any = self.parts[number]
            part.update(get_part(obs, key), mask)

    def forward(self, obs: Any) -> Mapping[str, Any]:
        """The parts by key, normalised where they are numbers."""
        parts = {key: get_part(obs, key) for key in self.keys}
        for key, number in self.numbers.items():
            parts[key] = self.parts[number](parts[key])
        return parts


Normalizer = ObservationNormalizer | CompositeNormalizer


def make_normalizer(space: Space[Any], images: bool = False) -> Normalizer | None:
    """A normaliser for a space, or None where none makes sense.

    Args:
        space: Categories have none.
        images: Whether every pixel is normalised by itself, which networks that only learn from
            images do without.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return CompositeNormalizer(space, images)
    if isinstance(space, spaces.Box) and (images or not is_image(space)):
        return ObservationNormalizer(shape_of(space))
    return None

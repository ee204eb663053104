"""Running normalisation of observations."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from guerdon.data.spaces import part_spaces
from guerdon.nn.config import ModelConfig
from guerdon.nn.spaces import CompositeSpace, get_part, is_image, shape_of

EPSILON = 1e-8
POLICY_STEADY_AFTER = 2_000  # about one rollout of ppo with its default options
_CONSTANT = 1e-6  # relative standard deviation below which a feature counts as constant
_NUMBERS = 1 << 22  # numbers converted to doubles at a time, to limit memory


class ObservationNormalizer(nn.Module):
    """Normalise observations by their running mean and variance.

    Only `update` changes the statistics: calling the module is pure. Sums are kept in double
    precision and merged batch by batch (Chan et al., https://doi.org/10.1080/00031305.1983.10483115).

    Args:
        shape: Shape of one observation.
        clip: Largest absolute value of the result.
        steady_after: Number of observations after which the offset stays, and the scale changes
            only where the variance exceeds its previous maximum. A policy changes the distribution
            of its observations; inputs that followed it would change the policy in turn.
    """

    def __init__(
        self, shape: tuple[int, ...], clip: float = 10.0, steady_after: float = math.inf
    ) -> None:
        super().__init__()
        self.clip = clip
        self.steady_after = steady_after
        self.mean = nn.Buffer(torch.zeros(shape, dtype=torch.float64))
        self.variance = nn.Buffer(torch.ones(shape, dtype=torch.float64))
        self.count = nn.Buffer(torch.zeros((), dtype=torch.float64))
        # In the dtype of observations.
        self.offset = nn.Buffer(torch.zeros(shape))
        self.scale = nn.Buffer(torch.ones(shape))

    @torch.no_grad()
    def update(self, obs: Tensor) -> None:
        """Update the statistics with observations [..., *shape]."""
        rows = obs.reshape(-1, *self.mean.shape)
        if not len(rows):
            return
        is_steady = self.count >= self.steady_after
        for part in torch.split(rows, max(1, _NUMBERS // max(1, self.mean.numel()))):
            self._merge(part.double())
        scale = torch.rsqrt(self.variance + EPSILON)
        self.offset.copy_(torch.where(is_steady, self.offset, self.mean))
        self.scale.copy_(torch.where(is_steady, torch.minimum(self.scale, scale), scale))

    @torch.no_grad()
    def spare_constants(self) -> None:
        """Do not scale constant features: tiny changes would become huge."""
        constant = self.variance.sqrt() <= _CONSTANT * self.mean.abs().clamp(min=1)
        self.scale.masked_fill_(constant, 1.0)

    def _merge(self, rows: Tensor) -> None:
        variance, mean = torch.var_mean(rows, 0, correction=0)
        total = self.count + len(rows)
        delta = mean - self.mean
        share = len(rows) / total
        moment = self.variance * (1 - share) + variance * share
        # Initially `count` is 0 and `share` 1, so that the initial variance has no weight.
        self.variance.copy_(moment + delta.square() * (self.count * share / total))
        self.mean.add_(delta * share)
        self.count.copy_(total)

    def forward(self, obs: Tensor) -> Tensor:
        """Return observations [..., *shape] normalised and clipped."""
        return ((obs - self.offset) * self.scale).clamp_(-self.clip, self.clip)


class CompositeNormalizer(nn.Module):
    """Normalisers of the parts of a Dict or Tuple space."""

    def __init__(
        self, space: CompositeSpace, images: bool = False, steady_after: float = math.inf
    ) -> None:
        super().__init__()
        made = {
            key: make_normalizer(part, images, steady_after)
            for key, part in part_spaces(space).items()
        }
        self.keys = tuple(made)
        normalizers = {key: part for key, part in made.items() if part is not None}
        self.normalized = tuple(normalizers)
        self.parts = nn.ModuleList(normalizers.values())

    def update(self, obs: Any) -> None:
        """Update the statistics of each part."""
        for key, part in zip(self.normalized, self.parts, strict=True):
            part.update(get_part(obs, key))  # type: ignore[operator]

    def forward(self, obs: Any) -> Mapping[str, Any]:
        """Return the parts by key, normalised if they have a normaliser."""
        parts = {key: get_part(obs, key) for key in self.keys}
        for key, part in zip(self.normalized, self.parts, strict=True):
            parts[key] = part(parts[key])
        return parts


def make_normalizer(
    space: Space[Any], images: bool = False, steady_after: float = math.inf
) -> ObservationNormalizer | CompositeNormalizer | None:
    """Make the normaliser of a space; None for categories (and images).

    Args:
        space: Observation space.
        images: Whether to normalise pixels of images, too.
        steady_after: See `ObservationNormalizer`.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return CompositeNormalizer(space, images, steady_after)
    if isinstance(space, spaces.Box) and (images or not is_image(space)):
        return ObservationNormalizer(shape_of(space), steady_after=steady_after)
    return None


def make_policy_normalizer(
    space: Space[Any], config: ModelConfig
) -> ObservationNormalizer | CompositeNormalizer | None:
    """Make the normaliser of a policy's network; None without ``config.normalize_obs``."""
    if not config.normalize_obs:
        return None
    return make_normalizer(space, steady_after=POLICY_STEADY_AFTER)

"""Out-of-distribution scores: how far transitions are from the data that a model was fitted to.

Transitions are compared as vectors: numbers, one-hot categories, and mean colours of image cells.
Nothing here is trained, so that a score means the same for every model.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from guerdon.data.batch import Batch
from guerdon.data.spaces import part_spaces
from guerdon.nn.spaces import get_part, is_image

BEYOND = 0.99
"""Score from which a transition is out of distribution."""
SIZE = 1_000
"""Maximum number of fitted rows that are kept."""
_NEIGHBOURS = 3
_CELLS = 8  # per side of an image
_CHUNK = 1_024


def comparable(values: Any, space: spaces.Space[Any]) -> Tensor:
    """Return values of a space [...] as vectors [..., size]."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = part_spaces(space).items()
        return torch.cat([comparable(get_part(values, key), part) for key, part in parts], -1)
    numbers: Tensor = torch.as_tensor(values)
    if isinstance(space, spaces.Discrete):
        one_hot: Tensor = functional.one_hot(numbers.long() - int(space.start), int(space.n))
        return one_hot.float()
    shape = space.shape or ()
    lead = numbers.shape[: numbers.ndim - len(shape)]
    if is_image(space):
        return image_cells(numbers.reshape(-1, *shape)).reshape(*lead, -1)
    return numbers.reshape(*lead, -1).float()


def image_cells(images: Tensor) -> Tensor:
    """Return the mean colours [N, size] of the cells of images [N, C, H, W] or [N, H, W, C]."""
    if images.shape[-1] < images.shape[-3]:
        images = images.movedim(-1, -3)
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    return functional.adaptive_avg_pool2d(images.float() / scale, _CELLS).flatten(1)


def frame_vectors(frames: Mapping[str, Any] | Batch) -> Tensor:
    """Return images [N, ...] of several cameras as vectors [N, size]."""
    return torch.cat(
        [image_cells(torch.as_tensor(frames[key])) for key in sorted(frames.keys())], -1
    )


class Reference:
    """A sample of the fitted data, which new transitions are compared with.

    Attributes:
        rows: Vectors [N, size]; empty if nothing is known.
        distances: For each, the distance to those of other groups, in order [N].
        disagreement: Standard deviation of an ensemble's members for fitted transitions, in order;
            empty without an ensemble.
        moments: Standard deviation and mean of the vectors [K, 2, size], of all and of first ones.
        rewards: Rewards of fitted transitions, in order; empty if unknown.
    """

    def __init__(self) -> None:
        self.rows = torch.zeros(0, 0)
        self.distances = torch.zeros(0)
        self.moments = torch.zeros(0, 2, 0)
        self.disagreement = torch.zeros(0)
        self.rewards = torch.zeros(0)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def floor(self) -> float | None:
        """Lowest reward of fitted transitions; None if unknown."""
        return float(self.rewards[0]) if len(self.rewards) else None

    def well_paid(self, rew: Tensor) -> Tensor:
        """Return which rewards [...] are at least the median of fitted transitions."""
        return rew >= (self.rewards.median() if len(self.rewards) else -torch.inf)

    def fit(
        self, rows: Tensor, groups: np.ndarray, seed: int = 0, first: np.ndarray | None = None
    ) -> None:
        """Replace the sample.

        Args:
            rows: Vectors [N, size].
            groups: Number of the episode, or else, of each [N]. Rows of one group resemble each
                other, so that the distances that are normal are those to other groups.
            seed: Seed for drawing the sample.
            first: Which rows a policy may be limited to, since an episode ends there [N].
        """
        if len(rows) < 2:
            return
        parts = (
            [rows] if first is None or first.sum() < 2 else [rows, rows[torch.from_numpy(first)]]
        )
        moments = [torch.stack(torch.std_mean(part.float(), 0, correction=0)) for part in parts]
        self.moments = torch.stack(moments).cpu()
        chosen = np.arange(len(rows))
        if len(rows) > SIZE:
            generator = np.random.default_rng(seed)
            chosen = np.sort(generator.choice(len(rows), SIZE, replace=False))
        self.rows = rows[torch.from_numpy(chosen).to(rows.device)].float().cpu()
        _, group = np.unique(groups[chosen], return_inverse=True)
        if group.max() == 0:
            group = np.arange(len(group))
        same = torch.from_numpy(group[:, None] == group)
        scaled = self._scaled(self.rows)
        distances = torch.cdist(scaled, scaled).masked_fill_(same, torch.inf)
        self.distances = _nearest(distances).sort()[0]

    def score(self, rows: Tensor) -> Tensor:
        """Return scores [...] of vectors [..., size].

        A score is the share of fitted rows that are nearer to fitted rows of other groups: 0.5 is
        typical, and 1 is farther than any of them.
        """
        flat, known = rows.reshape(-1, rows.shape[-1]), self._scaled(self.rows.to(rows.device))
        parts = torch.split(self._scaled(flat.float()), _CHUNK)
        distances = [_nearest(torch.cdist(part, known)) for part in parts]
        return _share_below(self.distances, torch.cat(distances)).reshape(rows.shape[:-1])

    def shift(self, mean: Any) -> float:
        """Return by how many standard deviations a mean vector [size] is shifted.

        This is the number that differs most. It finds policies whose transitions are all possible,
        but always the same. If there are first rows, the nearer of both kinds counts.
        """
        spread, known = self.moments.unbind(1)
        shifts = (torch.as_tensor(mean, dtype=torch.float32) - known) / _scale(spread, known)
        return float(shifts.abs().amax(-1).min())

    def disagrees(self, spread: Tensor) -> Tensor:
        """Return the share of fitted rows that members disagree less on, for their spread [...]."""
        return _share_below(self.disagreement, spread)

    def _scaled(self, rows: Tensor) -> Tensor:
        spread, mean = self.moments[0].to(rows.device)
        scaled: Tensor = (rows - mean) / _scale(spread, mean)
        return scaled

    def training_state(self) -> dict[str, Any]:
        """Return copies of everything."""
        return {name: value.clone() for name, value in vars(self).items()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`."""
        for name in vars(self):
            setattr(self, name, torch.as_tensor(state[name]).clone())


def _scale(spread: Tensor, mean: Tensor) -> Tensor:
    """Return standard deviations, but 1 for constant numbers, whose scale is unknown."""
    return torch.where(spread <= 1e-6 * mean.abs().clamp(min=1), 1.0, spread)


def _nearest(distances: Tensor) -> Tensor:
    """Return the mean of the smallest distances [N] of [N, M], which may be infinite."""
    number = min(_NEIGHBOURS, distances.shape[1])
    found = distances.topk(number, largest=False).values
    finite = torch.isfinite(found)
    return torch.where(finite, found, 0.0).sum(1) / finite.sum(1).clamp(min=1)


def _share_below(known: Tensor, values: Tensor) -> Tensor:
    place = torch.searchsorted(known.to(values.device), values.contiguous())
    return place.float() / max(len(known), 1)

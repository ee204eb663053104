"""Running statistics, and rewards scaled by the standard deviation of their discounted return."""

import math
from dataclasses import dataclass

import numpy as np

from guerdon.reward.base import Stateful


@dataclass
class RunningMoments(Stateful):
    """Mean and variance of a stream of numbers, updated by batches (Chan et al.)."""

    count: float = 0.0
    mean: float = 0.0
    square: float = 0.0
    """Sum of squared deviations from the mean."""

    saved = ("count", "mean", "square")

    def update(self, values: np.ndarray, window: float = math.inf) -> None:
        """Update with new numbers; older ones decay so that about `window` of them count."""
        values = values.astype(np.float64)
        number = len(values)
        if not number:
            return
        older = min(self.count, max(window - number, 0))
        total = older + number
        delta = float(values.mean()) - self.mean
        if older < self.count:
            self.square *= older / self.count
        self.mean += delta * number / total
        self.square += float(values.var()) * number + delta**2 * older * number / total
        self.count = total

    @property
    def variance(self) -> float:
        """Variance; 0 without numbers."""
        return self.square / self.count if self.count else 0.0


class ReturnScaler(Stateful):
    """Tracks the discounted return of every environment, and its standard deviation."""

    saved = ("returns", "moments")

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.returns = np.zeros(0)
        self.moments = RunningMoments()

    def collect(self, rew: np.ndarray, mask: np.ndarray, first: np.ndarray | None = None) -> None:
        """Update with rewards of a rollout [T, B].

        Without ``first`` (which rows begin an episode), returns continue across episodes.
        """
        if len(self.returns) != rew.shape[1]:
            self.returns = np.zeros(rew.shape[1])
        for t, now in enumerate(rew.astype(np.float64)):
            before = self.returns if first is None else np.where(first[t], 0.0, self.returns)
            self.returns = np.where(mask[t], self.gamma * before + now, self.returns)
            self.moments.update(self.returns[mask[t]])

    @property
    def scale(self) -> float:
        """Factor of rewards."""
        if self.moments.count < 2:
            return 1.0
        return 1.0 / math.sqrt(self.moments.variance + 1e-8)

"""Running statistics, and rewards scaled by the standard deviation of their discounted return."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass
class RunningMoments:
    """Mean and variance of a stream of numbers, merged batch by batch (Chan et al.)."""

    count: float = 0.0
    mean: float = 0.0
    square: float = 0.0
    """Sum of squared deviations from the mean."""

    def update(self, values: np.ndarray, window: float = math.inf) -> None:
        """Take numbers.

        Args:
            values: The numbers.
            window: About how many numbers count; the weight of older ones decays.
        """
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
        """The variance; 0 without numbers."""
        return self.square / self.count if self.count else 0.0


class ReturnScaler:
    """Tracks the discounted return of every environment, and its standard deviation.

    Only `collect` changes anything, on fresh rollouts in time order.

    Args:
        gamma: Discount of the return.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self._returns = np.zeros(0)
        self._moments = RunningMoments()

    def collect(self, rew: np.ndarray, mask: np.ndarray, first: np.ndarray | None = None) -> None:
        """Take a rollout [T, B].

        Args:
            rew: Rewards.
            mask: Which rows are transitions.
            first: Which rows begin an episode; None lets the return run on across episodes.
        """
        if len(self._returns) != rew.shape[1]:
            self._returns = np.zeros(rew.shape[1])
        for t, now in enumerate(rew.astype(np.float64)):
            before = self._returns if first is None else np.where(first[t], 0.0, self._returns)
            self._returns = np.where(mask[t], self.gamma * before + now, self._returns)
            self._moments.update(self._returns[mask[t]])

    @property
    def scale(self) -> float:
        """The factor of rewards."""
        if self._moments.count < 2:
            return 1.0
        return 1.0 / math.sqrt(self._moments.variance + 1e-8)

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume."""
        return {"returns": self._returns.copy(), **asdict(self._moments)}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore `training_state`."""
        moments = dict(state)
        self._returns = np.array(moments.pop("returns"))
        self._moments = RunningMoments(**moments)

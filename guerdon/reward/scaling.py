"""Running statistics, and rewards scaled by the standard deviation of their discounted return."""

import math
from collections.abc import Mapping
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
        """Take numbers; about `window` of them count, as the weight of older ones decays."""
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

    def training_state(self) -> dict[str, float]:
        """Everything that is needed to resume."""
        return asdict(self)

    def load_training_state(self, state: Mapping[str, float]) -> None:
        """Restore `training_state`."""
        vars(self).update(state)


class ReturnScaler:
    """Tracks the discounted return of every environment, and its standard deviation."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self._returns = np.zeros(0)
        self._moments = RunningMoments()

    def collect(self, rew: np.ndarray, mask: np.ndarray, first: np.ndarray | None = None) -> None:
        """Take rewards of a rollout [T, B].

        Without ``first``, which rows begin an episode, returns run on across episodes.
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
        return {"returns": self._returns.copy(), **self._moments.training_state()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`."""
        self._returns = np.array(state["returns"])
        self._moments = RunningMoments(*(state[name] for name in vars(self._moments)))

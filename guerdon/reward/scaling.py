"""Scales rewards by the standard deviation of their discounted return."""

from __future__ import annotations

from typing import Any

import numpy as np


class ReturnScaler:
    """Tracks the discounted return of every environment, and its standard deviation.

    Only `collect` changes anything, on fresh rollouts in time order.

    Args:
        gamma: Discount of the return.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self._returns = np.zeros(0)
        self._count, self._mean, self._square = 0.0, 0.0, 0.0

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
            self._merge(self._returns[mask[t]])

    def _merge(self, values: np.ndarray) -> None:
        """Chan's update of count, mean and sum of squares."""
        if not len(values):
            return
        mean, total = values.mean(), self._count + len(values)
        delta = mean - self._mean
        self._mean += delta * len(values) / total
        self._square += values.var() * len(values) + delta**2 * self._count * len(values) / total
        self._count = total

    @property
    def scale(self) -> float:
        """The factor of rewards."""
        if self._count < 2:
            return 1.0
        return float(1.0 / np.sqrt(self._square / self._count + 1e-8))

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume."""
        return {
            "returns": self._returns.copy(),
            "count": self._count,
            "mean": float(self._mean),
            "square": float(self._square),
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore `training_state`."""
        self._returns = np.asarray(state["returns"]).copy()
        self._count, self._mean = state["count"], state["mean"]
        self._square = state["square"]

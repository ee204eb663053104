"""Rewards on the scale of one: divided by the spread of the discounted return."""

from __future__ import annotations

from typing import Any

import numpy as np


class ReturnScaler:
    """Follows the discounted return of every environment, and knows its spread.

    Dividing by it keeps value targets near one whatever the environment pays. Only `collect`
    changes anything, on fresh rollouts in time order; `scale` is pure.

    Args:
        gamma: Discount of the return.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self._returns = np.zeros(0)
        self._count, self._mean, self._square = 0.0, 0.0, 0.0

    def collect(self, rew: np.ndarray, over: np.ndarray, mask: np.ndarray) -> None:
        """Takes a rollout [T, B]: rewards, where episodes are over, and which rows are real."""
        if len(self._returns) != rew.shape[1]:
            self._returns = np.zeros(rew.shape[1])
        for now, ends, real in zip(rew.astype(np.float64), over, mask, strict=True):
            self._returns = np.where(real, self.gamma * self._returns + now, self._returns)
            self._merge(self._returns[real])
            self._returns[ends & real] = 0.0

    def break_off(self, env_ids: np.ndarray | None = None) -> None:
        """Forgets the running episodes of some environments (None: all)."""
        if len(self._returns):
            self._returns[slice(None) if env_ids is None else env_ids] = 0.0

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
        """What rewards are multiplied with."""
        if self._count < 2:
            return 1.0
        return float(1.0 / np.sqrt(self._square / self._count + 1e-8))

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        return {
            "returns": self._returns.copy(),
            "count": self._count,
            "mean": float(self._mean),
            "square": float(self._square),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self._returns = np.asarray(state["returns"]).copy()
        self._count, self._mean = state["count"], state["mean"]
        self._square = state["square"]

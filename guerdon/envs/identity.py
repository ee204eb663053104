"""Environments that every agent learns within seconds."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Identity(gymnasium.Env[np.ndarray, np.int64]):
    """Reward 1 for the observed action, else 0. The best return is `length`.

    Args:
        n_actions: Number of actions; the observation is the right action, one-hot.
        length: Steps after which an episode is truncated.
    """

    def __init__(self, n_actions: int = 4, length: int = 10) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (n_actions,), np.float32)
        self.action_space = spaces.Discrete(n_actions)
        self._eye = np.eye(n_actions, dtype=np.float32)
        self._length = length
        self._shown = 0
        self._step = 0

    def _show(self) -> np.ndarray:
        self._shown = int(self.np_random.integers(len(self._eye)))
        shown: np.ndarray = self._eye[self._shown].copy()
        return shown

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a new episode."""
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._show(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Return the reward of the action, and draw the next observation."""
        reward = float(action == self._shown)
        self._step += 1
        return self._show(), reward, False, self._step >= self._length, {}


class Target(gymnasium.Env[np.ndarray, np.ndarray]):
    """Reward: negative squared distance between action and observation. The best return is 0.

    Args:
        size: Dimension of both.
        length: Steps after which an episode is truncated.
    """

    def __init__(self, size: int = 1, length: int = 10) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self._length = length
        self._target = np.zeros(size, np.float32)
        self._step = 0

    def _show(self) -> np.ndarray:
        size = self._target.shape
        self._target = self.np_random.uniform(-1.0, 1.0, size).astype(np.float32)
        return self._target.copy()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a new episode."""
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._show(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Return the reward of the action, and draw the next target."""
        reward = -float(np.square(action - self._target).sum())
        self._step += 1
        return self._show(), reward, False, self._step >= self._length, {}

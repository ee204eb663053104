"""An environment in which ending early is best, and demonstrations of it."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from guerdon.data import Batch, Demonstrations

STEPS = 25
LIMIT = 100
STAY, GO = 0, 1


class Errand(gymnasium.Env[np.ndarray, np.int64]):
    """Walk `STEPS` steps to the end, at -1 per step. The best return is -25, the worst -100."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def _show(self) -> np.ndarray:
        return np.array([self._place / STEPS], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start at 0."""
        super().reset(seed=seed, options=options)
        self._place = self._step = 0
        return self._show(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Stay, or take one step towards the end."""
        self._place += int(action)
        self._step += 1
        return self._show(), -1.0, self._place >= STEPS, self._step >= LIMIT, {}


def errands(n_episodes: int = 10) -> Demonstrations:
    """Demonstrations that never stay."""
    place = np.arange(STEPS + 1, dtype=np.float32)[:, None] / STEPS
    episode = Batch(
        obs=place[:-1],
        act=np.full(STEPS, GO),
        rew=-np.ones(STEPS, np.float32),
        terminated=np.arange(STEPS) == STEPS - 1,
        truncated=np.zeros(STEPS, bool),
        obs_next=place[1:],
    )
    space = Errand.observation_space, Errand.action_space
    return Demonstrations([episode] * n_episodes, None, *space)

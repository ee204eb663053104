"""A line on which a policy changes the distribution of its own observations."""

from typing import Any

import gymnasium
import numpy as np


class Line(gymnasium.Env[np.ndarray, np.int64]):
    """Steps of 0.1 to the left or right on [-1, 1] from about 0; the reward is -abs(x - 0.7).

    An episode has 40 steps. Going right in all of them returns -11.7; -3.7 is the best possible.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode within 0.1 of the middle."""
        super().reset(seed=seed, options=options)
        self.position = self.np_random.uniform(-0.1, 0.1)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Go left (0) or right (1)."""
        self.position = float(np.clip(self.position + (0.1 if action else -0.1), -1, 1))
        self.steps += 1
        return self._observation(), -abs(self.position - 0.7), False, self.steps == 40, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.position], np.float32)

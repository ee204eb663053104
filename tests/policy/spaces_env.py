"""An environment with any spaces, whose observations are random and whose episodes have 5 steps."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

OBSERVATIONS = {
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "double": spaces.Box(-1.0, 1.0, (3,), np.float64),
    "number": spaces.Discrete(5, start=2),
    "image": spaces.Box(0, 255, (3, 12, 12), np.uint8),
    "dict": spaces.Dict(place=spaces.Box(-1.0, 1.0, (3,), np.float32), kind=spaces.Discrete(3)),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "discrete_from_5": spaces.Discrete(3, start=5),
    "discrete_from_minus_1": spaces.Discrete(3, start=-1),
    "box": spaces.Box(np.float32([-2.0, 1.0]), np.float32([2.0, 5.0])),
    "box_double": spaces.Box(np.float64([-2.0, 1.0]), np.float64([2.0, 5.0]), dtype=np.float64),
    "box_2_by_3": spaces.Box(-2.0, 2.0, (2, 3), np.float32),
    "box_one_fixed": spaces.Box(np.float32([-1.0, 3.0]), np.float32([1.0, 3.0])),
}


class AnySpaces(gymnasium.Env[Any, Any]):
    """Accepts only actions of its space, with the right type."""

    def __init__(self, observation: str, action: str) -> None:
        self.observation_space = OBSERVATIONS[observation]
        self.action_space = ACTIONS[action]
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert np.asarray(action).dtype == self.action_space.dtype
        assert self.action_space.contains(action), action
        self._steps += 1
        over = self._steps == 5
        terminated = over and bool(self.np_random.integers(2))
        return self.observation_space.sample(), 1.0, terminated, over and not terminated, {}

"""Environments with nested observations, in a module that is quick to import elsewhere."""

import os

import gymnasium
import numpy as np
from gymnasium import spaces

from guerdon.envs import Counting


class Demanding(Counting):
    """Has to be told something."""

    def __init__(self, goal, **others):
        super().__init__(**others)
        self.goal = goal


class Looking(gymnasium.Env):
    """Observes a dictionary of arrays, and tells how many threads it may use."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (3, 5), np.uint8), "count": spaces.Discrete(100)}
    )
    action_space = spaces.Dict({"go": spaces.Box(-1, 1, (2,), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.count = 0
        return self.observed(), {}

    def observed(self):
        return {"image": np.full((3, 5), self.count, np.uint8), "count": self.count}

    def step(self, action):
        self.count += 1
        threads = os.environ["OMP_NUM_THREADS"]
        info = {"threads": threads, "action": float(action["go"].sum())}
        return self.observed(), 0.5, False, self.count == 2, info


class Telling(Looking):
    """The same with a text, which does not lie in shared memory."""

    observation_space = spaces.Dict(
        {**Looking.observation_space.spaces, "text": spaces.Text(9, charset="0123")}
    )

    def observed(self):
        return {**super().observed(), "text": str(self.count)}


class Parted(gymnasium.Env):
    """Observes a tuple, with another one inside."""

    observation_space = spaces.Tuple(
        [
            spaces.Discrete(100),
            spaces.Dict({"a": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32)])}),
        ]
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.count = 0
        return self.observed(), {}

    def observed(self):
        return self.count, {"a": (np.full(2, self.count / 2, np.float32),)}

    def step(self, action):  # noqa: ARG002
        self.count += 1
        return self.observed(), 0.0, False, False, {}

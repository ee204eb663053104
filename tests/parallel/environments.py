"""An environment that is slow, or fails once or always."""

import os
import time
from pathlib import Path

import gymnasium
import numpy as np

LENGTH = 5


class Faulty(gymnasium.Env):
    """Episodes of five steps, with a reward of 1 for each.

    Args:
        delay: Seconds that a step takes.
        fault: What happens in a step: ``raise``, ``hang``, ``abort``, ``nan`` or nothing.
        marker: A file that is made then, and prevents it from happening again.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, delay=0.0, fault=None, marker=None):
        self.delay, self.fault, self.marker = delay, fault, marker

    def reset(self, seed=None, options=None):  # noqa: ARG002
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def _observation(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):  # noqa: ARG002
        time.sleep(self.delay)
        self.steps += 1
        rew = 1.0
        if self.fault and self.steps == LENGTH - 1 and self._happens():
            if self.fault == "raise":
                raise ZeroDivisionError("the motor is off")
            if self.fault == "hang":
                time.sleep(3600)
            if self.fault == "abort":  # as a crash of a simulator
                os.abort()
            rew = float("nan")
        return self._observation(), rew, self.steps == LENGTH, False, {}

    def _happens(self):
        if self.marker is None:
            return True
        if Path(self.marker).exists():
            return False
        Path(self.marker).touch()
        return True

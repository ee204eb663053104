"""An environment for processes that do not import torch."""

import numpy as np

from guerdon.compat.nervex.gym_adapter import BaseEnvInfo, BaseEnvTimestep, EnvElementInfo


class Walk:
    """An environment with nerveX's interface: its state is a sum, and `length` steps an episode."""

    def __init__(self, cfg):
        self.length = cfg["length"]
        self.start = 0.0

    def seed(self, seed):
        self.start = float(seed)

    def reset(self):
        self.obs = np.array([self.start])
        self.age = 0
        return self.obs.copy()

    def step(self, action):
        assert isinstance(action, np.ndarray)
        self.obs += action
        self.age += 1
        return BaseEnvTimestep(self.obs.copy(), np.array([0.5]), self.age == self.length, {"n": 1})

    def info(self):
        return BaseEnvInfo(
            1, EnvElementInfo((1,)), EnvElementInfo((1,), {"min": -1.0, "max": 1.0}), None
        )

    def close(self):
        pass

"""Making vectors of environments, wrappers, and small built-in environments."""

import gymnasium

from guerdon.envs.counting import Counting
from guerdon.envs.identity import Identity, Target
from guerdon.envs.ids import UnknownEnvironmentError
from guerdon.envs.make import make_vec
from guerdon.envs.subprocess import EnvironmentFailedError
from guerdon.envs.vector import Step, VectorEnv

__all__ = [
    "Counting",
    "EnvironmentFailedError",
    "Identity",
    "Step",
    "Target",
    "UnknownEnvironmentError",
    "VectorEnv",
    "make_vec",
]

for _class in (Counting, Identity, Target):
    gymnasium.register(f"guerdon/{_class.__name__}-v0", f"{_class.__module__}:{_class.__name__}")

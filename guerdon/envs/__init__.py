"""Making vectors of environments, wrappers, and small built-in environments."""

import gymnasium

from guerdon.envs.bit_flip import BitFlip, BitFlipVector
from guerdon.envs.cartpole_fixed import LENGTH, CartPoleFixed, CartPoleFixedVector
from guerdon.envs.counting import Counting
from guerdon.envs.deep_sea import DeepSea, DeepSeaVector
from guerdon.envs.identity import Identity, Target
from guerdon.envs.ids import UnknownEnvironmentError, UnusableEnvironmentError
from guerdon.envs.make import make_vec
from guerdon.envs.subprocess import EnvironmentFailedError
from guerdon.envs.vector import Step, VectorEnv

__all__ = [
    "BitFlip",
    "BitFlipVector",
    "CartPoleFixed",
    "CartPoleFixedVector",
    "Counting",
    "DeepSea",
    "DeepSeaVector",
    "EnvironmentFailedError",
    "Identity",
    "Step",
    "Target",
    "UnknownEnvironmentError",
    "UnusableEnvironmentError",
    "VectorEnv",
    "make_vec",
]

for _class, _vector, _limit in (
    (BitFlip, BitFlipVector, None),
    (CartPoleFixed, CartPoleFixedVector, LENGTH),
    (Counting, None, None),
    (DeepSea, DeepSeaVector, None),
    (Identity, None, None),
    (Target, None, None),
):
    gymnasium.register(
        f"guerdon/{_class.__name__}-v0",
        f"{_class.__module__}:{_class.__name__}",
        max_episode_steps=_limit,
        vector_entry_point=_vector and f"{_vector.__module__}:{_vector.__name__}",
    )

"""Vector environments, wrappers, and small built-in environments."""

import gymnasium

from guerdon.envs.bit_flip import BitFlip, BitFlipVector
from guerdon.envs.cartpole_fixed import LENGTH, CartPoleFixed, CartPoleFixedVector
from guerdon.envs.counting import Counting
from guerdon.envs.deep_sea import DeepSea, DeepSeaVector
from guerdon.envs.identity import Identity, Target
from guerdon.envs.ids import UnknownEnvironmentError, UnusableEnvironmentError
from guerdon.envs.make import make_vec
from guerdon.envs.subprocess import EnvironmentFailedError
from guerdon.envs.tabletop import LENGTH as TABLETOP_LENGTH
from guerdon.envs.tabletop import Push, PushVector, Reach, ReachVector
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
    "Push",
    "PushVector",
    "Reach",
    "ReachVector",
    "Step",
    "Target",
    "UnknownEnvironmentError",
    "UnusableEnvironmentError",
    "VectorEnv",
    "make_vec",
]

for _name, _class, _vector, _limit, _kwargs in (
    ("BitFlip", BitFlip, BitFlipVector, None, {}),
    ("CartPoleFixed", CartPoleFixed, CartPoleFixedVector, LENGTH, {}),
    ("Counting", Counting, None, None, {}),
    ("DeepSea", DeepSea, DeepSeaVector, None, {}),
    ("Identity", Identity, None, None, {}),
    ("Push", Push, PushVector, TABLETOP_LENGTH, {}),
    ("Reach", Reach, ReachVector, TABLETOP_LENGTH, {}),
    ("ReachLoophole", Reach, ReachVector, TABLETOP_LENGTH, {"loophole": True}),
    ("Target", Target, None, None, {}),
):
    gymnasium.register(
        f"guerdon/{_name}-v0",
        f"{_class.__module__}:{_class.__name__}",
        max_episode_steps=_limit,
        vector_entry_point=_vector and f"{_vector.__module__}:{_vector.__name__}",
        kwargs=_kwargs,
    )

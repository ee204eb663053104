"""CartPole with nerveX's interface."""

from typing import ClassVar

from guerdon.compat.nervex.gym_adapter import GymEnv


class CartPoleEnv(GymEnv):
    """CartPole-v0: episodes of 200 steps."""

    env_id = "CartPole-v1"
    options: ClassVar = {"max_episode_steps": 200}

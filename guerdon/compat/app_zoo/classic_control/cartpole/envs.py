"""The environment."""

from typing import Any, ClassVar

from guerdon.compat.nervex.envs import BaseEnv, register_env
from guerdon.compat.nervex.gym_adapter import GymEnv


class CartPoleEnv(GymEnv, BaseEnv):
    """CartPole with episodes of up to 200 steps, in nerveX's form.

    Args:
        cfg: Settings, of which none are read.
    """

    env_id = "CartPole-v1"
    options: ClassVar[dict[str, Any]] = {"max_episode_steps": 200}


register_env("cartpole", CartPoleEnv)

"""Environments with the older API of Gym, one or several."""

from typing import Any

import gymnasium

from guerdon import envs
from guerdon.compat.nervex.gym_adapter import AsGymnasium


class OneEnv(AsGymnasium):
    """A Gymnasium environment over one of Gym, which has spaces and maybe no `seed`."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """See Gymnasium."""
        return super().reset(seed=seed if hasattr(self.env, "seed") else None, options=options)

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        if hasattr(self.env, "close"):
            self.env.close()


def as_vector(env: Any) -> envs.VectorEnv:
    """Return a vector of environments: as it is, or of one environment or a list of them."""
    if isinstance(env, envs.VectorEnv):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        return envs.VectorEnv(env)
    given = env if isinstance(env, list) else [env]
    made = [each if isinstance(each, gymnasium.Env) else OneEnv(each) for each in given]
    return envs.make_vec(lambda each: each, len(made), settings=made, backend="base")

"""Environments in the style of Tianshou: functions that make one, and the older API of Gym."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from guerdon import envs


class OneEnv(gymnasium.Env[Any, Any]):
    """One environment of Gym or Gymnasium, with Gymnasium's API.

    In the older API `reset` returns the observation alone, `step` returns ``done`` instead of
    ``terminated`` and ``truncated``, and `seed` is a method.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.spec = getattr(env, "spec", None)
        self._takes_seed = "seed" in inspect.signature(env.reset).parameters

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """See Gymnasium."""
        if self._takes_seed:
            found = self.env.reset(seed=seed, options=options)
        else:
            if seed is not None and hasattr(self.env, "seed"):
                self.env.seed(seed)
            found = self.env.reset()
        new = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)
        return found if new else (found, {})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See Gymnasium."""
        obs, rew, *ends, info = self.env.step(action)
        if len(ends) == 1:
            truncated = bool(ends[0]) and bool(info.get("TimeLimit.truncated", False))
            ends = [bool(ends[0]) and not truncated, truncated]
        return obs, rew, *ends, info

    def render(self) -> Any:
        """Return what the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def DummyVectorEnv(env_fns: Sequence[Callable[[], Any]]) -> envs.VectorEnv:  # noqa: N802
    """Make a vector of environments in this process, from functions that make one each."""
    return _vector(env_fns, "base")


def SubprocVectorEnv(env_fns: Sequence[Callable[[], Any]]) -> envs.VectorEnv:  # noqa: N802
    """Make a vector of environments in processes, from functions that make one each."""
    return _vector(env_fns, "subprocess")


def _vector(env_fns: Sequence[Callable[[], Any]], backend: Any) -> envs.VectorEnv:
    return envs.make_vec(_made, len(env_fns), settings=list(env_fns), backend=backend)


def _made(function: Callable[[], Any]) -> gymnasium.Env[Any, Any]:
    return OneEnv(function())


def as_vector(env: Any) -> envs.VectorEnv:
    """Return a vector environment as it is, and one environment as a vector of one."""
    if isinstance(env, envs.VectorEnv):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        return envs.VectorEnv(env)
    return DummyVectorEnv([lambda: env])

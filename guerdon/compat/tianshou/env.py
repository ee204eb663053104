"""Environments in the style of Tianshou: functions that make one, and the older API of Gym."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from guerdon import envs

_PASSED = ("close", "render")


class OneEnv(gymnasium.Env[Any, Any]):
    """One environment of Gym or Gymnasium, with Gymnasium's API.

    In the older one `reset` returns the observation alone, `step` returns ``done`` instead of
    ``terminated`` and ``truncated``, and `seed` is a method.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.spec = env, getattr(env, "spec", None)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        vars(self).update({name: getattr(env, name) for name in _PASSED if hasattr(env, name)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """See Gymnasium."""
        if "seed" in inspect.signature(self.env.reset).parameters:
            return self.env.reset(seed=seed, options=options)  # type: ignore[no-any-return]
        if seed is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)
        return self.env.reset(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See Gymnasium."""
        obs, rew, *ends, info = self.env.step(action)
        if len(ends) == 1:
            truncated = bool(ends[0]) and bool(info.get("TimeLimit.truncated", False))
            ends = [bool(ends[0]) and not truncated, truncated]
        return obs, rew, *ends, info


def DummyVectorEnv(env_fns: Sequence[Callable[[], Any]]) -> envs.VectorEnv:  # noqa: N802
    """Make a vector of environments in this process, from functions that make one each."""
    return envs.make_vec(_made, len(env_fns), settings=list(env_fns), backend="base")


def _made(function: Callable[[], Any]) -> gymnasium.Env[Any, Any]:
    return OneEnv(function())


def as_vector(env: Any) -> envs.VectorEnv:
    """Return a vector environment as it is, and one environment as a vector of one."""
    if isinstance(env, envs.VectorEnv):
        return env
    if isinstance(env, gymnasium.vector.VectorEnv):
        return envs.VectorEnv(env)
    return DummyVectorEnv([lambda: env])

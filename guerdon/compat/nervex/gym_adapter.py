"""nerveX's interface of environments over Gymnasium's, and the reverse.

Does not import torch, which environment processes do not need.
"""

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

BaseEnvTimestep = namedtuple("BaseEnvTimestep", "obs reward done info")
BaseEnvInfo = namedtuple("BaseEnvInfo", "agent_num obs_space act_space rew_space")
EnvElementInfo = namedtuple("EnvElementInfo", "shape value", defaults=[None])
AnyEnv = gymnasium.Env[Any, Any]


class GymEnv:
    """A Gymnasium environment with nerveX's interface; none of the settings are read."""

    env_id: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    """Arguments of `gymnasium.make`."""

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        self.cfg = cfg or {}
        self._env = gymnasium.make(self.env_id, **self.options)
        self._seed: int | None = None
        self._return = 0.0

    def seed(self, seed: int) -> None:
        """Seed the next `reset`."""
        self._seed = seed

    def reset(self) -> np.ndarray:
        """Start an episode, and return the first observation."""
        obs, _ = self._env.reset(seed=self._seed)
        self._seed, self._return = None, 0.0
        return np.asarray(obs, np.float32)

    def step(self, action: Any) -> BaseEnvTimestep:
        """Take a step; ``reward`` is an array [1], and an episode's return is in its last info."""
        shape = self._env.action_space.shape or ()
        obs, reward, terminated, truncated, info = self._env.step(np.reshape(action, shape))
        self._return += float(reward)
        done = terminated or truncated
        if done:
            info = {**info, "final_eval_reward": self._return}
            info["TimeLimit.truncated"] = truncated and not terminated
        obs, reward = np.asarray(obs, np.float32), np.array([reward], np.float32)
        return BaseEnvTimestep(obs, reward, done, info)

    def info(self) -> BaseEnvInfo:
        """Return the sizes and bounds of observations, actions and rewards."""
        env = self._env
        reward = EnvElementInfo(1, {"min": -np.inf, "max": np.inf, "dtype": np.float32})
        return BaseEnvInfo(1, _element(env.observation_space), _element(env.action_space), reward)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _element(space: Any) -> EnvElementInfo:
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return EnvElementInfo(int(space.n), {"min": start, "max": start + int(space.n)})
    shape = space.shape[0] if len(space.shape) == 1 else space.shape
    return EnvElementInfo(shape, {"min": space.low, "max": space.high, "dtype": np.float32})


class AsGymnasium(AnyEnv):
    """A Gymnasium environment over one with nerveX's interface."""

    def __init__(self, env: Any) -> None:
        self.env = env
        info = env.info()
        self.observation_space = _space(info.obs_space, np.float32)
        self.action_space = _space(info.act_space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.env.seed(seed)
        return self.env.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; an episode is truncated if its info has ``TimeLimit.truncated``."""
        obs, reward, done, info = self.env.step(np.asarray(action))
        cut = bool(done) and bool(info.get("TimeLimit.truncated", False))
        return obs, float(np.sum(reward)), bool(done) and not cut, cut, dict(info)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _space(element: Any, dtype: Any = None) -> gymnasium.Space[Any]:
    """Return the space of an element; integer bounds without a dtype are discrete."""
    value = element.value or {"min": -np.inf, "max": np.inf}
    low, high = value["min"], value["max"]
    if dtype is None and isinstance(low, int) and isinstance(high, int) and "dtype" not in value:
        return spaces.Discrete(high - low, start=low)
    shape = (element.shape,) if isinstance(element.shape, int) else tuple(element.shape)
    low, high = (np.broadcast_to(bound, shape).astype(np.float32) for bound in (low, high))
    return spaces.Box(low, high, dtype=np.float32)


def as_gymnasium(env_fn: Callable[..., Any]) -> Callable[..., AnyEnv]:
    """Make a function that returns environments of either interface return Gymnasium's."""

    @wraps(env_fn, ("__name__", "__qualname__", "__module__", "__doc__"), ())
    def make(*args: Any, **kwargs: Any) -> AnyEnv:
        env = env_fn(*args, **kwargs)
        return env if isinstance(env, gymnasium.Env) else AsGymnasium(env)

    return make


def make_seeded(env_fn: Callable[..., Any], setting: tuple[Any, int | None]) -> AnyEnv:
    """Make an environment from its argument and a random seed, or None, of its first episode."""
    cfg, seed = setting
    env = as_gymnasium(env_fn)(cfg)
    if seed is not None:
        env.env.seed(seed) if isinstance(env, AsGymnasium) else env.reset(seed=seed)
    return env

"""nerveX's environments: their base class and registry, and those of its configs."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces, wrappers

from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.compat.nervex.gym_adapter import BaseEnvInfo as BaseEnvInfo
from guerdon.compat.nervex.gym_adapter import BaseEnvTimestep as BaseEnvTimestep
from guerdon.compat.nervex.gym_adapter import EnvElementInfo as EnvElementInfo
from guerdon.compat.nervex.gym_adapter import as_gymnasium
from guerdon.compat.stand_ins import here
from guerdon.config import ConfigError
from guerdon.config.errors import suggestion
from guerdon.config.imports import find_object, import_all

AnyEnv = gymnasium.Env[Any, Any]
Setting = tuple[type, list[Any], list[Any]]


class BaseEnv:
    """An environment: ``reset()`` returns an observation, ``step(action)`` a `BaseEnvTimestep`.

    Derived classes have ``seed(seed)``, ``info()`` (a `BaseEnvInfo`) and ``close()``, too, and are
    made with their settings.
    """

    @staticmethod
    def create_actor_env_cfg(cfg: Any) -> list[Any]:
        """Return the settings of the environments that collect."""
        return [cfg] * cfg.pop("actor_env_num", cfg.pop("collector_env_num", 1))

    @staticmethod
    def create_evaluator_env_cfg(cfg: Any) -> list[Any]:
        """Return the settings of the environments that evaluate."""
        return [cfg] * cfg.pop("evaluator_env_num", 1)


env_mapping: dict[str, type] = {}
"""Registered classes by name."""


def register_env(name: str, env: type) -> None:
    """Register a class for ``env.env_type``."""
    env_mapping[name] = env


def get_vec_env_setting(cfg: dict[str, Any]) -> Setting:
    """Return the `env_setting` of a section ``env``: a class, and settings to collect and evaluate.

    ``import_names`` and numbers of environments are removed from the section.
    """
    import_all([here(name) for name in cfg.pop("import_names", [])], "env.import_names")
    name = cfg["env_type"]
    if name not in env_mapping:
        raise ConfigError(
            f"there is no environment {name!r}: {suggestion(name, env_mapping)}, or name the "
            f"module that registers it in 'import_names'"
        )
    env = env_mapping[name]
    return env, *(
        getattr(env, make, getattr(BaseEnv, make))(cfg)
        for make in ("create_actor_env_cfg", "create_evaluator_env_cfg")
    )


def make_env(env_fn: str, cfg: Mapping[str, Any]) -> AnyEnv:
    """Make an environment of a class in nerveX's or Gymnasium's form, for ``env.id``."""
    return as_gymnasium(find_object(env_fn, "env.kwargs.env_fn"))(AttrDict(cfg))


# --- wrappers for environments that differ from guerdon's


class _SuccessReward(wrappers.TransformReward[Any, Any]):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> np.ndarray:
        reward: np.ndarray = self.get_wrapper_attr("unwrapped").compute_reward(
            achieved_goal, desired_goal, info
        )
        return reward + 1


def one_for_success(env: AnyEnv) -> AnyEnv:
    """Pay 1 for reaching a goal and 0 otherwise, instead of 0 and -1."""
    return _SuccessReward(env, lambda reward: float(reward) + 1)


def eleven_actions(env: AnyEnv) -> AnyEnv:
    """Make the actions eleven equally spaced values of a Box with one number."""
    box = env.action_space
    assert isinstance(box, spaces.Box)
    values = np.linspace(box.low, box.high, 11, dtype=box.dtype)
    return wrappers.TransformAction(env, lambda action: values[action], spaces.Discrete(11))

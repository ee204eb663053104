"""Rewards that are not learned: environment, constant, and user-defined function."""

import inspect
from collections.abc import Callable  # needed at run time by pydantic
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from guerdon.config.imports import find_object
from guerdon.data import Batch
from guerdon.reward.base import RewardConfig, RewardModel, register_reward_model
from guerdon.reward.trained import ExpertConfig, ExpertReward


@register_reward_model("env")
class EnvReward(RewardModel):
    """The environment reward."""

    def score(self, batch: Batch) -> Any:
        """Return the stored reward."""
        return batch.get("rew_env", batch.rew)


class ConstantConfig(ExpertConfig):
    """Options of `constant`; demonstrations are for `policy.model.normalize_obs` alone."""

    value: float = 1.0
    """Reward of every transition."""


@register_reward_model("constant")
class ConstantReward(ExpertReward):
    """Constant reward: a control for imitation. It does not depend on the demonstrations."""

    Config = ConstantConfig

    @classmethod
    def requirements(cls, config: Any) -> frozenset[str]:
        """See `RewardModel`; demonstrations, if they are given."""
        return cls.requires if config.expert_data_path else frozenset()

    def take_demonstrations(self, rows: Batch) -> None:
        """See `ExpertReward`; the policy may normalise observations by them."""

    def score(self, batch: Batch) -> Any:  # noqa: ARG002 - the same for all
        """Return the constant."""
        return self.config.value


class FunctionConfig(RewardConfig):
    """Options of `function`."""

    target: str | Callable[[Any], Any]
    """Reward function: ``package.module:name``, or the function itself."""
    fields: tuple[str, ...] = ("obs", "act", "obs_next", "terminated")
    """Fields of a transition that the function reads."""
    history: int = Field(default=0, ge=0)
    """Number of previous rows that the function reads as ``batch.before``."""

    @field_validator("target")
    @classmethod
    def _check_target(cls, target: Any) -> Any:
        if not str(target).startswith("<"):  # of a saved run: cannot be imported
            load_function(target, "reward.target")
        return target


@register_reward_model("function")
class FunctionReward(RewardModel):
    """Reward function of a batch of transitions, as NumPy arrays."""

    Config = FunctionConfig

    def __init__(self, config: Any, setting: Any = None) -> None:
        super().__init__(config, setting)
        target = self.config.target
        self._function = load_function(target, "reward.target")
        self._target = getattr(target, "__qualname__", str(target))
        _check_takes_one(self._function, self._target)
        self.fields, self.history = self.config.fields, self.config.history

    def score(self, batch: Batch) -> Any:
        """Return the result of the function."""
        shape = tuple(batch.rew.shape)
        try:
            rew = self._function(batch.to_numpy())
        except TypeError as error:
            raise ValueError(
                f"the reward function {self._target} failed for a Batch of transitions: {error}"
            ) from error
        if np.shape(rew) != shape:
            raise ValueError(
                f"the reward function {self._target} returned shape {tuple(np.shape(rew))} "
                f"for transitions of shape {shape}: it has to return one number per transition"
            )
        return rew


def _check_takes_one(function: Callable[..., Any], name: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins may have no signature
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ValueError(
            f"the reward function {name} is called with one argument, a Batch of transitions, "
            f"but takes {signature}"
        ) from None


def load_function(target: str | Callable[..., Any], option: str) -> Callable[..., Any]:
    """Return a function, given as itself, ``module:name`` or ``file.py:name``."""
    found: Callable[..., Any] = find_object(target, option) if isinstance(target, str) else target
    if not callable(found):
        raise ValueError(f"{option!r} has {target!r}, which is not a function: {found!r}")
    return found

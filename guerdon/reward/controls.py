"""Rewards that are not learned: the environment's, a constant, and a function of the user's."""

import inspect
from collections.abc import Callable  # where pydantic finds it
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from guerdon.config.imports import find_object
from guerdon.data import Batch
from guerdon.reward.base import RewardConfig, RewardModel, register_reward_model


@register_reward_model("env")
class EnvReward(RewardModel):
    """The environment's reward."""

    def score(self, batch: Batch) -> Any:
        """Return the stored reward."""
        return batch.get("rew_env", batch.rew)


class ConstantConfig(RewardConfig):
    """Options of `constant`."""

    value: float = 1.0
    """Reward of every transition."""


@register_reward_model("constant")
class ConstantReward(RewardModel):
    """The same reward for every transition: the control that imitation has to beat."""

    Config = ConstantConfig

    def score(self, batch: Batch) -> Any:  # noqa: ARG002 - the same for all
        """Return the constant."""
        return self.config.value


class FunctionConfig(RewardConfig):
    """Options of `function`."""

    target: str | Callable[[Any], Any]
    """The function: ``package.module:name``, or the function itself."""
    fields: tuple[str, ...] = ("obs", "act", "obs_next", "terminated")
    """Fields of a transition that the function reads."""
    history: int = Field(default=0, ge=0)
    """Number of earlier rows that the function reads, too, as ``batch.before``."""

    @field_validator("target")
    @classmethod
    def _check_target(cls, target: Any) -> Any:
        if not str(target).startswith("<"):  # of a run: needed only if rewards are
            load_function(target, "reward.target")
        return target


@register_reward_model("function")
class FunctionReward(RewardModel):
    """A function from a batch of transitions, as NumPy arrays, to their rewards."""

    Config = FunctionConfig

    def __init__(self, config: Any, setting: Any = None) -> None:
        super().__init__(config, setting)
        target = self.config.target
        self._function = load_function(target, "reward.target")
        self._target = getattr(target, "__qualname__", str(target))
        _check_takes_one(self._function, self._target)
        self.fields, self.history = self.config.fields, self.config.history

    def score(self, batch: Batch) -> Any:
        """Return what the function returns."""
        shape = tuple(batch.rew.shape)
        try:
            rew = self._function(batch.to_numpy())
        except TypeError as error:
            raise ValueError(
                f"the reward function {self._target} cannot take a Batch of transitions: {error}"
            ) from error
        if np.shape(rew) != shape:
            raise ValueError(
                f"the reward function {self._target} gave shape {tuple(np.shape(rew))} "
                f"for transitions of shape {shape}: one number each is needed"
            )
        return rew


def _check_takes_one(function: Callable[..., Any], name: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some that are not written in Python
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ValueError(
            f"the reward function {name} is called with a Batch of transitions and nothing else, "
            f"but takes {signature}"
        ) from None


def load_function(target: str | Callable[..., Any], option: str) -> Callable[..., Any]:
    """Return a function, or the one that ``module:name`` or ``file.py:name`` names."""
    found: Callable[..., Any] = find_object(target, option) if isinstance(target, str) else target
    if not callable(found):
        raise ValueError(f"{option!r} has {target!r}, which is no function, but {found!r}")
    return found

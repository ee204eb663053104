"""The reward models that nothing is learned in: `env`, `constant` and `function`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable  # where pydantic finds it
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from guerdon.reward.base import RewardConfig, RewardModel, register_reward_model

if TYPE_CHECKING:
    from guerdon.data import Batch


@register_reward_model("env")
class EnvReward(RewardModel):
    """What the environment paid."""

    def estimate(self, data: Any) -> Any:
        """The transitions as they are."""
        return data


class ConstantConfig(RewardConfig):
    """Options of `constant`."""

    value: float = 1.0
    """What every transition is worth."""


@register_reward_model("constant")
class ConstantReward(RewardModel):
    """The same for every transition: the control that imitation has to beat."""

    Config = ConstantConfig

    def score(self, data: Batch) -> float:  # noqa: ARG002 - whatever they are
        """The constant."""
        value: float = self.config.value
        return value


class FunctionConfig(RewardConfig):
    """Options of `function`."""

    target: str | Callable[[Any], Any]
    """The user's rule: ``package.module:name``, or the function itself."""
    fields: tuple[str, ...] = ("obs", "act", "obs_next", "terminated")
    """The fields of a transition that the rule reads."""
    history: int = Field(default=0, ge=0)
    """How many rows before each transition the rule reads, too, as ``data.before``."""


@register_reward_model("function")
class FunctionReward(RewardModel):
    """A user's own rule: a function from a batch of transitions to their rewards."""

    Config = FunctionConfig

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        target = self.config.target
        self._function = load_function(target) if isinstance(target, str) else target
        _check_takes_one(self._function, self._name)
        self.fields, self.history = self.config.fields, self.config.history

    def score(self, data: Batch) -> Any:
        """What the rule says."""
        try:
            rew = self._function(data)
        except TypeError as error:
            raise ValueError(
                f"the reward function {self._name} cannot take a Batch of transitions: {error}"
            ) from error
        if np.shape(rew) != tuple(data.rew.shape):
            raise ValueError(
                f"the reward function {self._name} gave shape {tuple(np.shape(rew))} "
                f"for transitions of shape {tuple(data.rew.shape)}: one number each is needed"
            )
        return rew

    @property
    def _name(self) -> str:
        target = self.config.target
        return target if isinstance(target, str) else getattr(target, "__qualname__", repr(target))


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


def load_function(target: str) -> Callable[[Any], Any]:
    """The function that ``package.module:name`` names."""
    module, colon, name = target.partition(":")
    if not colon:
        raise ValueError(f"a function is named as 'package.module:name', but got {target!r}")
    try:
        found: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no function {target!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"{target!r} is no function, but {found!r}")
    return found

"""Models by name, class or import path."""

import inspect
import math
from collections.abc import Callable
from typing import Any

from gymnasium import Space, spaces
from torch import nn

from guerdon.config.registry import Registry
from guerdon.nn.adapter import adapt_model
from guerdon.nn.config import ModelConfig

MODELS: Registry[type[nn.Module]] = Registry("model", "guerdon.nn")
register_model = MODELS.register
"""Register a model under a name: as a decorator, or as a call with the class."""


def create_model(
    default: Callable[..., nn.Module],
    observation_space: Space[Any],
    action_space: Space[Any],
    config: ModelConfig | None = None,
    custom: Any = None,
) -> nn.Module:
    """Make a network.

    The class is called with the two spaces and the config. A class without an argument named
    ``observation_space`` is called with the sizes of an observation and an action instead, and with
    ``hidden_dim_list`` if it accepts that. Its outputs have to match the default's, see
    `guerdon.nn.adapter.adapt_model`.

    Args:
        default: Class to use if none is chosen.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        config: Options of the network; ``type`` may name another class.
        custom: Overrides both: a registered name, ``"package.module:Class"``, a class, or a
            module.
    """
    config = config or ModelConfig()
    chosen = config.type if custom is None else custom
    if chosen is None:
        return default(observation_space, action_space, config)
    if not isinstance(chosen, nn.Module):
        kind = MODELS.get(chosen) if isinstance(chosen, str) else chosen
        chosen = _made(kind, observation_space, action_space, config)
    return adapt_model(chosen, default, observation_space, action_space)


def _made(
    kind: Any, observation_space: Space[Any], action_space: Space[Any], config: ModelConfig
) -> Any:
    parameters = inspect.signature(kind).parameters
    args: Any = observation_space, action_space
    options: dict[str, Any] = {"config": config}
    if "observation_space" not in parameters:
        shape = _shape(observation_space)
        args = shape[0] if len(shape) == 1 else shape, math.prod(_shape(action_space))
        options = {"hidden_dim_list": list(config.hidden)}
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        options = {name: value for name, value in options.items() if name in parameters}
    return kind(*args, **options)


def _shape(space: Space[Any]) -> tuple[int, ...]:
    """Return the shape of the vector or array that represents an element of a space."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if space.shape is None:
        raise ValueError(
            f"{space} has no single size: let the model take observation_space and action_space"
        )
    return space.shape

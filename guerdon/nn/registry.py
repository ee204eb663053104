"""Models by name, class or import path."""

import inspect
import math
from collections.abc import Callable
from typing import Any, cast

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
    **options: Any,
) -> nn.Module:
    """Make a network.

    The class is called with the two spaces and the config. One whose arguments do not name an
    ``observation_space`` is called with sizes instead: those of an observation and an action, and
    ``hidden_dim_list`` where it has that. Its outputs have to be those of the default, see
    `guerdon.nn.adapter.adapt_model`.

    Args:
        default: Class to use if none is chosen.
        observation_space: Of one environment.
        action_space: Of one environment.
        config: Options of the network; ``type`` may name another class.
        custom: Overrides both: a registered name, ``"package.module:Class"``, a class, or a
            module.
        **options: For the class, beside the config.
    """
    config = config or ModelConfig()
    chosen = config.type if custom is None else custom
    if chosen is None:
        return default(observation_space, action_space, config, **options)
    if isinstance(chosen, nn.Module):
        model = chosen
    else:
        model = _made(chosen, observation_space, action_space, config, options)
    return adapt_model(model, default, observation_space, action_space)


def _made(
    chosen: Any,
    observation_space: Space[Any],
    action_space: Space[Any],
    config: ModelConfig,
    options: dict[str, Any],
) -> nn.Module:
    made_by = find_model(chosen) if isinstance(chosen, str) else chosen
    names = inspect.signature(made_by).parameters
    if "observation_space" in names:
        known = {"config": config, **options}
        return cast("nn.Module", made_by(observation_space, action_space, **_fitting(names, known)))
    known = {"hidden_dim_list": list(config.hidden), **options}
    sizes = observation_size(observation_space), action_size(action_space)
    return cast("nn.Module", made_by(*sizes, **_fitting(names, known)))


def find_model(name: str) -> type[nn.Module]:
    """The class of a registered name, ``package.module:Class`` or ``path/to/file.py:Class``."""
    return MODELS.get(name)


def observation_size(space: Space[Any]) -> int | tuple[int, ...]:
    """Length of a vector, number of values of a Discrete space, or else a shape."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if space.shape is None:
        raise ValueError(f"{space} has no one size: let the model take observation_space instead")
    return space.shape[0] if len(space.shape) == 1 else space.shape


def action_size(space: Space[Any]) -> int:
    """Number of Discrete actions, or of dimensions of an action."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if space.shape is None:
        raise ValueError(f"{space} has no one size: let the model take action_space instead")
    return math.prod(space.shape)


def _fitting(names: Any, known: dict[str, Any]) -> dict[str, Any]:
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values()):
        return known
    return {name: value for name, value in known.items() if name in names}

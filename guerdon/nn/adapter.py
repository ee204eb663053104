"""Adapts user-defined networks to the interface of guerdon's networks."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from guerdon.data.leaves import to_device
from guerdon.data.spaces import part_spaces
from guerdon.nn.config import ModelConfig
from guerdon.nn.heads import Output
from guerdon.nn.spaces import shape_of, unwrap

_N_ROWS = 2
# Submodules with the names of methods of an actor-critic.
_HALVES = {"actor", "critic"}


class Adapted(nn.Module):
    """A network that accepts plain observations, and returns a dictionary.

    Args:
        model: The network.
        observation_space: Observation space of one environment.
        takes_mapping: Whether the network requires ``{"obs": observations}``.
        key: Key of the output, if that is a tensor.
    """

    def __init__(
        self,
        model: nn.Module,
        observation_space: Space[Any],
        takes_mapping: bool = False,
        key: str | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.observation_space = observation_space
        self.takes_mapping = takes_mapping
        self.key = key

    @property
    def normalizer(self) -> Any:
        """Normaliser of the network, or None."""
        return getattr(self.model, "normalizer", None)

    def forward(self, inputs: Any) -> Output:
        """Return the output of the network as a dictionary.

        Args:
            inputs: Observations, or a mapping with "obs".
        """
        observation = unwrap(inputs, self.observation_space)
        if self.takes_mapping:
            observation = {"obs": inputs} if observation is inputs else inputs
        output = self.model(observation)
        return output if self.key is None else {self.key: output}


def adapt_model(
    model: nn.Module,
    default: Callable[..., nn.Module],
    observation_space: Space[Any],
    action_space: Space[Any],
) -> nn.Module:
    """Return a user-defined network that replaces a default one, wrapped if necessary.

    It is called once, with two observations.

    Args:
        model: Accepts observations, or a mapping with "obs". Returns a dictionary with the keys and
            shapes of the default network's output, or a tensor if that has one key only.
        default: Class of the default network.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
    """
    # The shapes of the default network's output do not depend on its options.
    usual_model = default(spaces.Box(-1, 1, (1,)), action_space, ModelConfig(hidden=[]))
    device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    with torch.no_grad(), evaluating(model):
        usual = usual_model(torch.zeros(_N_ROWS, 1))
        output, takes_mapping = _tried(model, _example(observation_space, device))
    key = next(iter(usual)) if isinstance(output, Tensor) and len(usual) == 1 else None
    _check(output if key is None else {key: output}, usual, type(model).__name__)
    if takes_mapping or key is not None or _HALVES & model._modules.keys():
        return Adapted(model, observation_space, takes_mapping, key)
    return model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put all modules of a model into evaluation mode, and restore the mode of each afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _example(space: Space[Any], device: torch.device) -> Any:
    """Return two equal observations near zero, in the form in which policies pass them."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return {key: _example(part, device) for key, part in part_spaces(space).items()}
    one: Any = np.zeros(shape_of(space), space.dtype)
    if isinstance(space, spaces.Box):
        one = one.clip(space.low, space.high)
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        one = space.start
    return to_device(np.stack([one] * _N_ROWS), device)


def _tried(model: nn.Module, observation: Any) -> tuple[Any, bool]:
    """Return a network's output, and whether it accepts only a mapping with "obs"."""
    try:
        return model(observation), False
    except Exception as error:  # user code may raise anything
        plain = f"{type(error).__name__}: {error}"
    try:
        return model({"obs": observation}), True
    except Exception as error:
        raise ValueError(
            f"the model {type(model).__name__} takes neither observations ({plain}) nor a mapping "
            f"with 'obs' ({type(error).__name__}: {error})"
        ) from error


def _check(output: Any, usual: Output, name: str) -> None:
    shapes = " and ".join(f"{key!r} {list(value.shape[1:])}" for key, value in usual.items())
    wanted = f"a dictionary with {shapes} per observation"
    if not isinstance(output, Mapping):
        raise ValueError(
            f"the model {name} returns a {type(output).__name__}, but has to return {wanted}"
        )
    if missing := " and ".join(repr(key) for key in usual if key not in output):
        raise ValueError(f"the model {name} does not return {missing}: it has to return {wanted}")
    for key, value in usual.items():
        given = output[key]
        if not isinstance(given, Tensor) or given.shape != value.shape:
            found = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise ValueError(
                f"the model {name} returns {found} as {key!r} of {_N_ROWS} observations, which has "
                f"to be a tensor {list(value.shape)}"
            )

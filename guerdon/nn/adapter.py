"""Networks of a user's own, called and answering as guerdon's are."""

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
# Parts of a network that have the names of methods which compute one half of an actor-critic.
_HALVES = {"actor", "critic"}


class Adapted(nn.Module):
    """A network that takes observations as they are, and gives a dictionary.

    Args:
        model: The network.
        observation_space: Of one environment.
        takes_mapping: Whether it has to be given ``{"obs": observations}``.
        key: Under which key to put its output, if that is a tensor.
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
        """That of the network, if it has one."""
        return getattr(self.model, "normalizer", None)

    def forward(self, inputs: Any) -> Output:
        """What the network gives, as a dictionary.

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
    """A network of the user's that can stand where another is usual: itself, or wrapped.

    It is tried once, with two observations.

    Args:
        model: Takes observations, or a mapping with "obs". It gives a dictionary with the keys and
            shapes that the usual network gives, or a tensor where that has one key only.
        default: The class of the usual network.
        observation_space: Of one environment.
        action_space: Of one environment.
    """
    # What the usual network is given does not matter for the shapes of its output.
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
    """Two equal observations, near zero, as policies give them to networks."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return {key: _example(part, device) for key, part in part_spaces(space).items()}
    one: Any = np.zeros(shape_of(space), space.dtype)
    if isinstance(space, spaces.Box):
        one = one.clip(space.low, space.high)
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        one = space.start
    return to_device(np.stack([one] * _N_ROWS), device)


def _tried(model: nn.Module, observation: Any) -> tuple[Any, bool]:
    """What a network gives, and whether it takes nothing but a mapping with "obs"."""
    try:
        return model(observation), False
    except Exception as error:  # whatever a user's code raises for what it does not expect
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
    wanted = f"a dictionary with {shapes}, these shapes for each observation"
    if not isinstance(output, Mapping):
        raise ValueError(
            f"the model {name} gives a {type(output).__name__}, but has to give {wanted}"
        )
    if missing := " and ".join(repr(key) for key in usual if key not in output):
        raise ValueError(f"the model {name} gives no {missing}: it has to give {wanted}")
    for key, value in usual.items():
        given = output[key]
        if not isinstance(given, Tensor) or given.shape != value.shape:
            found = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise ValueError(
                f"the model {name} gives {found} as {key!r} of {_N_ROWS} observations, which has "
                f"to be a tensor {list(value.shape)}"
            )

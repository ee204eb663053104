"""Observation spaces as inputs of networks."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

CompositeSpace = spaces.Dict | spaces.Tuple[Any]

SMALLEST_IMAGE = 7
BYTE = 1.0 / 255.0


def is_image(space: Space[Any]) -> bool:
    """Return whether a space consists of images or stacks of frames.

    These are Boxes of three dimensions, of four (a stack of frames with channels), and of two for
    uint8; height and width have to be at least 7.
    """
    if not isinstance(space, spaces.Box):
        return False
    n_dims = len(space.shape)
    if n_dims not in (3, 4) and not (n_dims == 2 and space.dtype == "uint8"):
        return False
    return min(image_shape(space)[1:]) >= SMALLEST_IMAGE


def channels_first(space: Space[Any]) -> bool:
    """Return whether channels come first: their axis is the smaller one, the last if equal."""
    shape = shape_of(space)
    return len(shape) == 2 or shape[-3] < shape[-1]


def image_shape(space: Space[Any]) -> tuple[int, int, int]:
    """Return channels, height and width; the frames of a stack count as channels."""
    shape = shape_of(space)
    if len(shape) == 2:
        return 1, *shape
    frames = shape[0] if len(shape) == 4 else 1
    first, second, third = shape[-3:]
    if channels_first(space):
        return frames * first, second, third
    return frames * third, first, second


def shape_of(space: Space[Any]) -> tuple[int, ...]:
    """Return the shape of a space; raise an error if it has none."""
    if space.shape is None:
        raise ValueError(f"{type(space).__name__} has no shape: use its parts one by one")
    return space.shape


def used_space(space: Any, keys: Sequence[str] | None) -> Any:
    """Return the parts of an observation space that a network uses; a single part is unwrapped.

    Args:
        space: Observation space of one environment.
        keys: ``policy.model.keys``: names of parts, or None for all.
    """
    if keys is None:
        return space
    if not isinstance(space, spaces.Dict):
        raise ValueError(
            f"'policy.model.keys' is {list(keys)}, but observations have no parts ({space}): set "
            "it to null"
        )
    if not keys or not space.spaces.keys() >= set(keys):
        raise ValueError(
            f"'policy.model.keys' is {list(keys)}, but observations have the parts "
            f"{', '.join(space.spaces)}: choose one or more of these"
        )
    return used_parts(space, keys) if len(keys) == 1 else spaces.Dict(used_parts(space, keys))


def used_parts(observation: Any, keys: Sequence[str] | None) -> Any:
    """Return the parts of an observation, or of a space, by `keys`; see `used_space`."""
    if keys is None:
        return observation
    if len(keys) == 1:
        return observation[keys[0]]
    return {key: observation[key] for key in keys}


def get_part(observation: Any, key: str) -> Any:
    """Return one part of an observation of a Dict or Tuple space."""
    return observation[int(key)] if isinstance(observation, tuple | list) else observation[key]


def unwrap(inputs: Any, space: Space[Any]) -> Any:
    """Return the observation of a model's input: its "obs" if it is a mapping with this key.

    Args:
        inputs: The input.
        space: Observation space; if it has a key "obs" itself, `inputs` is an observation unless
            its "obs" is a mapping, too.
    """
    if not hasattr(inputs, "keys") or "obs" not in inputs:
        return inputs
    inner = inputs["obs"]
    if isinstance(space, spaces.Dict) and "obs" in space.spaces and not hasattr(inner, "keys"):
        return inputs
    return inner


class Flatten(nn.Module):
    """Converts elements of a simple space to float vectors [..., size].

    A Discrete or MultiDiscrete space becomes one-hot. Bytes (uint8) are divided by 255.
    """

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        if isinstance(space, spaces.Discrete):
            start, counts = [int(space.start)], [int(space.n)]
        elif isinstance(space, spaces.MultiDiscrete):
            start, counts = space.start.ravel().tolist(), space.nvec.ravel().tolist()
        elif isinstance(space, spaces.Box | spaces.MultiBinary):
            start, counts = [], []
        else:
            raise ValueError(
                f"observations of type {type(space).__name__} have no encoder: wrap the "
                "environment so that it gives Box, Discrete, MultiDiscrete, MultiBinary, or a "
                "Dict or Tuple of these"
            )
        self.n_dims = len(shape_of(space))
        self.one_hot = bool(counts)
        self.size = sum(counts) if counts else math.prod(shape_of(space))
        offset = [sum(counts[:index]) - first for index, first in enumerate(start)]
        self.offset = nn.Buffer(torch.tensor(offset, dtype=torch.int64), persistent=False)

    def forward(self, observation: Tensor) -> Tensor:
        """Return vectors [..., size]."""
        lead = observation.shape[: observation.dim() - self.n_dims]
        flat = observation.reshape(*lead, -1)
        if self.one_hot:
            zeros = torch.zeros(*lead, self.size, device=flat.device)
            return zeros.scatter_(-1, flat.long() + self.offset, 1.0)
        return flat * BYTE if flat.dtype is torch.uint8 else flat.float()

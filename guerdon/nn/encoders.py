"""Encoders: from observations to features."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from guerdon.data.spaces import part_spaces
from guerdon.nn.config import ModelConfig
from guerdon.nn.convolution import ImageEncoder, make_image_encoder
from guerdon.nn.init import HIDDEN_GAIN, apply_linear, linear
from guerdon.nn.spaces import CompositeSpace, Flatten, get_part, is_image

# In place if the backward pass does not need the input.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "silu": functional.silu,
}


class MLP(nn.Module):
    """Linear layers, each followed by an activation; keeps leading dimensions.

    Args:
        n_in: Number of input features.
        hidden: Sizes of the layers; none makes it the identity.
        activation: Name of the activation.
        orthogonal: Whether to initialise weights orthogonally.
    """

    def __init__(
        self, n_in: int, hidden: Sequence[int], activation: str = "tanh", orthogonal: bool = True
    ) -> None:
        super().__init__()
        sizes = [n_in, *hidden]
        gain = HIDDEN_GAIN if orthogonal else None
        for index, pair in enumerate(pairwise(sizes)):
            self.add_module(str(index), linear(*pair, gain))
        self.activation = ACTIVATIONS[activation]
        self.size = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Return features [..., size] for vectors [..., n_in]."""
        for layer in self._modules.values():
            x = self.activation(apply_linear(layer, x))  # type: ignore[arg-type]
        return x


class VectorEncoder(nn.Module):
    """MLP over the flattened elements of a space."""

    def __init__(self, space: Space[Any], config: ModelConfig) -> None:
        super().__init__()
        self.flatten = Flatten(space)
        self.mlp = _mlp(self.flatten.size, config)
        self.size = self.mlp.size

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [..., size]."""
        features: Tensor = self.mlp(self.flatten(observation))
        return features


class CompositeEncoder(nn.Module):
    """MLP over the parts of a Dict or Tuple space: images pass a CNN, other parts are flattened."""

    size: int

    def __init__(self, space: CompositeSpace, config: ModelConfig) -> None:
        super().__init__()
        self.keys = tuple(part_spaces(space))
        parts = [make_joint(part, config) for part in part_spaces(space).values()]
        self.parts = nn.ModuleList(parts)
        self.mlp = _mlp(sum(part.size for part in parts), config)
        self.size = self.mlp.size

    def forward(self, observation: Any) -> Tensor:
        """Return features [..., size] for a mapping or tuple of tensors."""
        pairs = zip(self.keys, self.parts, strict=True)
        joined = torch.cat([part(get_part(observation, key)) for key, part in pairs], -1)
        features: Tensor = self.mlp(joined)
        return features


Encoder = MLP | VectorEncoder | CompositeEncoder | ImageEncoder


def make_encoder(observation_space: Space[Any], config: ModelConfig) -> Encoder:
    """Make the encoder of a space; its `size` is the number of features.

    A Box that looks like an image (`guerdon.nn.spaces.is_image`) passes a CNN unless
    ``config.encoder`` is ``mlp``; other spaces are flattened. Inputs may have any leading
    dimensions.
    """
    space = observation_space
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return CompositeEncoder(space, config)
    if is_image(space) and config.encoder != "mlp":
        return make_image_encoder(space, config)
    if config.encoder not in ("auto", "mlp"):
        raise ValueError(
            f"the encoder {config.encoder!r} needs images, but observations are {space}: use "
            "encoder=auto"
        )
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype != "uint8":
        return _mlp(space.shape[0], config)
    return VectorEncoder(space, config)


def make_joint(space: Space[Any], config: ModelConfig) -> Encoder | Flatten:
    """Make an encoder without hidden layers, for features that are combined with others.

    Images pass a CNN, other spaces are flattened; `size` is the number of features.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return CompositeEncoder(space, config.model_copy(update={"hidden": []}))
    if is_image(space) and config.encoder != "mlp":
        return make_image_encoder(space, config)
    return Flatten(space)


def _mlp(n_in: int, config: ModelConfig) -> MLP:
    return MLP(n_in, config.hidden, config.activation, config.orthogonal)

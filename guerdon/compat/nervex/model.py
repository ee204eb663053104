"""Q networks made from sizes, under nerveX's names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from torch import nn

from guerdon.compat.nervex.lstm import RecurrentQNetwork
from guerdon.nn import create_model as create_model
from guerdon.nn.config import ModelConfig
from guerdon.nn.encoders import MLP
from guerdon.nn.models import QNetwork
from guerdon.nn.registry import register_model

Sizes = int | Sequence[int]


@register_model("fc_discrete")
class FCDiscreteNet(QNetwork):
    """Q-values of vector observations: ``logit`` [..., action_dim].

    Args:
        obs_dim: Size of an observation.
        action_dim: Number of actions.
        hidden_dim_list: Sizes of the hidden layers; by default 128, 128 and `embedding_dim`.
        embedding_dim: Size of the last hidden layer.
        dueling: Whether the head is dueling.
        head_kwargs: May have ``dueling``, too.
    """

    def __init__(
        self,
        obs_dim: Sizes,
        action_dim: Sizes,
        hidden_dim_list: Sequence[int] | None = None,
        embedding_dim: int = 64,
        dueling: bool = False,
        head_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        config = _config(dueling, head_kwargs, hidden_dim_list or (128, 128, embedding_dim))
        super().__init__(observations(obs_dim), _actions(action_dim), config)


@register_model("conv_discrete")
class ConvDiscreteNet(QNetwork):
    """Q-values of images [C, H, W]: ``logit`` [..., action_dim].

    Args:
        obs_dim: Shape of an image; uint8 images are divided by 255.
        action_dim: Number of actions.
        embedding_dim: Size of a layer after the convolutions; by default there is none.
        dueling: Whether the head is dueling.
        head_kwargs: May have ``dueling``, too.
    """

    def __init__(
        self,
        obs_dim: Sequence[int],
        action_dim: Sizes,
        embedding_dim: int | None = None,
        dueling: bool = False,
        head_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.embedding_dim = embedding_dim
        config = _config(dueling, head_kwargs)
        super().__init__(observations(obs_dim), _actions(action_dim), config)

    def make_head(self, action_space: Space[Any]) -> nn.Module:
        """See `Model`."""
        if self.embedding_dim is None or self.embedding_dim == self.size:
            return super().make_head(action_space)
        layer = MLP(self.size, [self.embedding_dim], "relu", orthogonal=False)
        self.size = self.embedding_dim
        return nn.Sequential(layer, super().make_head(action_space))


@register_model("fcr_discrete")
class FCRDiscreteNet(RecurrentQNetwork):
    """Q-values of vector observations with an LSTM: takes "prev_state", returns ``next_state``.

    Args:
        obs_dim: Size of an observation.
        action_dim: Number of actions.
        hidden_dim_list: Sizes of the hidden layers before the LSTM; by default 128, 128 and
            `embedding_dim`.
        embedding_dim: Size of the last hidden layer.
        lstm_dim: Size of the LSTM, whose state is [2 * lstm_dim]; by default `embedding_dim`.
        dueling: Whether the head is dueling.
        head_kwargs: May have ``dueling``, too.
    """

    def __init__(
        self,
        obs_dim: Sizes,
        action_dim: Sizes,
        hidden_dim_list: Sequence[int] | None = None,
        embedding_dim: int = 64,
        lstm_dim: int | None = None,
        dueling: bool = False,
        head_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        hidden = hidden_dim_list or (128, 128, embedding_dim)
        config = _config(dueling, head_kwargs, hidden, lstm_dim or embedding_dim)
        super().__init__(observations(obs_dim), _actions(action_dim), config)


def _config(
    dueling: bool,
    head_kwargs: Mapping[str, Any] | None,
    hidden: Sequence[int] = (),
    lstm: int | None = None,
) -> ModelConfig:
    head = {"dueling": dueling, **(head_kwargs or {})}
    for name in [name for name, value in head.items() if name != "dueling" and value]:
        raise ValueError(f"head_kwargs has {name!r}, but only dueling heads are available: drop it")
    return ModelConfig(
        hidden=list(hidden),
        activation="relu",
        orthogonal=False,
        lstm=lstm,
        dueling=head["dueling"],
    )


def observations(obs_dim: Sizes) -> spaces.Box:
    """Return the space of observations of a size, or of images [C, H, W]."""
    shape = (obs_dim,) if isinstance(obs_dim, int) else tuple(obs_dim)
    if len(shape) == 3:
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def _actions(action_dim: Sizes) -> spaces.Discrete:
    sizes = [action_dim] if isinstance(action_dim, int) else list(action_dim)
    if len(sizes) != 1:
        raise ValueError(f"action_dim is {sizes}, but only one discrete action is available")
    return spaces.Discrete(sizes[0])

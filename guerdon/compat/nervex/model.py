"""Q networks made from sizes, under nerveX's names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from torch import nn

from guerdon.compat.nervex.lstm import RecurrentQNetwork
from guerdon.nn.config import ModelConfig
from guerdon.nn.encoders import MLP
from guerdon.nn.models import Model, QNetwork
from guerdon.nn.registry import register_model as register_model

Sizes = int | Sequence[int]


class _FromSizes(Model):
    """A network made from sizes.

    Args:
        obs_dim: Size of an observation, or the shape of an image; uint8 images are divided by 255.
        action_dim: Number of actions.
        hidden_dim_list: Sizes of the hidden layers; by default 128, 128 and `embedding_dim`. Images
            have convolutions instead.
        embedding_dim: Size of the last hidden layer; for images of a layer after the convolutions,
            which by default there is not.
        lstm_dim: Size of the LSTM of a recurrent network, whose state is [2 * lstm_dim]; by default
            that of the last hidden layer.
        dueling: Whether the head is dueling.
        head_kwargs: May have ``dueling``, too.
    """

    def __init__(
        self,
        obs_dim: Sizes,
        action_dim: Sizes,
        hidden_dim_list: Sequence[int] | None = None,
        embedding_dim: int | None = None,
        lstm_dim: int | None = None,
        dueling: bool = False,
        head_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        head = {"dueling": dueling, **(head_kwargs or {})}
        for name in [name for name, value in head.items() if name != "dueling" and value]:
            raise ValueError(
                f"head_kwargs has {name!r}, but only dueling heads are available: drop it"
            )
        actions = [action_dim] if isinstance(action_dim, int) else list(action_dim)
        if len(actions) != 1:
            raise ValueError(f"action_dim is {actions}, but only one discrete action is available")
        self.embedding_dim = embedding_dim
        hidden = list(hidden_dim_list or (128, 128, embedding_dim or 64))
        config = ModelConfig(
            hidden=hidden,
            activation="relu",
            orthogonal=False,
            lstm=lstm_dim or (hidden[-1] if self.recurrent else None),
            dueling=head["dueling"],
        )
        super().__init__(observations(obs_dim), spaces.Discrete(actions[0]), config)


@register_model("fc_discrete")
class FCDiscreteNet(_FromSizes, QNetwork):
    """Q-values of vector observations: ``logit`` [..., action_dim]."""


@register_model("conv_discrete")
class ConvDiscreteNet(_FromSizes, QNetwork):
    """Q-values of images [C, H, W]: ``logit`` [..., action_dim]."""

    def make_head(self, action_space: Space[Any]) -> nn.Module:
        """See `Model`."""
        if self.embedding_dim in (None, self.size):
            return super().make_head(action_space)
        layer = MLP(self.size, [self.embedding_dim], "relu", orthogonal=False)
        self.size = layer.size
        return nn.Sequential(layer, super().make_head(action_space))


@register_model("fcr_discrete")
class FCRDiscreteNet(_FromSizes, RecurrentQNetwork):
    """Q-values of vector observations with an LSTM: takes "prev_state", returns ``next_state``."""


def observations(obs_dim: Sizes) -> spaces.Box:
    """Return the space of observations of a size, or of images [C, H, W]."""
    shape = (obs_dim,) if isinstance(obs_dim, int) else tuple(obs_dim)
    if len(shape) == 3:
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)

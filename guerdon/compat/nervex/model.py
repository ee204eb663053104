"""Q networks made from sizes, under nerveX's names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from guerdon.nn.config import ModelConfig
from guerdon.nn.encoders import MLP
from guerdon.nn.heads import Output
from guerdon.nn.models import QNetwork
from guerdon.nn.registry import register_model as register_model
from guerdon.nn.spaces import unwrap

Sizes = int | Sequence[int]


@register_model("fc_discrete")
class FCDiscreteNet(QNetwork):
    """Q-values of vector observations, or of uint8 images: ``logit`` [..., action_dim].

    The hidden layers are by default 128, 128 and `embedding_dim`; images have convolutions instead,
    and another layer if `embedding_dim` is given. `lstm_dim` is by default the size of the last.
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


@register_model("conv_discrete")
class ConvDiscreteNet(FCDiscreteNet):
    """Q-values of images [C, H, W]: ``logit`` [..., action_dim]."""

    def make_head(self, action_space: Space[Any]) -> nn.Module:
        """See `Model`."""
        if self.embedding_dim in (None, self.size):
            return super().make_head(action_space)
        layer = MLP(self.size, [self.embedding_dim], "relu", orthogonal=False)
        self.size = layer.size
        return nn.Sequential(layer, super().make_head(action_space))


@register_model("fcr_discrete")
class FCRDiscreteNet(FCDiscreteNet):
    """Q-values of vector observations with an LSTM, [B, action_dim] or [T, B, action_dim].

    The input may have "prev_state", the state of each row: a tensor [B, 2 * lstm_dim], a list of
    states or None, or None. The output has ``next_state``, a tensor.
    """

    recurrent = True

    def make_head(self, action_space: Space[Any]) -> nn.Module:
        """See `Model`."""
        assert self.config.lstm is not None
        self.lstm = nn.LSTM(self.size, self.config.lstm)
        self.size = self.config.lstm
        return super().make_head(action_space)

    def forward(self, inputs: Any) -> Output:
        """Return ``logit`` and ``next_state``."""
        bare = unwrap(inputs, self.observation_space) is inputs
        features = self.features(inputs)
        rows = features if features.dim() == 3 else features[None]
        before = _states(None if bare else inputs.get("prev_state"), rows, 2 * self.size)
        hidden, cell = (part.contiguous() for part in before[None].chunk(2, -1))
        output, after = self.lstm(rows, (hidden, cell))
        head = self.head(output if features.dim() == 3 else output[0])
        return {**head, "next_state": torch.cat(after, -1)[0]}


def _states(given: Any, features: Tensor, size: int) -> Tensor:
    """Return states [B, size], with zeros for None."""
    if isinstance(given, Tensor):
        return given
    zeros = features.new_zeros(features.shape[1], size)
    if given is None:
        return zeros
    pairs = zip(given, zeros, strict=True)
    return torch.stack([zero if state is None else state for state, zero in pairs])


def observations(obs_dim: Sizes) -> spaces.Box:
    """Return the space of observations of a size, or of images [C, H, W]."""
    shape = (obs_dim,) if isinstance(obs_dim, int) else tuple(obs_dim)
    if len(shape) == 3:
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)

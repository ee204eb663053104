"""Q networks made from sizes, under the names of the nerveX tutorial."""

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces

from guerdon.compat.nervex.lstm import RecurrentQNetwork
from guerdon.nn.config import ModelConfig
from guerdon.nn.models import QNetwork
from guerdon.nn.registry import register_model


@register_model("fc_discrete")
class FCDiscreteNet(QNetwork):
    """Q-values of vector observations: ``logit`` [..., action_dim].

    Args:
        obs_dim: Size of an observation.
        action_dim: Number of actions.
        hidden_dim_list: Sizes of the hidden layers.
        dueling: Whether the head is dueling.
    """

    def __init__(
        self,
        obs_dim: int | Sequence[int],
        action_dim: int,
        hidden_dim_list: Sequence[int] = (128, 128, 64),
        dueling: bool = False,
    ) -> None:
        hidden = list(hidden_dim_list)
        config = ModelConfig(hidden=hidden, activation="relu", orthogonal=False, dueling=dueling)
        super().__init__(_vector(obs_dim), spaces.Discrete(action_dim), config)


@register_model("conv_discrete")
class ConvDiscreteNet(QNetwork):
    """Q-values of images [C, H, W]: ``logit`` [..., action_dim].

    Args:
        obs_dim: Shape of an image; uint8 images are divided by 255.
        action_dim: Number of actions.
        dueling: Whether the head is dueling.
    """

    def __init__(self, obs_dim: Sequence[int], action_dim: int, dueling: bool = False) -> None:
        config = ModelConfig(activation="relu", orthogonal=False, dueling=dueling)
        images = spaces.Box(0, 255, tuple(obs_dim), np.uint8)
        super().__init__(images, spaces.Discrete(action_dim), config)


@register_model("fcr_discrete")
class FCRDiscreteNet(RecurrentQNetwork):
    """Q-values of vector observations with an LSTM: takes "prev_state", returns ``next_state``.

    Args:
        obs_dim: Size of an observation.
        action_dim: Number of actions.
        hidden_dim_list: Sizes of the hidden layers before the LSTM.
        lstm_dim: Size of the LSTM; its state is [B, 2 * lstm_dim].
        dueling: Whether the head is dueling.
    """

    def __init__(
        self,
        obs_dim: int | Sequence[int],
        action_dim: int,
        hidden_dim_list: Sequence[int] = (128, 128),
        lstm_dim: int = 64,
        dueling: bool = False,
    ) -> None:
        config = ModelConfig(
            hidden=list(hidden_dim_list),
            activation="relu",
            orthogonal=False,
            lstm=lstm_dim,
            dueling=dueling,
        )
        super().__init__(_vector(obs_dim), spaces.Discrete(action_dim), config)


def _vector(obs_dim: int | Sequence[int]) -> spaces.Box:
    shape = (obs_dim,) if isinstance(obs_dim, int) else tuple(obs_dim)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)

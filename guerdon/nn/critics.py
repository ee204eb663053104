"""Q functions of state and action."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from guerdon.nn.config import ModelConfig
from guerdon.nn.encoders import ACTIVATIONS, make_joint
from guerdon.nn.heads import Output
from guerdon.nn.init import HIDDEN_GAIN, VALUE_GAIN
from guerdon.nn.models import Inputs, action_shape
from guerdon.nn.normalizer import make_policy_normalizer
from guerdon.nn.registry import register_model
from guerdon.nn.spaces import unwrap


class EnsembleMLP(nn.Module):
    """An ensemble of MLPs, with one batched matrix product per layer.

    Args:
        n_members: Number of networks.
        n_in: Number of input features, which all networks share.
        hidden: Sizes of the hidden layers.
        n_out: Number of outputs.
        activation: Name of the activation after hidden layers.
        orthogonal: Whether to initialise weights orthogonally.
    """

    def __init__(
        self,
        n_members: int,
        n_in: int,
        hidden: Sequence[int],
        n_out: int,
        activation: str = "relu",
        orthogonal: bool = True,
    ) -> None:
        super().__init__()
        self.n_members = n_members
        self.activation = ACTIVATIONS[activation]
        sizes = [n_in, *hidden, n_out]
        for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            weight = torch.empty(n_members, fan_in, fan_out)
            bias = torch.zeros(n_members, 1, fan_out)
            if orthogonal:
                gain = VALUE_GAIN if index == len(hidden) else HIDDEN_GAIN
                for member in weight:
                    nn.init.orthogonal_(member, gain)
            else:  # initialised as nn.Linear
                bound = 1 / math.sqrt(fan_in)
                weight.uniform_(-bound, bound)
                bias.uniform_(-bound, bound)
            self.register_parameter(f"weight_{index}", nn.Parameter(weight))
            self.register_parameter(f"bias_{index}", nn.Parameter(bias))

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs [n_members, ..., n_out] for vectors [..., n_in]."""
        parameters: list[Any] = list(self._parameters.values())
        lead = x.shape[:-1]
        x = x.to(parameters[0].dtype).reshape(-1, x.shape[-1])
        x = x.expand(self.n_members, *x.shape)
        layers = zip(parameters[::2], parameters[1::2], strict=True)
        for index, (weight, bias) in enumerate(layers):
            if index:
                x = self.activation(x)
            x = torch.baddbmm(bias, x, weight)
        return x.reshape(self.n_members, *lead, x.shape[-1])


@register_model("q_critic")
class QCritic(nn.Module):
    """Several critics of state and action in one module.

    Returns ``q_value`` [n_critics, ...] of actions of a Box, or [n_critics, ..., n_actions] for all
    actions of a Discrete space. The critics share one CNN for images.

    Args:
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        config: Options of the network.
        n_critics: Number of critics; two for TD3 and SAC.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        config: ModelConfig | None = None,
        n_critics: int = 2,
    ) -> None:
        super().__init__()
        config = config or ModelConfig()
        self.observation_space = observation_space
        self.n_critics = n_critics
        self.normalizer = make_policy_normalizer(observation_space, config)
        self.joint = make_joint(observation_space, config)
        self.discrete = isinstance(action_space, spaces.Discrete)
        if isinstance(action_space, spaces.Discrete):
            n_in, n_out = self.joint.size, int(action_space.n)
        else:
            n_in, n_out = self.joint.size + math.prod(action_shape(action_space, self)), 1
        self.ensemble = EnsembleMLP(
            n_critics, n_in, config.hidden, n_out, config.activation, config.orthogonal
        )

    def forward(self, inputs: Inputs, act: Tensor | None = None) -> Output:
        """Return ``q_value`` of observations, and of actions [..., *shape] for a Box.

        Args:
            inputs: Observations [..., *shape], or a mapping with "obs".
            act: Actions; None for a Discrete space.
        """
        observation = unwrap(inputs, self.observation_space)
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        x = self.joint(observation)
        if self.discrete:
            return {"q_value": self.ensemble(x)}
        if act is None:
            raise ValueError("a critic of continuous actions needs the actions: pass act=")
        x = torch.cat([x, act.reshape(*x.shape[:-1], -1)], -1)
        return {"q_value": self.ensemble(x).squeeze(-1)}

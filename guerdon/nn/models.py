"""Whole networks for value-based and actor-critic policies."""

from typing import Any

from gymnasium import Space, spaces
from torch import Tensor, nn

from guerdon.nn.config import ModelConfig
from guerdon.nn.encoders import make_encoder
from guerdon.nn.heads import (
    ContinuousHead,
    DeterministicHead,
    DiscreteHead,
    DuelingHead,
    Output,
)
from guerdon.nn.init import POLICY_GAIN, VALUE_GAIN, apply_linear, linear
from guerdon.nn.lstm import LSTMCore
from guerdon.nn.normalizer import Normalizer, make_normalizer
from guerdon.nn.spaces import lead_dims, unwrap

LOG_STD_BOUNDS = (-20.0, 2.0)

Inputs = Any
"""Observations (a tensor, or a mapping of them for a Dict space), or a mapping with "obs"."""


class Model(nn.Module):
    """Normaliser, encoder, LSTM and head; normaliser and LSTM are optional.

    Args:
        observation_space: Of one environment.
        config: Options of the network; a subclass adds ``head``.
    """

    head: nn.Module

    def __init__(self, observation_space: Space[Any], config: ModelConfig) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.config = config
        self.normalizer: Normalizer | None = None
        if config.normalize_obs:
            self.normalizer = make_normalizer(observation_space)
        self.encoder = make_encoder(observation_space, config)
        self.size = self.encoder.size
        self.core: LSTMCore | None = None
        if config.lstm is not None:
            self.core = LSTMCore(self.size, config.lstm, config.orthogonal)
            self.size = config.lstm

    def forward(
        self, inputs: Inputs, state: Tensor | None = None, start: Tensor | None = None
    ) -> Output:
        """The outputs of the head, and ``next_state`` with an LSTM.

        Args:
            inputs: Observations [B, ...] or [T, B, ...]; a mapping may hold "prev_state" and
                "start" beside "obs".
            state: The LSTM's state [B, 2 * size] before the first row; None for the initial one.
            start: True for rows ([B] or [T, B]) that begin an episode.
        """
        features, extra = self.features(inputs, state, start)
        return {**self.head(features), **extra}

    def normalize(self, inputs: Inputs) -> Any:
        """The observations in a model's input, normalised where the config asks for it."""
        observation = unwrap(inputs, self.observation_space)
        return observation if self.normalizer is None else self.normalizer(observation)

    def features(
        self, inputs: Inputs, state: Tensor | None = None, start: Tensor | None = None
    ) -> tuple[Tensor, Output]:
        """The inputs of the head, and ``next_state`` with an LSTM; arguments as in `forward`."""
        observation = unwrap(inputs, self.observation_space)
        encoded = self.encoder(self.normalize(inputs))
        if self.core is None:
            return encoded, {}
        if observation is not inputs:
            state = inputs.get("prev_state") if state is None else state
            start = inputs.get("start") if start is None else start
        if lead_dims(self.observation_space, observation) == 2:
            encoded, state = self.core(encoded, state, start)
        else:
            encoded, state = self.core.step(encoded, state, start)
        return encoded, {"next_state": state}


class QNetwork(Model):
    """Action values for a Discrete action space: ``logit`` [..., n_actions].

    Args:
        observation_space: Of one environment.
        action_space: Of one environment.
        config: Options of the network.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        config: ModelConfig | None = None,
    ) -> None:
        config = config or ModelConfig()
        super().__init__(observation_space, config)
        n_actions = count_actions(action_space, "QNetwork")
        kind = DuelingHead if config.dueling else DiscreteHead
        self.head = kind(self.size, n_actions, VALUE_GAIN if config.orthogonal else None)


class ActorCritic(Model):
    """A policy and a state value.

    Gives ``logit`` for a Discrete action space, ``mu`` and ``log_std`` (one vector for all states)
    for a Box, and ``value`` [...]. `actor` and `critic` compute one of them. Each has its own
    encoder, unless the config shares it or asks for an LSTM.

    Args:
        observation_space: Of one environment.
        action_space: Of one environment.
        config: Options of the network.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        config: ModelConfig | None = None,
    ) -> None:
        config = config or ModelConfig()
        super().__init__(observation_space, config)
        gain = POLICY_GAIN if config.orthogonal else None
        if isinstance(action_space, spaces.Box):
            self.head = ContinuousHead(self.size, action_space.shape, gain=gain)
        else:
            self.head = DiscreteHead(self.size, count_actions(action_space, "ActorCritic"), gain)
        self.value_head = linear(self.size, 1, VALUE_GAIN if config.orthogonal else None)
        self.shared = config.share_encoder or config.lstm is not None
        if not self.shared:
            self.critic_encoder = make_encoder(observation_space, config)

    def forward(
        self, inputs: Inputs, state: Tensor | None = None, start: Tensor | None = None
    ) -> Output:
        """Actor and critic; arguments as in `Model.forward`."""
        if self.shared:
            features, extra = self.features(inputs, state, start)
            return {**self.head(features), "value": self._value(features), **extra}
        observation = self.normalize(inputs)
        value = self._value(self.critic_encoder(observation))
        return {**self.head(self.encoder(observation)), "value": value}

    actor = Model.forward

    def critic(
        self, inputs: Inputs, state: Tensor | None = None, start: Tensor | None = None
    ) -> Output:
        """``value`` [...]; and ``next_state`` with an LSTM. Arguments as in `Model.forward`."""
        if self.shared:
            features, extra = self.features(inputs, state, start)
            return {"value": self._value(features), **extra}
        return {"value": self._value(self.critic_encoder(self.normalize(inputs)))}

    def _value(self, features: Tensor) -> Tensor:
        return apply_linear(self.value_head, features).squeeze(-1)


class DeterministicActor(Model):
    """One action for each state, in [-1, 1]: ``action`` [..., *shape]. For DDPG and TD3."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        config: ModelConfig | None = None,
    ) -> None:
        config = config or ModelConfig()
        super().__init__(observation_space, config)
        shape = action_shape(action_space, "DeterministicActor")
        gain = POLICY_GAIN if config.orthogonal else None
        self.head = DeterministicHead(self.size, shape, gain)


class GaussianActor(Model):
    """A Gaussian whose standard deviation depends on the state: ``mu``, ``log_std``. For SAC.

    Both are [..., *shape] and belong to actions before they are squashed into [-1, 1].
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        config: ModelConfig | None = None,
    ) -> None:
        config = config or ModelConfig()
        super().__init__(observation_space, config)
        self.head = ContinuousHead(
            self.size,
            action_shape(action_space, "GaussianActor"),
            state_dependent=True,
            bounds=LOG_STD_BOUNDS,
            gain=POLICY_GAIN if config.orthogonal else None,
        )


def count_actions(action_space: Space[Any], model: str) -> int:
    """Number of actions of a Discrete space; raises an error for others."""
    if not isinstance(action_space, spaces.Discrete):
        raise ValueError(
            f"{model} has no head for actions of {action_space}: use an environment with Discrete "
            "actions, or a policy that takes these"
        )
    return int(action_space.n)


def action_shape(action_space: Space[Any], model: str) -> tuple[int, ...]:
    """Shape of an action of a Box; raises an error for other spaces."""
    if not isinstance(action_space, spaces.Box):
        raise ValueError(
            f"{model} has no head for actions of {action_space}: use an environment with "
            "continuous actions (Box), or a policy that takes these"
        )
    return action_space.shape

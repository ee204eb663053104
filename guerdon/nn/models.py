"""Whole networks for value-based and actor-critic policies."""

from typing import Any

from gymnasium import Space, spaces
from torch import Tensor, nn

from guerdon.nn.config import ModelConfig
from guerdon.nn.encoders import make_encoder
from guerdon.nn.heads import ContinuousHead, DeterministicHead, DiscreteHead, DuelingHead, Output
from guerdon.nn.init import POLICY_GAIN, VALUE_GAIN, apply_linear, linear
from guerdon.nn.normalizer import make_policy_normalizer
from guerdon.nn.registry import register_model
from guerdon.nn.spaces import unwrap

Inputs = Any
"""Observations (a tensor, or a mapping of them for a Dict space), or a mapping with "obs"."""


class Model(nn.Module):
    """Normaliser (optional), encoder and head.

    Args:
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        config: Options of the network.
    """

    recurrent = False

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        config: ModelConfig | None = None,
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.config = config = config or ModelConfig()
        if config.lstm is not None and not self.recurrent:
            raise ValueError(
                f"'lstm' is set, but {type(self).__name__} has no LSTM: leave it out, or stack "
                "frames with 'env.frame_stack'"
            )
        self.normalizer = make_policy_normalizer(observation_space, config)
        self.encoder = make_encoder(observation_space, config)
        self.size = self.encoder.size
        self.head = self.make_head(action_space)

    def make_head(self, action_space: Space[Any]) -> nn.Module:
        """Make the output layer, for features of `size`."""
        raise NotImplementedError

    def gain(self, gain: float) -> float | None:
        """Gain of an output layer: None with PyTorch's default initialisation."""
        return gain if self.config.orthogonal else None

    def forward(self, inputs: Inputs) -> Output:
        """Return the outputs of the head for observations [B, ...] or [T, B, ...]."""
        output: Output = self.head(self.encoder(self.normalize(inputs)))
        return output

    def normalize(self, inputs: Inputs) -> Any:
        """Return the observations of a model's input, normalised if the config says so."""
        if not isinstance(inputs, Tensor):
            inputs = unwrap(inputs, self.observation_space)
        return inputs if self.normalizer is None else self.normalizer(inputs)

    def features(self, inputs: Inputs) -> Tensor:
        """Return the encoded observations."""
        encoded: Tensor = self.encoder(self.normalize(inputs))
        return encoded


@register_model("q_network")
class QNetwork(Model):
    """Action values for a Discrete action space: ``logit`` [..., n_actions]."""

    def make_head(self, action_space: Space[Any]) -> nn.Module:
        """See `Model`."""
        kind = DuelingHead if self.config.dueling else DiscreteHead
        return kind(self.size, count_actions(action_space, self), self.gain(VALUE_GAIN))


@register_model("actor")
class Actor(Model):
    """Actor of an `ActorCritic` alone: ``logit``, or ``mu`` and ``log_std``."""

    def make_head(self, action_space: Space[Any]) -> nn.Module:
        """See `Model`."""
        if isinstance(action_space, spaces.Box):
            return ContinuousHead(self.size, action_space.shape, gain=self.gain(POLICY_GAIN))
        return DiscreteHead(self.size, count_actions(action_space, self), self.gain(POLICY_GAIN))


@register_model("actor_critic")
class ActorCritic(Actor):
    """Actor-critic network.

    Returns ``logit`` for a Discrete action space, ``mu`` and ``log_std`` (one vector for all
    states) for a Box, and ``value`` [...]. `actor` and `critic` compute one of them. Each has its
    own encoder, unless ``config.share_encoder`` is set. Arguments as in `Model`.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        config: ModelConfig | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, config)
        self.value_head = linear(self.size, 1, self.gain(VALUE_GAIN))
        if not self.config.share_encoder:
            self.critic_encoder = make_encoder(observation_space, self.config)

    def forward(self, inputs: Inputs) -> Output:
        """Return the outputs of actor and critic; see `Model.forward`."""
        features = self.features(inputs)
        return {**self.head(features), "value": self._value(inputs, features)}

    actor = Model.forward

    def critic(self, inputs: Inputs) -> Output:
        """Return ``value`` [...] of observations."""
        features = self.features(inputs) if self.config.share_encoder else None
        return {"value": self._value(inputs, features)}

    def _value(self, inputs: Inputs, features: Any) -> Tensor:
        if not self.config.share_encoder:
            features = self.critic_encoder(self.normalize(inputs))
        return apply_linear(self.value_head, features).squeeze(-1)


@register_model("deterministic_actor")
class DeterministicActor(Model):
    """Deterministic policy in [-1, 1]: ``action`` [..., *shape]. For DDPG and TD3."""

    def make_head(self, action_space: Space[Any]) -> nn.Module:
        """See `Model`."""
        return DeterministicHead(
            self.size, action_shape(action_space, self), self.gain(POLICY_GAIN)
        )


@register_model("gaussian_actor")
class GaussianActor(Model):
    """Gaussian policy with state-dependent standard deviation: ``mu``, ``log_std``. For SAC.

    Both are [..., *shape] and describe actions before squashing into [-1, 1].
    """

    def make_head(self, action_space: Space[Any]) -> nn.Module:
        """See `Model`."""
        shape = action_shape(action_space, self)
        return ContinuousHead(self.size, shape, self.gain(POLICY_GAIN), state_dependent=True)


def count_actions(action_space: Space[Any], model: nn.Module) -> int:
    """Return the number of actions of a Discrete space; raise an error for others."""
    if not isinstance(action_space, spaces.Discrete):
        raise ValueError(_no_head(action_space, model, "Discrete actions"))
    return int(action_space.n)


def action_shape(action_space: Space[Any], model: nn.Module) -> tuple[int, ...]:
    """Return the shape of an action of a Box; raise an error for other spaces."""
    if not isinstance(action_space, spaces.Box):
        raise ValueError(_no_head(action_space, model, "continuous actions (Box)"))
    return action_space.shape


def _no_head(action_space: Space[Any], model: nn.Module, actions: str) -> str:
    return (
        f"{type(model).__name__} has no head for actions of {action_space}: use an environment "
        f"with {actions}, or a policy for such actions"
    )

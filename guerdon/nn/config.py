"""The `model` part of a policy's section."""

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from guerdon.config.registry import registry_of
from guerdon.config.schema import Section

EncoderName = Literal["auto", "mlp", "nature", "impala", "resnet10"]
ActivationName = Literal["tanh", "relu", "silu"]


class ModelConfig(Section):
    """What network a policy, or a reward model, is built from."""

    type: str | None = None
    """None for the policy's own network, a registered name, or ``"package.module:Class"``."""
    keys: list[str] | None = None
    """The parts that it sees of an observation with several (a Dict), for example ``[state]``
    beside pictures that only the reward looks at; all of them where left out."""
    encoder: EncoderName = "auto"
    """What reads the observation. ``auto`` takes ``mlp`` for vectors, ``nature`` for images of at
    least 36 by 36, ``impala`` for smaller ones."""
    hidden: list[PositiveInt] = Field(default=[64, 64])
    """Sizes of the hidden layers, input side first; two layers of 64 to 256 are usual. An image's
    features do not pass them, unless they are joined with a vector."""
    activation: ActivationName = "tanh"
    """The function after each hidden layer; tanh for small on-policy networks, else relu."""
    orthogonal: bool = True
    """Orthogonal weights and zero biases at the start, instead of torch's own. Helps on-policy."""
    normalize_obs: bool | Literal["demonstrations"] = False
    """Whether observations (not images) are brought to mean 0 and variance 1 by running
    statistics; helps where their scales differ, as in MuJoCo. ``demonstrations`` takes the
    statistics of what the reward's demonstrations saw, and keeps them."""
    dueling: bool = False
    """For Q networks: action values are a state's value plus advantages of mean 0."""
    lstm: PositiveInt | None = None
    """Size of an LSTM after the encoder (64 to 512), for networks that have one; None for none."""
    share_encoder: bool = False
    """Whether actor and critic share an encoder: usual for images, seldom good for vectors."""

    @field_validator("type")
    @classmethod
    def _check_type(cls, name: str | None) -> str | None:
        if name is not None:
            registry_of("model").get(name)
        return name

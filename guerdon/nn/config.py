"""Options of networks: the ``model`` part of a policy or reward."""

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from guerdon.config.registry import registry_of
from guerdon.config.schema import Section

EncoderName = Literal["auto", "mlp", "nature", "impala", "resnet10"]
ActivationName = Literal["tanh", "relu", "silu"]


class ModelConfig(Section):
    """Options of a network."""

    type: str | None = None
    """Network: a registered name or ``package.module:Class``; null for the policy's default."""
    keys: list[str] | None = None
    """Parts of a Dict observation to use, for example ``[state]`` if only the reward uses images;
    null for all."""
    encoder: EncoderName = "auto"
    """Observation encoder. ``auto`` is ``mlp`` for vectors, ``nature`` for images of 36x36 or more,
    ``impala`` for smaller ones."""
    hidden: list[PositiveInt] = Field(default=[64, 64])
    """Sizes of the hidden layers; usually two of 64 to 512. Image features skip them unless
    combined with a vector."""
    activation: ActivationName = "tanh"
    """Activation of the hidden layers; tanh for small on-policy networks, else relu."""
    orthogonal: bool = True
    """Orthogonal initialisation instead of PyTorch's default; recommended on-policy."""
    normalize_obs: bool | Literal["demonstrations"] = False
    """Whether to normalise observations (not images) by their mean and variance; helps if their
    scales differ, as in MuJoCo. After the first 2,000 observations the mean stays, and the variance
    can only grow. ``demonstrations`` uses fixed statistics of the reward's demonstrations."""
    dueling: bool = False
    """Dueling architecture for Q-networks: state value plus advantages of mean 0."""
    lstm: PositiveInt | None = None
    """Size of an LSTM after the encoder, for networks that support it; usually 64 to 512, null for
    none."""
    share_encoder: bool = False
    """Whether actor and critic share an encoder; usual for images, rarely good for vectors."""

    @field_validator("type")
    @classmethod
    def _check_type(cls, name: str | None) -> str | None:
        if name is not None:
            registry_of("model").get(name)
        return name

"""Small policies, so that tests of configuration depend on no algorithm."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class ModelConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden: list[int] = [64, 64]
    activation: str = "tanh"
    type: object = None


class PolicyConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = ""
    gamma: float = Field(0.99, ge=0, le=1)
    learning_rate: float = Field(3e-4, gt=0)
    model: ModelConfig = ModelConfig()


class ValueConfig(PolicyConfig):
    n_step: int = 1
    model: ModelConfig = ModelConfig(activation="relu")


class Kind:
    """Has what the configuration asks of the class of a policy."""

    @classmethod
    def learns_on_policy(cls, options):  # noqa: ARG003
        return cls.on_policy


class OnPolicy(Kind):
    """Learns from its own rollouts."""

    Config = PolicyConfig
    on_policy, offline, uses_reward = True, False, True
    target_name = "GAE"
    defaults: ClassVar = {"collect": {"n_step": 256}, "learn": {"batch_size": 64, "repeat": 4}}


class OffPolicy(Kind):
    """Learns from a buffer."""

    Config = ValueConfig
    on_policy, offline, uses_reward = False, False, True
    target_name = "{n_step}-step TD"
    defaults: ClassVar = {"collect": {"n_step": 10, "buffer_size": 50_000}, "env": {"n_envs": 2}}

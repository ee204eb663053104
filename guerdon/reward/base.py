"""What a reward model is, and how one is found by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from guerdon.config.registry import Registry
from guerdon.config.validation import validated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.data import Batch


class RewardConfig(BaseModel):
    """What every reward model can be told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = ""
    """The registered name."""


class RewardModel(ABC):
    """Turns transitions into what the learner shall believe they are worth.

    `estimate` is pure: whatever changes does so in `collect_data` and `train`.

    Args:
        config: Its options, an instance of its `Config` or a dictionary for one.
        device: Where its networks live.
        tb_logger: Where it may write scalars of its own, as a TensorBoard writer does.
    """

    Config: ClassVar[type[RewardConfig]] = RewardConfig
    fields: ClassVar[tuple[str, ...]] = ()
    """The fields of a transition that `estimate` reads, beside ``rew``."""
    with_env: ClassVar[bool] = False
    """Whether it is a bonus: written flat in a config, the environment's reward comes with it."""
    learns: ClassVar[bool] = False
    """Whether it wants fresh data, and training."""

    def __init__(
        self, config: RewardConfig | Mapping[str, Any], device: str = "cpu", tb_logger: Any = None
    ) -> None:
        if not isinstance(config, RewardConfig):
            config = validated(self.Config, config, "reward")
        self.config: Any = config
        self.device = device
        self.tb_logger = tb_logger

    @abstractmethod
    def estimate(self, data: Batch) -> Batch:
        """The same transitions with ``rew`` as the model sees it; the input stays as it is."""

    def collect_data(self, data: Batch) -> None:  # noqa: B027 - most models need none
        """Takes a fresh rollout [T, B, ...] in time order."""

    def train(self) -> None:  # noqa: B027 - not all are trained
        """Fits the model to what it has collected."""

    def clear_data(self, iter: int) -> None:  # noqa: A002, B027 - the documented name
        """Forgets collected data, if it is time to."""

    def load_expert_data(self, data: Any) -> None:  # noqa: ARG002 - for subclasses
        """Takes demonstrations, where the model learns from them."""
        raise TypeError(f"{type(self).__name__} does not learn from demonstrations")

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given {list(state)}")


REWARDS: Registry[type[RewardModel]] = Registry("reward", "guerdon.reward")


register_reward_model = REWARDS.register
"""Makes a reward model known by a name: as a decorator, or as a call with the class."""


def create_reward_model(
    cfg: Mapping[str, Any], device: str = "cpu", tb_logger: Any = None
) -> RewardModel:
    """Makes the reward model that ``cfg["type"]`` names."""
    return REWARDS.get(cfg["type"])(dict(cfg), device, tb_logger)


def as_rewards(value: Any, like: Any) -> Any:
    """Rewards of the kind (array, or tensor and its device) and shape that others have."""
    if isinstance(like, torch.Tensor):
        value = torch.as_tensor(value, dtype=torch.float32, device=like.device)
        return value.expand(like.shape)
    if isinstance(value, torch.Tensor):
        value = value.numpy(force=True)
    return np.broadcast_to(np.asarray(value, np.float32), like.shape)

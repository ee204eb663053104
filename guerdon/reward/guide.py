"""Reward models written by DI-engine's guide: lists of dictionaries in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import ConfigDict

from guerdon.reward import items
from guerdon.reward.base import Metrics, RewardConfig, RewardModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.data.batch import Batch


class GuideConfig(RewardConfig):
    """Takes whatever options the model reads."""

    model_config = ConfigDict(extra="allow")


class BaseRewardModel(RewardModel, ABC):
    """What a reward model of the guide's style derives from.

    It is made with its config (keys are attributes), a device and a ``tb_logger``; data are lists
    of dictionaries with tensors: ``obs``, ``action``, ``reward``, ``next_obs``, ``done``.
    """

    Config: ClassVar[type[RewardConfig]] = GuideConfig
    fields = ("obs", "act", "obs_next", "terminated")
    learns = True

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        self.cfg = config
        self.device = device
        self.tb_logger = tb_logger

    @abstractmethod
    def estimate(self, data: Any) -> Any:
        """Copies of the dictionaries with ``reward`` as the model sees it."""

    @abstractmethod
    def train(self) -> None:
        """Fits the model to what it has collected."""

    @abstractmethod
    def collect_data(self, data: Any) -> None:
        """Takes fresh transitions."""

    @abstractmethod
    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Forgets collected data, if it is time to."""


class Scalars:
    """A ``tb_logger`` that keeps the newest value of each scalar, for the run's own log."""

    def __init__(self) -> None:
        self.newest: Metrics = {}

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Takes a value, as a TensorBoard writer does."""
        self.newest[tag.rpartition("/")[2]] = scalar_value


class GuideAdapter(RewardModel):
    """A model of the guide's style as a part of a `Reward`.

    Args:
        model: The model.
        scalars: What it writes its scalars to.
    """

    fields = BaseRewardModel.fields
    learns = True

    def __init__(self, model: BaseRewardModel, scalars: Scalars) -> None:
        super().__init__(RewardConfig())
        self.model = model
        self.scalars = scalars

    def score(self, data: Batch) -> np.ndarray:
        """What the model's copies of the transitions say."""
        rows = data if data.rew.ndim == 1 else data.reshape(-1)
        estimated = self.model.estimate(items.from_batch(rows))
        rew = np.array([float(item["reward"]) for item in estimated], np.float32)
        return rew.reshape(data.rew.shape)

    def collect_data(self, data: Batch) -> None:
        """Gives the model the real transitions as a list."""
        self.model.collect_data(items.from_batch(data[np.asarray(data.mask)]))

    def train(self) -> Metrics:
        """Lets the model learn; what it wrote to its logger comes back."""
        self.model.train()
        return dict(self.scalars.newest)

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """See `RewardModel`."""
        self.model.clear_data(iter)

    def load_expert_data(self, data: Any = None) -> None:
        """See `RewardModel`."""
        self.model.load_expert_data(data)

    def state_dict(self) -> dict[str, Any]:
        """What the model wants saved."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        self.model.load_state_dict(state)

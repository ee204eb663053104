"""Soft Q imitation learning (SQIL): https://arxiv.org/abs/1905.11108."""

from typing import Any

import numpy as np
import torch
from pydantic import Field

from guerdon.data import Batch, MixedReplay, ReplayBuffer
from guerdon.data.demonstrations import KEYS, as_like
from guerdon.reward.base import ReplaySource, Setting, register_reward_model
from guerdon.reward.ood import Reference
from guerdon.reward.trained import ExpertConfig, ExpertReward


class SQILConfig(ExpertConfig):
    """Options of `sqil`."""

    share: float = Field(default=0.5, gt=0, lt=1)
    """Fraction of demonstrations in every batch; 0.5 in the paper."""


@register_reward_model("sqil")
class SQIL(ExpertReward, ReplaySource):
    """Reward 1 for demonstrated transitions and 0 for the policy's; both are sampled.

    Use a soft policy: sac, or dqn with little exploration.
    """

    Config = SQILConfig
    requires = frozenset({"demonstrations", "replay"})

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        self.generator = np.random.default_rng(self.setting.seed)
        self.reference = Reference()  # a part of its state, also before it has demonstrations
        self._mixed: MixedReplay | None = None

    def take_demonstrations(self, rows: Batch) -> None:  # noqa: ARG002 - `_filled` reads them
        """See `ExpertReward`."""
        self._mixed = None

    def set_reference(self, rows: Batch, groups: np.ndarray) -> None:
        """See `RewardModel`; demonstrations are paid 1, which no transition of the policy is."""
        super().set_reference(rows, groups)
        self.reference.rewards = torch.tensor([0.0, 1.0, 1.0])

    def _compared_fields(self) -> list[str]:
        """See `RewardModel`; the networks of the policy read them."""
        return ["obs", "act"]

    def mixed(self, buffer: ReplayBuffer) -> MixedReplay:
        """Return a mixture of a non-empty buffer and the demonstrations, in its dtypes."""
        if self._mixed is None or self._mixed["agent"] is not buffer:
            share = self.config.share
            self._mixed = MixedReplay(
                {"agent": buffer, "demonstrations": self._filled(buffer[:1])},
                {"agent": 1.0 - share, "demonstrations": share},
                self.generator,
            )
        return self._mixed

    def _filled(self, like: Batch) -> ReplayBuffer:
        """Return a buffer of the demonstrations, with the dtypes and device of `like`."""
        if self.demonstrations is None:
            self.load_expert_data()
        assert self.demonstrations is not None
        storage = like.rew.device if isinstance(like.rew, torch.Tensor) else "memory"
        size = int(self.demonstrations.lengths.sum())
        buffer = ReplayBuffer(size, seed=self.generator, storage=storage)
        for episode in self.demonstrations.episodes:
            buffer.extend({key: as_like(episode[key], like[key]) for key in KEYS})
        return buffer

    def score(self, batch: Batch) -> Any:
        """Return 1 for demonstrations, 0 otherwise; without ``source``, all are the policy's."""
        return batch.source == 1 if "source" in batch else 0.0

"""Soft Q imitation learning: https://arxiv.org/abs/1905.11108."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field

from guerdon.data import Batch, BufferManager, Demonstrations, Limits, ReplayBuffer
from guerdon.data.demonstrations import KEYS
from guerdon.data.leaves import to_numpy
from guerdon.reward.base import RewardModel, Setting, register_reward_model
from guerdon.reward.experts import ExpertConfig, check_experts, read_experts

if TYPE_CHECKING:
    from collections.abc import Mapping

_AGENT, _EXPERT = "agent", "demonstrations"


class SQILConfig(ExpertConfig):
    """Options of `sqil`."""

    share: float = Field(default=0.5, gt=0, lt=1)
    """How much of every batch is demonstrations; half of it in the paper."""


@register_reward_model("sqil")
class SQIL(RewardModel):
    """Demonstrated transitions are worth 1 and all others 0; the policy learns from both.

    Nothing is learned here. The policy should be a soft one: sac, or dqn with little exploration.

    Attributes:
        generator: What demonstrations are drawn with.
    """

    Config = SQILConfig
    imitates = True
    off_policy = True
    setting: Setting | None = None
    demonstrations: Demonstrations | None = None

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        self.generator = np.random.default_rng(0)
        self._mixed: BufferManager | None = None

    def setup(self, setting: Setting) -> None:
        """See `RewardModel`."""
        self.setting = setting
        self.generator = np.random.default_rng(setting.seed)

    def load_expert_data(self, data: Any = None) -> None:
        """Takes demonstrations.

        Args:
            data: The demonstrations, or what `guerdon.data.load_demonstrations` reads; what
                ``expert_data_path`` names by default.
        """
        self.demonstrations = read_experts(self, data)
        if self.setting is not None:
            check_experts(self.setting, self.demonstrations.transitions())
        self._mixed = None

    def wrap_buffer(self, buffer: ReplayBuffer) -> BufferManager:
        """The buffer with the demonstrations at its side: batches are drawn from both.

        Args:
            buffer: The collector's, with a transition or more: demonstrations get its dtypes.
        """
        if self._mixed is None or self._mixed[_AGENT] is not buffer:
            share = self.config.share
            self._mixed = BufferManager(
                {_AGENT: buffer, _EXPERT: self._filled(buffer[:1])},
                {_AGENT: 1.0 - share, _EXPERT: share},
                Limits(min_fill=0.0),  # a few demonstrations are drawn again and again
                self.generator,
            )
        return self._mixed

    def _filled(self, like: Batch) -> ReplayBuffer:
        """A buffer of the demonstrations, stored as other transitions are."""
        if self.demonstrations is None:
            self.load_expert_data()
        assert self.demonstrations is not None
        storage = like.rew.device if isinstance(like.rew, torch.Tensor) else "memory"
        size = int(self.demonstrations.lengths.sum())
        buffer = ReplayBuffer(size, seed=self.generator, storage=storage)
        for episode in self.demonstrations.episodes:
            rows = Batch({key: _as(episode[key], like[key]) for key in KEYS})
            for i in range(len(rows)):  # a row without an axis for environments is the fast way
                buffer.add(rows[i])
            buffer.cut()
        return buffer

    def score(self, data: Batch) -> Any:
        """1 where a transition was demonstrated; without ``source``, the policy made them all."""
        return data.source == 1 if "source" in data else 0.0

    def state_dict(self) -> dict[str, Any]:
        """See `RewardModel`; demonstrations are read again."""
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        self.generator.bit_generator.state = state["generator"]


def _as(values: Any, like: Any) -> Any:
    """Arrays in the dtypes of others, whatever they are nested in."""
    if isinstance(like, Batch):
        return {key: _as(values[key], part) for key, part in like.items()}
    return to_numpy(values).astype(to_numpy(like).dtype)

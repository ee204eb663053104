"""Prioritized experience replay as an option of policies."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from guerdon.data import Batch, MixedReplay, PrioritizedReplayBuffer, ReplayBuffer, Rollout
from guerdon.policy.base import Policy, PolicyConfig


class PrioritizedConfig(PolicyConfig):
    """Options of policies whose replay may be prioritized."""

    prioritized: bool = False
    """Prioritized experience replay (https://arxiv.org/abs/1511.05952)."""
    alpha: float = Field(default=0.6, ge=0, le=1)
    """Exponent of priorities, if prioritized: 0 samples uniformly; usually 0.4 to 0.7."""
    beta: float = Field(default=0.4, ge=0, le=1)
    """Initial exponent of importance weights, if prioritized, usually 0.4; it grows to 1 over the
    run."""


class PrioritizedPolicy(Policy):
    """Base of these policies: `learn` sets ``priority`` of the batch, one error per sample."""

    def build(self) -> None:
        """See `Policy`; derived classes call it first."""
        self._beta: float = self.config.beta

    def make_buffer(
        self, size: int, n_envs: int, seed: int, history: int = 0
    ) -> ReplayBuffer | Rollout:
        """See `Policy`; with priorities if ``prioritized``."""
        config = self.config
        if not config.prioritized:
            return super().make_buffer(size, n_envs, seed, history)
        return PrioritizedReplayBuffer(size, config.alpha, config.beta, n_envs=n_envs, seed=seed)

    def advance(self, env_steps: int, progress: float) -> None:
        """See `Policy`; updates the exponent of importance weights."""
        super().advance(env_steps, progress)
        self._beta = self.config.beta + (1 - self.config.beta) * min(progress, 1.0)

    def read(
        self, batch_size: int, source: Any, fields: tuple[str, ...]
    ) -> tuple[Batch, np.ndarray]:
        """See `Policy`; with the current exponent of importance weights."""
        if isinstance(source, PrioritizedReplayBuffer | MixedReplay):
            source.set_beta(self._beta)
        return super().read(batch_size, source, fields)

    def post_process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> None:
        """Update priorities, if there are any."""
        prioritized = isinstance(buffer, PrioritizedReplayBuffer | MixedReplay)
        if prioritized and batch.get("priority") is not None:
            buffer.update_weight(indices, batch.priority)

    def training_state(self) -> dict[str, Any]:
        """See `Policy`; includes the exponent."""
        return super().training_state() | {"beta": self._beta}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `Policy`."""
        super().load_training_state(state)
        self._beta = state["beta"]

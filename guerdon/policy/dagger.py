"""Dataset aggregation: https://arxiv.org/abs/1011.0686."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from guerdon.data.batch import Batch
from guerdon.policy.base import Metrics, register_policy
from guerdon.policy.bc import Cloning, CloningConfig


class DAggerConfig(CloningConfig):
    """Options of `dagger`."""

    expert: str | None = None
    """Expert that says which action is right: a run, ``expert:<preset>``, or a function from
    observations [N, ...] to actions (``package.module:function``, ``path/to/file.py:function``)."""
    beta_steps: int = Field(default=2_000, ge=0)
    """Environment steps over which the probability that the expert acts decreases linearly from 1
    to 0; usually up to half of the run."""


@register_policy("dagger")
class DAgger(Cloning):
    """Dataset aggregation: clones an expert at the observations that the policy itself visits.

    Attributes:
        expert: The expert: a function from observations [N, ...] to actions.
        beta: Probability that the expert acts.
    """

    Config = DAggerConfig
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "collect": {"n_step": 64, "buffer_size": 100_000},
        "learn": {"batch_size": 64, "updates_per_collect": 16},
    }
    fields = ("obs", "policy")
    expert: Callable[[Any], Any] | None = None
    beta = 1.0

    def load_expert_data(self) -> None:
        """Check that there is an expert."""
        if self.expert is None:
            raise ValueError("dagger asks an expert: set 'policy.expert' to a run or a function")

    def forward(self, batch: Batch, state: Any = None) -> Batch:
        """Choose the policy's actions; while collecting, those of the expert at random."""
        output = super().forward(batch, state)
        if not self.explores or self._sampling:
            return output
        right = self._right(batch, len(output.act))
        drawn = torch.rand(len(right), generator=self.generator, device=self.device)
        guided = drawn.numpy(force=True) < self.beta
        act = np.where(guided.reshape(-1, *[1] * (right.ndim - 1)), right, output.act)
        return Batch(act=act.astype(right.dtype), policy=Batch(expert=right))

    def random_output(self, batch: Batch, act: np.ndarray, state: Any = None) -> Batch:  # noqa: ARG002
        """See `Policy`; with the expert's actions."""
        return Batch(act=act, policy=Batch(expert=self._right(batch, len(act))))

    def _right(self, batch: Batch, number: int) -> np.ndarray:
        """Return the expert's actions at observations."""
        assert self.expert is not None
        obs = batch.obs.to_dict() if isinstance(batch.obs, Batch) else batch.obs
        act, space = np.asarray(self.expert(obs)), self.action_space
        shape = space.shape
        if act.shape != (number, *shape) or not np.can_cast(act.dtype, space.dtype, "same_kind"):
            raise ValueError(
                f"the expert ('policy.expert') returned {act.dtype} {list(act.shape)} for {number} "
                f"observations: it has to return {space.dtype} {[number, *shape]}"
            )
        return act.astype(space.dtype)

    def advance(self, env_steps: int, progress: float) -> None:
        """Update the probability that the expert acts."""
        super().advance(env_steps, progress)
        steps = self.config.beta_steps
        self.beta = max(1.0 - env_steps / steps, 0.0) if steps else 0.0

    def learn(self, batch: Batch, **options: Any) -> Metrics:
        """Take one gradient step towards the expert's actions."""
        rows = Batch(obs=batch.obs, act=batch.policy.expert)
        return super().learn(rows, **options) | {"train/beta": self.beta}

    def training_state(self) -> dict[str, Any]:
        """See `Policy`; with the probability that the expert acts."""
        return super().training_state() | {"beta": self.beta}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of `training_state`."""
        super().load_training_state(state)
        self.beta = state["beta"]

"""A second value for a bonus, which runs on past the ends of episodes.

Two returns with discounts of their own, as in https://arxiv.org/abs/1810.12894: an end is no reason
to stop looking for news.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from guerdon.nn.models import QNetwork
from guerdon.ops.returns import backward_scan
from guerdon.policy.advantages import CHUNK, index_rows, numbers

if TYPE_CHECKING:
    from guerdon.data.batch import Batch
    from guerdon.policy.base import Policy


class IntrinsicConfig(BaseModel):
    """Options of the second value."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    terms: list[str] = Field(min_length=1)
    """The terms of the reward that it is for. They need the weight 0 in the reward: what is left
    there is what the first value is for."""
    gamma: float = Field(default=0.99, ge=0, lt=1)
    """Discount of these terms; 0.99 to 0.999."""
    coefficient: float = Field(default=1.0, ge=0)
    """Weight of their advantages beside those of the reward; 0.1 to 1."""
    episodic: bool = False
    """Whether their return stops where an episode terminates, as the reward's does."""


class IntrinsicCritic(QNetwork):
    """A state value with an encoder of its own."""

    def __init__(self, observation_space: Any, _action_space: Any, config: Any) -> None:
        plain = config.model_copy(update={"dueling": False})
        super().__init__(observation_space, spaces.Discrete(1), plain)

    def value(self, obs: Any) -> Tensor:
        """Values [...] of observations."""
        value: Tensor = self(obs)["logit"]
        return value.squeeze(-1)


@torch.no_grad()
def with_intrinsic(
    policy: Policy, critic: IntrinsicCritic, batch: Batch, rows: Batch, buffer: Any, indices: Any
) -> Batch:
    """Rows with the advantages of both kinds added, ``intrinsic_value`` and ``intrinsic_returns``.

    Args:
        policy: Whose options and device are used.
        critic: Knows the second value.
        batch: A rollout [T, B, ...], with the reward resolved.
        rows: Its real rows, with the advantages of the reward.
        buffer: Where it comes from.
        indices: Its rows there, [T, B].
    """
    config, mask = policy.config.intrinsic, np.asarray(batch.mask)
    pieces = range(0, len(rows.act), CHUNK)
    seen = [critic.value(index_rows(rows.obs, slice(i, i + CHUNK))) for i in pieces]
    known = torch.cat(seen)
    value = np.zeros(mask.shape, np.float32)
    value[mask] = numbers(known)
    newest = mask & (np.cumsum(mask[::-1], axis=0)[::-1] == 1)
    stops = mask & np.asarray(batch.cut) if config.episodic else newest
    discount = np.full(mask.shape, config.gamma, np.float32)
    if config.episodic:
        discount[np.asarray(batch.terminated)] = 0.0
    value_next = np.zeros_like(value)
    # The next value is that of the next real row, also where an episode begins with it.
    value_next[:-1] = backward_scan(value, np.where(mask, np.float32(0), np.float32(1)))[1:]
    ends = policy.observation(buffer.get(indices[stops], "obs_next"))
    value_next[stops] = numbers(critic.value(ends))
    delta = intrinsic_reward(batch, config.terms) + discount * value_next - value
    trace = np.where(stops, np.float32(0), discount * np.float32(policy.config.gae_lambda))
    advantage = backward_scan(
        np.where(mask, delta, np.float32(0)), np.where(mask, trace, np.float32(1))
    )
    flat = policy.tensor(advantage[mask])
    return rows.replace(
        advantage=rows.advantage + config.coefficient * flat,
        intrinsic_value=known,
        intrinsic_returns=flat + known,
    )


def intrinsic_reward(batch: Batch, terms: list[str]) -> np.ndarray:
    """The sum [T, B] of some terms of a resolved reward."""
    there = list(batch.rew_terms.keys()) if "rew_terms" in batch else []
    for name in terms:
        if name not in there:
            raise ValueError(
                f"'policy.intrinsic.terms' names {name!r}, but the reward has the terms {there}: "
                "add it to 'reward.terms' with the weight 0"
            )
    total: np.ndarray = np.stack([numbers(batch.rew_terms[name]) for name in terms]).sum(0)
    return total

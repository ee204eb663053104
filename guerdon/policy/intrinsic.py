"""A second value function for an intrinsic, non-episodic reward.

Two returns with a discount each, as in https://arxiv.org/abs/1810.12894.
"""

from typing import Any

import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor

from guerdon.config.schema import Section
from guerdon.data.batch import Batch
from guerdon.nn.models import QNetwork
from guerdon.ops import backward_scan
from guerdon.policy.advantages import CHUNK, flat_rows, index_rows, scatter_rows, valid_rows
from guerdon.policy.base import Policy


class IntrinsicConfig(Section):
    """Options of the second value function."""

    terms: list[str] = Field(min_length=1)
    """Reward terms of this value function. Give them weight 0 in the reward; the first value
    function predicts the others."""
    gamma: float = Field(default=0.99, ge=0, lt=1)
    """Discount factor of these terms; usually 0.99 to 0.999."""
    coefficient: float = Field(default=1.0, ge=0)
    """Weight of their advantages; usually 0.1 to 1."""
    episodic: bool = False
    """Whether their return ends with the episode."""


class IntrinsicCritic(QNetwork):
    """A state value function with its own encoder."""

    def __init__(self, observation_space: Any, _action_space: Any, config: Any) -> None:
        plain = config.model_copy(update={"dueling": False})
        super().__init__(observation_space, spaces.Discrete(1), plain)

    def value(self, obs: Any) -> Tensor:
        """Return values [...] of observations."""
        value: Tensor = self(obs)["logit"]
        return value.squeeze(-1)


@torch.no_grad()
def with_intrinsic(policy: Policy, critic: IntrinsicCritic, batch: Batch, rows: Batch) -> Batch:
    """Add ``intrinsic_value`` and ``intrinsic_returns``, and their advantages to ``advantage``.

    Args:
        policy: Policy, for its options.
        critic: The second value function.
        batch: A rollout [T, B, ...], with the reward resolved.
        rows: Its transitions, with the advantages of the reward.
    """
    config, mask = policy.config.intrinsic, batch.mask
    pieces = range(0, len(rows.act), CHUNK)
    known = torch.cat([critic.value(index_rows(rows.obs, slice(i, i + CHUNK))) for i in pieces])
    valid = valid_rows(mask)
    value = scatter_rows(known, valid, mask)
    newest = mask & (mask.flip(0).cumsum(0).flip(0) == 1)
    stops = mask & batch.cut if config.episodic else newest
    discount = torch.full_like(value, config.gamma)
    if config.episodic:
        discount = discount * ~batch.terminated
    value_next = torch.zeros_like(value)
    # Bootstrap from the next transition, even of a new episode.
    value_next[:-1] = backward_scan(value, (~mask).float())[1:]
    ends = stops.flatten().nonzero().squeeze(-1)
    obs_next = flat_rows(policy.observation(batch.obs_next))
    value_next.view(-1)[ends] = critic.value(index_rows(obs_next, ends))
    delta = intrinsic_reward(batch, config.terms) + discount * value_next - value
    trace = torch.where(stops, 0.0, discount * policy.config.gae_lambda)
    advantage = backward_scan(
        torch.where(mask, delta, 0.0), torch.where(mask, trace, torch.ones_like(trace))
    ).flatten()
    if valid is not None:
        advantage = advantage[valid]
    return rows.replace(
        advantage=rows.advantage + config.coefficient * advantage,
        intrinsic_value=known,
        intrinsic_returns=advantage + known,
    )


def intrinsic_reward(batch: Batch, terms: list[str]) -> Tensor:
    """Return the sum [T, B] of some terms of a resolved reward."""
    there = list(batch.rew_terms.keys()) if "rew_terms" in batch else []
    for name in terms:
        if name not in there:
            raise ValueError(
                f"'policy.intrinsic.terms' has {name!r}, but the reward has the terms {there}: "
                "add it to 'reward.terms' with the weight 0"
            )
    return torch.stack([batch.rew_terms[name] for name in terms]).sum(0)

"""Deep deterministic policy gradient: https://arxiv.org/abs/1509.02971.

TD3 with one critic, an actor update at every step and no target noise.
"""

from typing import Literal

from pydantic import Field

from guerdon.policy.base import register_policy
from guerdon.policy.td3 import TD3, TD3Config


class DDPGConfig(TD3Config):
    """Options of `ddpg`."""

    n_critics: Literal[1] = 1
    """One critic."""
    actor_every: Literal[1] = 1
    """One actor update per critic update."""
    target_noise: Literal[0] = 0
    """No target noise."""
    target_noise_clip: Literal[0] = 0
    """No target noise."""
    exploration_noise: float = Field(default=0.1, ge=0)
    """Standard deviation of action noise while collecting, for actions in [-1, 1]."""


@register_policy("ddpg")
class DDPG(TD3):
    """Deep deterministic policy gradient, for Box actions."""

    Config = DDPGConfig

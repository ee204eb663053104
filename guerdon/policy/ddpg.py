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
    """Number of critics; always 1."""
    actor_every: Literal[1] = 1
    """Critic updates per actor update; always 1."""
    target_noise: Literal[0] = 0
    """Target noise; always 0."""
    target_noise_clip: Literal[0] = 0
    """Clip range of the target noise; always 0."""
    exploration_noise: float = Field(default=0.1, ge=0)
    """Standard deviation of action noise while collecting, for actions in [-1, 1]; usually 0.1 to
    0.5."""


@register_policy("ddpg")
class DDPG(TD3):
    """Deep deterministic policy gradient, for Box actions."""

    Config = DDPGConfig

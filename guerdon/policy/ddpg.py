"""Deep deterministic policy gradient: https://arxiv.org/abs/1509.02971.

It is TD3 without the three things that TD3 added: one critic, an actor that learns every time, and
no noise in targets. So it is a set of options, not a second copy.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from guerdon.policy.base import register_policy
from guerdon.policy.td3 import TD3, TD3Config


class DDPGConfig(TD3Config):
    """Options of `ddpg`."""

    n_critics: Literal[1] = 1
    """One critic."""
    actor_every: Literal[1] = 1
    """The actor learns with every update."""
    target_noise: Literal[0] = 0
    """No noise on the next actions in targets."""
    target_noise_clip: Literal[0] = 0
    """No noise on the next actions in targets."""
    exploration_noise: float = Field(default=0.1, ge=0)
    """Spread of the noise on actions while collecting, as a share of half their range."""


@register_policy("ddpg")
class DDPG(TD3):
    """Deep deterministic policy gradient, for Box actions."""

    Config = DDPGConfig

"""Action noise for exploration, independent or correlated over time."""

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from guerdon.config.validation import ReadIf
from guerdon.policy.base import PolicyConfig


class NoiseConfig(PolicyConfig):
    """Options of policies that add noise to actions while collecting."""

    exploration_noise: float = Field(default=0.0, ge=0)
    """Standard deviation of action noise while collecting, for actions in [-1, 1]; 0 for none, else
    usually 0.1 to 0.5."""
    noise_correlation: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the noise that is kept for the next step: 0 is independent noise, 0.85 the
    Ornstein-Uhlenbeck process of DDPG (theta 0.15), for environments with inertia."""
    read_if: ClassVar[ReadIf] = (
        ("noise_correlation", "exploration_noise", True),
        ("model.share_encoder", "model.type", True),  # a user-defined network may read it
    )


def add_noise(
    act: Tensor, state: Any, config: NoiseConfig, generator: torch.Generator
) -> tuple[Tensor, Any]:
    """Add exploration noise to actions.

    Args:
        act: Actions [B, ...] in [-1, 1].
        state: Noise of the previous step, zero where episodes begin; None initially.
        config: Size and correlation of the noise.
        generator: Random number generator.

    Returns:
        The actions, and the noise if it is needed at the next step.
    """
    if not config.exploration_noise:
        return act, None
    noise = torch.empty_like(act).normal_(generator=generator) * config.exploration_noise
    if config.noise_correlation:
        if state is not None:
            noise = noise + config.noise_correlation * state
        state = noise
    return (act + noise).clamp(-1, 1), state

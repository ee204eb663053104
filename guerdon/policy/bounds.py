"""Scaling of Box actions to [-1, 1]."""

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor


class Bounds:
    """Maps actions between a Box and [-1, 1].

    Args:
        space: Action space of one environment.
        policy: Name of the policy, for the error message.
        device: Device of the networks.
    """

    def __init__(self, space: Space[Any], policy: str, device: torch.device) -> None:
        if (
            not isinstance(space, spaces.Box)
            or not np.issubdtype(space.dtype, np.floating)
            or not space.is_bounded()
            or not space.shape
        ):
            raise ValueError(
                f"{policy} supports real-valued Box action spaces with finite bounds, not {space}"
            )
        bounds = (space.high + space.low) / 2, (space.high - space.low) / 2
        middle, half = (x.astype(np.float32) for x in bounds)
        # If low equals high, the scaled action is 0.
        scale = np.where(half == 0, np.float32(1), half)
        arrays = middle, half, scale, space.low, space.high
        tensors = [torch.tensor(x, device=device) for x in arrays]
        self._middle, self._half, self._scale, self._low, self._high = tensors

    def scaled(self, act: Tensor) -> Tensor:
        """Scale actions in [-1, 1] to the environment."""
        scaled = act * self._half + self._middle
        return scaled.clamp(self._low, self._high).to(self._low.dtype)

    def to_env(self, act: Tensor) -> np.ndarray:
        """Scale actions in [-1, 1] to the environment, as an array."""
        return self.scaled(act).numpy(force=True)

    def to_unit(self, act: Tensor) -> Tensor:
        """Scale actions of the environment to [-1, 1]."""
        return (act.float() - self._middle) / self._scale

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
        self._low, self._high, self._dtype = space.low, space.high, space.dtype
        middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
        self._middle, self._half = (x.astype(np.float32) for x in (middle, half))
        # If low equals high, the scaled action is 0.
        scale = np.where(self._half == 0, np.float32(1), self._half)
        self._to_unit = tuple(torch.from_numpy(x).to(device) for x in (self._middle, scale))

    def to_env(self, act: Tensor) -> np.ndarray:
        """Scale actions in [-1, 1] to the environment."""
        scaled = act.numpy(force=True) * self._half + self._middle
        clipped: np.ndarray = np.clip(scaled, self._low, self._high)
        return clipped.astype(self._dtype, copy=False)

    def to_unit(self, act: Tensor) -> Tensor:
        """Scale actions of the environment to [-1, 1]."""
        middle, half = self._to_unit
        return (act.float() - middle) / half

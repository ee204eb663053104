"""From transitions to what the networks of reward models read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from guerdon.data.batch import Batch
from guerdon.nn.config import ModelConfig
from guerdon.nn.encoders import make_joint
from guerdon.nn.normalizer import ObservationNormalizer, make_normalizer
from guerdon.nn.spaces import is_image, part_spaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guerdon.reward.base import Setting


def tensors(value: Any, device: str | torch.device) -> Any:
    """Arrays as tensors on a device, in single precision; parts of a batch as a dictionary."""
    if isinstance(value, Batch | dict):
        return {key: tensors(part, device) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value if value.flags.writeable else value.copy())
    dtype = torch.float32 if value.dtype == torch.float64 else None
    return value.to(device=device, dtype=dtype)


def refuse_images(name: str, setting: Setting) -> None:
    """Says that a reward model has no use for images, if observations hold any.

    Args:
        name: The model's.
        setting: Knows the spaces.
    """
    if _has_images(setting.observation_space):
        raise ValueError(
            f"{name} compares numbers, and observations hold images ({setting.observation_space}): "
            "use gail or red, or an environment with vectors"
        )


def _has_images(space: Any) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(_has_images(part) for part in part_spaces(space).values())
    return is_image(space)


def take_rows(value: Any, index: Any) -> Any:
    """Rows of tensors, or of a dictionary of them, by any index."""
    if isinstance(value, dict):
        return {key: take_rows(part, index) for key, part in value.items()}
    return value[index]


class TransitionInput(nn.Module):
    """Makes one vector of a transition: numbers normalised, categories one-hot, images encoded.

    Calling it is pure; `update` alone changes the statistics that it normalises with.

    Args:
        setting: Knows the spaces.
        parts: Which fields to join: ``obs``, ``act``, ``obs_next``.
        model: How images are encoded.
        clip: The largest absolute value of a normalised number.
        images: Whether the pixels of images are normalised, too.
    """

    def __init__(
        self,
        setting: Setting,
        parts: Sequence[str],
        model: ModelConfig | None = None,
        clip: float = 10.0,
        images: bool = False,
    ) -> None:
        super().__init__()
        self.parts = tuple(parts)
        self.size = 0
        self.normalizers = nn.ModuleDict()
        self.encoders = nn.ModuleDict()
        for part in self.parts:
            kind = _kind(part)
            if kind not in self.encoders:  # observations and next ones are of one kind
                space = setting.action_space if kind == "act" else setting.observation_space
                if (normalizer := make_normalizer(space, images)) is not None:
                    self.normalizers[kind] = normalizer
                    _set_clip(normalizer, clip)
                self.encoders[kind] = make_joint(space, model or ModelConfig())
            encoder: Any = self.encoders[kind]
            self.size += encoder.size

    def forward(self, data: Any) -> Tensor:
        """Vectors [..., size] of transitions: a mapping with tensors."""
        return torch.cat([self._part(part, data[part]) for part in self.parts], -1)

    def _part(self, part: str, value: Any) -> Tensor:
        kind = _kind(part)
        if kind in self.normalizers:
            value = self.normalizers[kind](value)
        encoded: Tensor = self.encoders[kind](value)
        return encoded

    def update(self, data: Any) -> None:
        """Lets the statistics see transitions [N, ...]; of both observations, the first alone."""
        for kind, normalizer in self.normalizers.items():
            normalizer.update(data[kind if kind in data else "obs_next"])  # type: ignore[operator]

    def settle(self, data: Any) -> None:
        """Lets them see demonstrations; numbers that never change there keep their scale."""
        self.update(data)
        for module in self.normalizers.modules():
            if isinstance(module, ObservationNormalizer):
                module.spare_constants()


def _kind(part: str) -> str:
    return "act" if part == "act" else "obs"


def _set_clip(normalizer: Any, clip: float) -> None:
    for module in normalizer.modules():
        if hasattr(module, "clip"):
            module.clip = clip

"""Encodes transitions for the networks of reward models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from guerdon.nn.config import ModelConfig
from guerdon.nn.encoders import MLP, make_joint
from guerdon.nn.init import linear
from guerdon.nn.normalizer import ObservationNormalizer, make_normalizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guerdon.reward.base import Setting


class TransitionInput(nn.Module):
    """Encodes a transition as one vector: numbers normalised, categories one-hot, images encoded.

    Calling it is pure; only `update` changes the statistics that it normalises with.

    Args:
        setting: Has the spaces.
        parts: Fields to join: ``obs``, ``act``, ``obs_next``.
        model: How images are encoded.
        clip: Bound of the absolute value of normalised numbers.
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
                if space is None:
                    raise ValueError(
                        "this reward model needs the spaces of the environment: make it with a "
                        "Setting that has them, for example Setting.of(demonstrations)"
                    )
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
        """Update the statistics with transitions [N, ...]; ``obs_next`` is used without ``obs``."""
        for kind, normalizer in self.normalizers.items():
            normalizer.update(data[kind if kind in data else "obs_next"])  # type: ignore[operator]

    def settle(self, data: Any) -> None:
        """Update them with demonstrations; numbers that are constant there keep their scale."""
        self.update(data)
        for module in self.normalizers.modules():
            if isinstance(module, ObservationNormalizer):
                module.spare_constants()


class TransitionNetwork(nn.Module):
    """An MLP over encoded transitions.

    Args:
        setting: Has the spaces.
        parts: Fields to join: ``obs``, ``act``, ``obs_next``.
        hidden: Sizes of the hidden layers.
        size: Size of the output; None is one number, without a dimension of its own.
        activation: Name of the activation.
        extra: Further features of the input, which a subclass appends.
        **options: Further arguments of `TransitionInput`.
    """

    def __init__(
        self,
        setting: Setting,
        parts: Sequence[str],
        hidden: Sequence[int],
        size: int | None = None,
        activation: str = "tanh",
        extra: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.input = TransitionInput(setting, parts, **options)
        self.layers = layers(self.input.size + extra, hidden, size or 1, activation)
        self.scalar = size is None

    def forward(self, rows: Any) -> Tensor:
        """Outputs [..., size] or [...] of transitions."""
        return self.output(self.input(rows))

    def output(self, features: Tensor) -> Tensor:
        """Outputs of encoded transitions [..., n_features]."""
        output: Tensor = self.layers(features)
        return output.squeeze(-1) if self.scalar else output


def layers(
    n_in: int, hidden: Sequence[int], n_out: int, activation: str = "tanh", gain: float = 1.0
) -> nn.Sequential:
    """Hidden layers, and a linear one whose weights have this gain."""
    body = MLP(n_in, hidden, activation)
    return nn.Sequential(body, linear(body.size, n_out, gain))


def _kind(part: str) -> str:
    return "act" if part == "act" else "obs"


def _set_clip(normalizer: Any, clip: float) -> None:
    for module in normalizer.modules():
        if hasattr(module, "clip"):
            module.clip = clip

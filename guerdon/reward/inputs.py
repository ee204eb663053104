"""Encodes transitions for the networks of reward models."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from guerdon.nn.config import ModelConfig
from guerdon.nn.encoders import MLP, make_joint
from guerdon.nn.init import linear
from guerdon.nn.normalizer import ObservationNormalizer, make_normalizer
from guerdon.reward.base import Setting


class TransitionInput(nn.Module):
    """Encodes transitions as vectors: numbers normalised, categories one-hot, images encoded.

    Only `update` and `settle` change the statistics for normalisation.

    Args:
        setting: Setting with the spaces.
        parts: Fields to concatenate: ``obs``, ``act``, ``obs_next``.
        clip: Largest absolute normalised value.
        images: Whether to normalise pixels of images, too.
    """

    __call__: Callable[..., Tensor]

    def __init__(
        self, setting: Setting, parts: Sequence[str], clip: float = 10.0, images: bool = False
    ) -> None:
        super().__init__()
        self.kinds = {part: "act" if part == "act" else "obs" for part in parts}
        self.normalizers, self.encoders = nn.ModuleDict(), nn.ModuleDict()
        for kind in dict.fromkeys(self.kinds.values()):
            space = setting.action_space if kind == "act" else setting.observation_space
            if space is None:
                raise ValueError(
                    "this reward model needs the spaces of the environment: make it with a "
                    "Setting that has them, for example Setting.of(demonstrations)"
                )
            if (normalizer := make_normalizer(space, images)) is not None:
                self.normalizers[kind] = normalizer
            self.encoders[kind] = make_joint(space, ModelConfig())
        for module in self._running():
            module.clip = clip
        sizes: dict[str, Any] = {kind: encoder.size for kind, encoder in self.encoders.items()}
        self.size = sum(sizes[kind] for kind in self.kinds.values())

    def _running(self) -> list[ObservationNormalizer]:
        modules = self.normalizers.modules()
        return [module for module in modules if isinstance(module, ObservationNormalizer)]

    def forward(self, data: Any) -> Tensor:
        """Return vectors [..., size] of transitions, a mapping of tensors."""
        encoded = []
        for part, kind in self.kinds.items():
            value = data[part]
            if kind in self.normalizers:
                value = self.normalizers[kind](value)
            encoded.append(self.encoders[kind](value))
        return torch.cat(encoded, -1)

    def update(self, data: Any) -> None:
        """Update the statistics with transitions [N, ...]; ``obs_next`` only without ``obs``."""
        for kind, normalizer in self.normalizers.items():
            normalizer.update(data[kind if kind in data else "obs_next"])  # type: ignore[operator]

    def settle(self, data: Any) -> None:
        """Update the statistics with demonstrations; constant features keep their scale."""
        self.update(data)
        for module in self._running():
            module.spare_constants()


class TransitionNetwork(nn.Module):
    """An MLP over encoded transitions, with further options of `TransitionInput`.

    Without a `size`, the output has no last axis. A subclass may append `extra` features in
    `features`.
    """

    __call__: Callable[..., Tensor]

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
        """Return outputs [..., size] or [...] of transitions."""
        return self.output(self.features(rows))

    def features(self, rows: Any) -> Tensor:
        """Return encoded transitions [..., n_features], the input of the layers."""
        return self.input(rows)

    def output(self, features: Tensor) -> Tensor:
        """Return outputs of encoded transitions [..., n_features]."""
        output: Tensor = self.layers(features)
        return output.squeeze(-1) if self.scalar else output


def layers(
    n_in: int, hidden: Sequence[int], n_out: int, activation: str = "tanh", gain: float = 1.0
) -> nn.Sequential:
    """Make hidden layers and a linear output layer with this gain."""
    body = MLP(n_in, hidden, activation)
    return nn.Sequential(body, linear(body.size, n_out, gain))

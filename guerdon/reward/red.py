"""RED: rewards transitions with a small error of a network fitted to demonstrations.

https://arxiv.org/abs/1905.06750.
"""

import warnings
from typing import Any

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from guerdon.data.batch import Batch
from guerdon.data.demonstrations import split_rows
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.inputs import TransitionNetwork
from guerdon.reward.trained import ImitationConfig, PretrainedReward, draw_rows

_HELD_OUT = 0.2  # share of the demonstrations
_MIN_CONTRAST = 0.1  # minimum difference of rewards of demonstrations and noise


class REDConfig(ImitationConfig):
    """Options of `red`."""

    sample_size: int | None = Field(default=1000, ge=1)
    """Number of demonstrated transitions drawn for the fit; null for all."""
    sigma: float | None = Field(default=None, gt=0)
    """Reward is exp(-sigma * error); 1 / the median error on held-out demonstrations by default."""
    batch_size: int = Field(default=64, ge=1)
    """Transitions per gradient step; usually 64 to 512."""
    hidden_size: PositiveInt | list[PositiveInt] = 128
    """Sizes of the hidden layers; one number is one layer."""
    embedding_size: int = Field(default=32, ge=1)
    """Size of the predicted embedding; usually 8 to 128."""
    update_per_collect: int = Field(default=1000, ge=1)
    """Gradient steps of the only fit; usually 100 to 10,000."""


class ExpertDistillation(nn.Module):
    """Predictor of a frozen, randomly initialised target network."""

    def __init__(self, setting: Setting, config: REDConfig) -> None:
        super().__init__()
        args = setting, ["obs", "act"], config.hidden, config.embedding_size
        self.target = TransitionNetwork(*args).requires_grad_(False)
        self.predictor = TransitionNetwork(*args)
        self.sigma = nn.Buffer(torch.tensor(config.sigma or 1.0))

    def forward(self, rows: Any) -> Tensor:
        """Return rewards [...] of transitions."""
        return torch.exp(-self.sigma * self.error(rows))

    def error(self, rows: Any) -> Tensor:
        """Return the mean squared error of the predictor [...]."""
        return (self.predictor(rows) - self.target(rows)).square().mean(-1)


@register_reward_model("red")
class RED(PretrainedReward):
    """Random expert distillation.

    Attributes:
        held_out: Demonstrated transitions that are not used for training, as tensors.
    """

    Config = REDConfig
    fields = ("obs", "act")
    Network = ExpertDistillation
    network: ExpertDistillation
    held_out: Batch

    def take_demonstrations(self, rows: Batch) -> None:
        """See `ImitationReward`; draws rows for the fit and rows to hold out."""
        super().take_demonstrations(rows)
        assert self.demonstrations is not None
        fitted, held_out = split_rows(self.demonstrations.lengths, _HELD_OUT, self.generator)
        size = self.config.sample_size
        self.expert = self.tensors(rows[draw_rows(fitted, size, self.generator)])
        self.held_out = self.tensors(rows[draw_rows(held_out, size, self.generator)])

    def loss(self) -> tuple[Tensor, Metrics]:
        """Return the loss of the predictor."""
        return self.network.error(self.sample_expert(self.config.batch_size)).mean(), {}

    def fit(self, steps: int) -> Metrics:
        """Fit the predictor, and set sigma."""
        return super().fit(steps) | self._calibrate()

    @torch.no_grad()
    def _calibrate(self) -> Metrics:
        """Set sigma, unless the config does, and compare rewards of demonstrations and noise."""
        network = self.network
        error = network.error(self.held_out).median()
        if self.config.sigma is None:
            network.sigma.copy_(1.0 / error.clamp(min=1e-12))
        noise = self.held_out.apply(lambda leaf: _noise(leaf, self.generator))
        contrast = network(self.held_out).mean() - network(noise).mean()
        if contrast < _MIN_CONTRAST:
            warnings.warn(
                f"red hardly tells demonstrations from noise: rewards differ by {contrast:.3f}; "
                "try more 'update_per_collect', or another 'sigma'",
                stacklevel=2,
            )
        return {"error": error, "sigma": network.sigma.clone(), "contrast": contrast}


def _noise(value: Tensor, generator: np.random.Generator) -> Tensor:
    """Return noise of three times the standard deviation of numbers; shuffle other values."""
    if value.is_floating_point():
        normal = torch.from_numpy(generator.standard_normal(value.shape, "float32"))
        return value.mean(0) + 3.0 * value.std(0, correction=0) * normal.to(value.device)
    shuffled = generator.permuted(value.numpy(force=True).reshape(len(value), -1), axis=None)
    return torch.from_numpy(shuffled.reshape(value.shape)).to(value.device)

"""RED: rewards transitions with a small error of a network fitted to demonstrations.

https://arxiv.org/abs/1905.06750.
"""

import math
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
_MIN_HELD_OUT = 0.7  # mean reward of held-out demonstrations
_PERTURBED = 0.2  # mean reward of perturbed demonstrations
_PERTURBED_RANGE = (0.1, 0.3)
_N_PERTURBED = 1000


class REDConfig(ImitationConfig):
    """Options of `red`."""

    sample_size: int | None = Field(default=1000, ge=1)
    """Number of demonstrated transitions drawn for the fit; null for all."""
    sigma: float | None = Field(default=None, gt=0)
    """Reward is exp(-sigma * error). By default, sigma is chosen after the fit, so that perturbed
    demonstrations have a mean reward of 0.2, and held-out demonstrations one of at least 0.7."""
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
        """Set sigma, unless the config does; check rewards of demonstrations."""
        network = self.network
        drawn = self.sample_expert(_N_PERTURBED)
        perturbed = network.error(drawn.apply(lambda leaf: _noise(leaf, self.generator)))
        held_out = network.error(self.held_out)
        if self.config.sigma is None:
            network.sigma.fill_(choose_sigma(held_out, perturbed))
        sigma = network.sigma.clone()
        held_out_reward = torch.exp(-sigma * held_out).mean()
        perturbed_reward = torch.exp(-sigma * perturbed).mean()
        _warn(float(held_out_reward), float(perturbed_reward), float(sigma))
        return {
            "error": held_out.median(),
            "sigma": sigma,
            "held_out_reward": held_out_reward,
            "perturbed_reward": perturbed_reward,
        }


def choose_sigma(held_out: Tensor, perturbed: Tensor) -> float:
    """Return the sigma at which perturbed demonstrations have a mean reward of 0.2.

    It is smaller if held-out demonstrations would have a mean reward below 0.7.

    Args:
        held_out: Errors [N] of held-out demonstrations.
        perturbed: Errors [M] of perturbed demonstrations.
    """
    return min(_sigma_of(perturbed, _PERTURBED), _sigma_of(held_out, _MIN_HELD_OUT))


def _sigma_of(error: Tensor, reward: float) -> float:
    """Return the sigma at which errors have this mean reward, by bisection of its logarithm."""
    error = error.double()
    low, high = math.log(1e-6), math.log(1e12)
    for _ in range(64):
        middle = (low + high) / 2
        if torch.exp(-math.exp(middle) * error).mean() > reward:
            low = middle
        else:
            high = middle
    return math.exp(low)


def _warn(held_out: float, perturbed: float, sigma: float) -> None:
    """Warn of mean rewards from which a policy can hardly learn."""
    held_out, perturbed = round(held_out, 2), round(perturbed, 2)  # without rounding errors
    low, high = _PERTURBED_RANGE
    if not low <= perturbed <= high:
        more = "try more 'update_per_collect' or a larger 'sigma'"
        fix = more if perturbed > high else "set a smaller 'sigma'"
        warnings.warn(
            f"red: with sigma = {sigma:.3g}, perturbed demonstrations have a mean reward of "
            f"{perturbed}, which is not from {low} to {high}: {fix}",
            stacklevel=4,
        )
    if held_out < _MIN_HELD_OUT:
        warnings.warn(
            f"red: with sigma = {sigma:.3g}, held-out demonstrations have a mean reward of "
            f"{held_out}, which is below {_MIN_HELD_OUT}: use more demonstrations, or a smaller "
            "'sigma'",
            stacklevel=4,
        )


def _noise(value: Tensor, generator: np.random.Generator) -> Tensor:
    """Return noise of three times the standard deviation of numbers; shuffle other values."""
    if value.is_floating_point():
        normal = torch.from_numpy(generator.standard_normal(value.shape, "float32"))
        return value.mean(0) + 3.0 * value.std(0, correction=0) * normal.to(value.device)
    shuffled = generator.permuted(value.numpy(force=True).reshape(len(value), -1), axis=None)
    return torch.from_numpy(shuffled.reshape(value.shape)).to(value.device)

"""RED: a reward for being where a network that was fitted to demonstrations makes no errors.

https://arxiv.org/abs/1905.06750.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from guerdon.nn.encoders import MLP
from guerdon.nn.init import linear
from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.experts import draw_rows
from guerdon.reward.inputs import TransitionInput
from guerdon.reward.trained import ImitationConfig, ImitationReward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guerdon.data.batch import Batch

HELD_OUT = 0.2
"""The share of the demonstrations that is measured with, and not fitted to."""
CONTRAST = 0.1
"""Below this, demonstrations and noise are worth about the same."""


class REDConfig(ImitationConfig):
    """Options of `red`."""

    sample_size: int | None = Field(default=1000, ge=1)
    """Demonstrated transitions that are drawn to be fitted to; None takes all."""
    sigma: float | None = Field(default=None, gt=0)
    """How fast the reward falls with the error. Where left out: 1 / the median error on
    demonstrations that were held out. The scale of errors varies by thousands between tasks."""
    batch_size: int = Field(default=64, ge=1)
    """Transitions of a gradient step; 64 to 512."""
    hidden_size: PositiveInt | list[PositiveInt] = 128
    """Sizes of the hidden layers, input side first; one number is one layer."""
    embedding_size: int = Field(default=32, ge=1)
    """Numbers that the network predicts; 8 to 128."""
    update_per_collect: int = Field(default=1000, ge=1)
    """Gradient steps; it is trained once, with all of them; 100 to 10,000."""
    clear_buffer_per_iters: int | None = Field(default=1, ge=1)
    """Of no consequence: nothing that the policy does is remembered."""


class Embedding(nn.Module):
    """Numbers that a network makes of a transition.

    Args:
        setting: Knows the spaces.
        hidden: Sizes of the hidden layers.
        size: How many numbers.
    """

    def __init__(self, setting: Setting, hidden: Sequence[int], size: int) -> None:
        super().__init__()
        self.input = TransitionInput(setting, ["obs", "act"])
        body = MLP(self.input.size, hidden)
        self.layers = nn.Sequential(body, linear(body.size, size, 1.0))

    def forward(self, data: Any) -> Tensor:
        """Numbers [..., size] of transitions."""
        embedded: Tensor = self.layers(self.input(data))
        return embedded


class Distillation(nn.Module):
    """A network that is fitted to another, which stays as chance has made it.

    Args:
        setting: Knows the spaces.
        config: Its options.
    """

    def __init__(self, setting: Setting, config: REDConfig) -> None:
        super().__init__()
        self.target = Embedding(setting, config.hidden, config.embedding_size)
        self.target.requires_grad_(False)
        self.predictor = Embedding(setting, config.hidden, config.embedding_size)
        self.register_buffer("sigma", torch.tensor(config.sigma or 1.0))
        self.sigma: Tensor

    def forward(self, data: Any) -> Tensor:
        """Rewards [...] of transitions."""
        return torch.exp(-self.sigma * self.error(data))

    def error(self, data: Any) -> Tensor:
        """How wrong the predictor is [...]: the mean square of the differences."""
        difference: Tensor = self.predictor(data) - self.target(data)
        return difference.square().mean(-1)

    def learn(self, data: Any) -> Tensor:
        """The loss of predicting the target on transitions."""
        return self.error(data).mean()


@register_reward_model("red")
class RED(ImitationReward):
    """Random expert distillation: how familiar a transition is to who has seen demonstrations.

    It is trained once, by `pretrain` or else by the first `train`, and needs nothing of the policy.

    Attributes:
        held_out: Demonstrated transitions that it is not trained with: the `fields`, as tensors.
    """

    Config = REDConfig
    fields = ("obs", "act")
    network: Distillation
    held_out: dict[str, Any]

    def build(self, setting: Setting) -> None:
        """Makes both networks."""
        self.network = Distillation(setting, self.config).to(self.device)
        self.optimizers["network"] = Optimizer(
            self.network.parameters(), self.config.learning_rate, alone=True
        )

    def take_experts(self, rows: Batch) -> None:
        """Keeps a sample to fit to, and one to measure with; inputs are normalised with all."""
        for embedding in (self.network.target, self.network.predictor):
            embedding.input.settle(self.expert)
        assert self.demonstrations is not None
        fitted, held_out = _split(self.demonstrations.lengths, self.generator)
        size = self.config.sample_size
        self.expert = self.tensors(rows[draw_rows(fitted, size, self.generator)])
        self.held_out = self.tensors(rows[draw_rows(held_out, size, self.generator)])

    def collect_data(self, data: Any) -> None:
        """Needs nothing of the policy."""

    def pretrain(self) -> Metrics | None:
        """Fits the predictor, if that was not done before."""
        if self.trained:
            return None
        metrics = self.fit(self.config.update_per_collect)
        return metrics | self._measure()

    def train(self) -> Metrics | None:
        """As `pretrain`."""
        return self.pretrain()

    def step(self) -> Metrics:
        """One step of predicting the target on demonstrations."""
        loss = self.network.learn(self.sample_expert(self.config.batch_size))
        self.optimizers["network"].step(loss)
        return {"loss": loss.detach()}

    @torch.no_grad()
    def _measure(self) -> Metrics:
        """Sets sigma, if nobody else did, and looks at what the rewards can tell apart."""
        network = self.network
        error = network.error(self.held_out).median()
        if self.config.sigma is None:
            network.sigma.copy_(1.0 / error.clamp(min=1e-12))
        noise = {name: _noise(part, self.generator) for name, part in self.held_out.items()}
        contrast = network(self.held_out).mean() - network(noise).mean()
        if contrast < CONTRAST:
            warnings.warn(
                f"red hardly tells demonstrations from noise: rewards differ by {contrast:.3f}; "
                "try more 'update_per_collect', or another 'sigma'",
                stacklevel=2,
            )
        return {"error": error, "sigma": network.sigma.clone(), "contrast": contrast}

    @torch.no_grad()
    def score(self, data: Batch) -> Tensor:
        """Exp(-sigma * error)."""
        self.prepare(data)
        rewards: Tensor = self.network(self.tensors(data))
        return rewards


def _split(lengths: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit to, and rows to hold out: whole episodes, since neighbours are much alike."""
    n_rows = int(lengths.sum())
    if n_rows == 1:
        return np.arange(1), np.arange(1)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    unit = episode if len(lengths) > 1 else np.arange(n_rows)
    order = generator.permutation(unit[-1] + 1)
    out = np.isin(unit, order[: max(1, int(HELD_OUT * len(order)))])
    return np.flatnonzero(~out), np.flatnonzero(out)


def _noise(value: Any, generator: np.random.Generator) -> Any:
    """What no expert has seen: numbers of three times their spread, bytes and others shuffled."""
    if isinstance(value, dict):
        return {key: _noise(part, generator) for key, part in value.items()}
    if value.is_floating_point():
        normal = torch.from_numpy(generator.standard_normal(value.shape, "float32"))
        spread = value.std(0, correction=0)
        return value.mean(0) + 3.0 * spread * normal.to(value.device)
    shuffled = generator.permuted(value.numpy(force=True).reshape(len(value), -1), axis=None)
    return torch.from_numpy(shuffled.reshape(value.shape)).to(value.device)

"""Rewards from which of two segments is better: what `trex`, `drex` and `preference` share.

Bradley and Terry's model over sums of rewards: https://arxiv.org/abs/1706.03741.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from guerdon import ops
from guerdon.nn.critics import EnsembleMLP
from guerdon.nn.optimizer import Optimizer
from guerdon.reward.inputs import TransitionInput, take_rows
from guerdon.reward.trained import TrainedConfig, TrainedReward

if TYPE_CHECKING:
    from collections.abc import Iterator

    from guerdon.data.batch import Batch
    from guerdon.reward.base import Metrics, Setting

CHECK_EVERY = 20
"""Gradient steps between two looks at held-out pairs."""
FEWEST_HELD_OUT = 10
"""Held-out pairs that can say when to stop; fewer are too much of a matter of luck."""
_CHUNK = 2048
_FIRST_SCALE = 0.01
_SMALLEST_SPREAD = 1e-6


class RankingConfig(TrainedConfig):
    """What every reward model that learns from better and worse segments can be told."""

    batch_size: int = Field(default=64, ge=1)
    """Pairs of segments of a gradient step; 16 to 128."""
    inputs: list[Literal["obs", "act", "obs_next"]] = Field(default=["obs", "act"], min_length=1)
    """What the reward is a function of."""
    members: int = Field(default=3, ge=1)
    """Networks whose mean is the reward; 3 to 7."""
    output: Literal["normalized", "tanh"] = "normalized"
    """What the policy gets: ``normalized`` has mean 0 and spread 1 over the data that the networks
    were fitted to, ``tanh`` keeps each network's word between -1 and 1."""
    symlog: bool = False
    """Whether numbers of observations pass sign(x) log(1 + abs(x)) before they are normalised:
    where a few go very far, what is near 0 is still told apart."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled, as in AdamW; 0.01 to 1."""
    label_noise: float = Field(default=0.1, ge=0, lt=1)
    """How often a label is thought to be the toss of a coin; 0 to 0.2."""
    max_difference: float = Field(default=50.0, gt=0)
    """The largest difference of two segments' sums that counts."""
    validation_share: float = Field(default=0.1, ge=0, lt=1)
    """The share of the data that is held out, to measure accuracy and to know when to stop."""
    patience: int = Field(default=10, ge=1)
    """A fit ends when so many looks at held-out pairs, one every 20 gradient steps, found nothing
    better; the best networks stay."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of equally long segments of one table of rows.

    Args:
        rows: The rows: tensors [N, ...].
        first: The row that each first segment begins with [P].
        second: The row that each second segment begins with [P].
        length: Rows of both [P].
        label: 0 where the first is better, 1 where the second is, 0.5 where they are equal [P].
    """

    rows: dict[str, Any]
    first: np.ndarray
    second: np.ndarray
    length: np.ndarray
    label: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    def take(self, index: np.ndarray, device: str) -> tuple[dict[str, Any], Tensor, Tensor]:
        """Some pairs: rows [2, B, T, ...], the mask of those that count [B, T], labels [B]."""
        length = self.length[index, None]
        time = np.arange(length.max(initial=1))
        starts = np.stack([self.first[index], self.second[index]])
        places = starts[..., None] + np.minimum(time, length - 1)
        rows: dict[str, Any] = take_rows(self.rows, torch.from_numpy(places).to(device))
        mask = torch.from_numpy(time < length).to(device)
        return rows, mask, torch.from_numpy(self.label[index].astype(np.float32)).to(device)


class RankingNetwork(nn.Module):
    """Several networks that each say what a transition is worth.

    Args:
        setting: Knows the spaces.
        config: Its options.
    """

    def __init__(self, setting: Setting, config: RankingConfig) -> None:
        super().__init__()
        self.config = config
        self.input = TransitionInput(setting, config.inputs)
        self.members = EnsembleMLP(config.members, self.input.size, config.hidden, 1, "tanh")
        with torch.no_grad():  # else sums over a segment are large before anything is learned
            list(self.members.parameters())[-2].mul_(_FIRST_SCALE)
        self.register_buffer("offset", torch.zeros(config.members))
        self.register_buffer("scale", torch.ones(config.members))
        self.offset: Tensor
        self.scale: Tensor

    def forward(self, data: Any) -> Tensor:
        """Rewards [...] of transitions, on the scale that the policy gets."""
        raw = self.raw(data).movedim(0, -1)
        return ((raw - self.offset) * self.scale).mean(-1)

    def raw(self, data: Any) -> Tensor:
        """What each network says [members, ...]."""
        features: Tensor = self.input(self._read(data))
        said: Tensor = self.members(features.reshape(-1, self.input.size))
        said = said.reshape(-1, *features.shape[:-1])
        return torch.tanh(said) if self.config.output == "tanh" else said

    def update(self, data: Any) -> None:
        """Lets the statistics of the input see transitions [N, ...]."""
        self.input.settle(self._read(data))

    def _read(self, data: Any) -> Any:
        if not self.config.symlog:
            return data
        return {key: part if key == "act" else _symlog(part) for key, part in data.items()}

    def logit(self, rows: Any, mask: Tensor) -> Tensor:
        """How much better each network thinks the second segments are [members, B]."""
        first, second = torch.where(mask, self.raw(rows), 0.0).sum(-1).unbind(1)
        return ops.preference_logit(first, second, self.config.max_difference)

    def learn(self, rows: Any, mask: Tensor, label: Tensor) -> Tensor:
        """The loss of pairs, as `Pairs.take` gives them; a sum over the networks."""
        logit = self.logit(rows, mask)
        self.verdicts = logit.detach().mean(0)
        loss = ops.preference_loss(logit, label.expand_as(logit), self.config.label_noise)
        return loss.mean(-1).sum()

    @torch.no_grad()
    def rescale(self, rows: dict[str, Any]) -> None:
        """Gives rewards mean 0 and spread 1 over rows [N, ...], each network with the same say."""
        if self.config.output == "tanh":
            return
        number = len(_first_leaf(rows))
        pieces = [slice(start, start + _CHUNK) for start in range(0, number, _CHUNK)]
        raw = torch.cat([self.raw(take_rows(rows, piece)) for piece in pieces], 1)
        spread, offset = torch.std_mean(raw, 1, correction=0)
        scale = 1 / spread.clamp(min=_SMALLEST_SPREAD)
        joint = ((raw.T - offset) * scale).mean(1)
        self.offset.copy_(offset)
        self.scale.copy_(scale / joint.std(correction=0).clamp(min=_SMALLEST_SPREAD))


class RankingReward(TrainedReward):
    """A reward that ranks segments rightly; a subclass says which are better.

    Attributes:
        pairs: What the networks are fitted to.
        held_out: What they are measured with; None if there is nothing.
    """

    Config = RankingConfig
    network: RankingNetwork
    pairs: Pairs | None = None
    held_out: Pairs | None = None

    def build(self, setting: Setting) -> None:
        """Makes the networks."""
        config = self.config
        self.fields = tuple(dict.fromkeys(config.inputs))
        self.network = RankingNetwork(setting, config).to(self.device)
        self.optimizers["network"] = Optimizer(
            self.network.parameters(),
            config.learning_rate,
            weight_decay=config.weight_decay,
            alone=True,
        )

    @torch.no_grad()
    def score(self, data: Batch) -> Tensor:
        """The mean of what the networks say."""
        self.prepare(data)
        return self.network(self.tensors(data))  # type: ignore[no-any-return]

    def step(self) -> Metrics:
        """One gradient step on pairs that are drawn at random."""
        assert self.pairs is not None
        index = self.generator.integers(len(self.pairs), size=self.config.batch_size)
        rows, mask, label = self.pairs.take(index, self.device)
        loss = self.network.learn(rows, mask, label)
        self.optimizers["network"].step(loss)
        return {
            "loss": loss.detach() / self.config.members,
            "accuracy": ops.preference_accuracy(self.network.verdicts, label),
        }

    def fit(self, steps: int) -> Metrics:
        """Takes gradient steps until held-out pairs are no longer judged better.

        Returns:
            Means over the last steps, and how held-out pairs are judged.
        """
        seen, best = [], Best(self.network, self.config.patience)
        held_out = self.held_out
        for number in range(1, steps + 1):
            seen.append(self.step())
            if held_out is None or len(held_out) < FEWEST_HELD_OUT or number % CHECK_EVERY:
                continue
            if best.is_enough(self.judge(held_out)["validation_loss"]):
                break
        best.restore()
        self.trained += len(seen)
        metrics: Metrics = {
            name: float(torch.stack([step[name] for step in seen[-CHECK_EVERY:]]).mean())
            for name in seen[-1]
        }
        metrics["steps"] = len(seen)
        return metrics if held_out is None else metrics | self.judge(held_out)

    @torch.no_grad()
    def judge(self, pairs: Pairs) -> dict[str, float]:
        """How well pairs are ranked that the networks may never have seen."""
        logit = self.logits(pairs)
        label = torch.from_numpy(pairs.label.astype(np.float32)).to(self.device)
        loss = ops.preference_loss(logit, label.expand_as(logit), self.config.label_noise)
        return {
            "validation_loss": float(loss.mean()),
            "validation_accuracy": float(ops.preference_accuracy(logit.mean(0), label)),
        }

    @torch.no_grad()
    def logits(self, pairs: Pairs) -> Tensor:
        """How much better each network thinks the second segments are [members, P]."""
        parts = (pairs.take(index, self.device) for index in self._pieces(len(pairs)))
        return torch.cat([self.network.logit(rows, mask) for rows, mask, _ in parts], 1)

    def _pieces(self, number: int) -> Iterator[np.ndarray]:
        size = self.config.batch_size
        return (np.arange(start, min(start + size, number)) for start in range(0, number, size))


class Best:
    """Keeps the weights of a network that did best so far.

    Args:
        network: Which.
        patience: How often the loss may fail to get better.
    """

    def __init__(self, network: nn.Module, patience: int) -> None:
        self._network = network
        self._patience = patience
        self._loss = math.inf
        self._failures = 0
        self._weights: dict[str, Tensor] | None = None

    def is_enough(self, loss: float) -> bool:
        """Takes the loss of the network as it is; whether it has failed to get better too often."""
        if loss < self._loss:
            self._loss, self._failures = loss, 0
            self._weights = {k: v.clone() for k, v in self._network.state_dict().items()}
        else:
            self._failures += 1
        return self._failures >= self._patience

    def restore(self) -> None:
        """Goes back to the best weights, where any were kept."""
        if self._weights is not None:
            self._network.load_state_dict(self._weights)


def _symlog(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _symlog(part) for key, part in value.items()}
    return value.sign() * value.abs().log1p() if value.is_floating_point() else value


def _first_leaf(rows: Any) -> Tensor:
    while isinstance(rows, dict):
        rows = next(iter(rows.values()))
    leaf: Tensor = rows
    return leaf

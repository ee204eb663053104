"""Base of rewards learned from pairs of segments: `trex`, `drex` and `preference`.

Bradley-Terry model over sums of rewards: https://arxiv.org/abs/1706.03741.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from guerdon import ops
from guerdon.data.batch import Batch
from guerdon.nn.critics import EnsembleMLP
from guerdon.reward.base import Metrics, Setting
from guerdon.reward.inputs import TransitionInput
from guerdon.reward.ood import SIZE
from guerdon.reward.trained import Inputs, NetworkConfig, NetworkReward

EVALUATE_EVERY = 20  # gradient steps between evaluations on held-out pairs
MIN_HELD_OUT = 10  # minimum number of held-out pairs for early stopping
_CHUNK = 2048
_OUTPUT_SCALE = 0.01
_MIN_STD = 1e-6


class RankingConfig(NetworkConfig):
    """Options of every reward model that learns from pairs of segments."""

    batch_size: int = Field(default=64, ge=1)
    """Pairs of segments per gradient step; usually 16 to 128."""
    inputs: Inputs = Field(default=["obs", "act"])
    """Inputs of the networks."""
    members: int = Field(default=3, ge=1)
    """Number of networks, whose mean is the reward; usually 3 to 7."""
    output: Literal["normalized", "tanh"] = "normalized"
    """``normalized``: rewards with mean 0 and standard deviation 1 over the fitted data; ``tanh``:
    every network is bounded by -1 and 1."""
    symlog: bool = False
    """Whether to transform observations by sign(x) log(1 + abs(x)), against outliers."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay, as in AdamW; usually 0.01 to 1."""
    label_noise: float = Field(default=0.1, ge=0, lt=1)
    """Assumed probability that a label is random; usually 0 to 0.2."""
    max_difference: float = Field(default=50.0, gt=0)
    """Bound of the difference between the summed rewards of two segments; usually 10 to 100."""
    validation_share: float = Field(default=0.1, ge=0, lt=1)
    """Fraction of the data to hold out for accuracy and early stopping; usually 0 to 0.2."""
    patience: int = Field(default=10, ge=1)
    """Early stopping: evaluations on held-out pairs (one every 20 gradient steps) without
    improvement before a fit ends; usually 5 to 20. The best weights are kept."""


@dataclass(frozen=True)
class Pairs:
    """Labelled pairs of equally long segments, as indices into rows.

    Args:
        rows: Tensors [N, ...].
        first: Row at which each first segment starts [P].
        second: Row at which each second segment starts [P].
        length: Number of rows of both [P].
        label: 0 if the first is better, 1 if the second is, 0.5 if they are equal [P].
        held_out: Which pairs are only for evaluation [P].
    """

    rows: Batch
    first: np.ndarray
    second: np.ndarray
    length: np.ndarray
    label: np.ndarray
    held_out: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    def take(self, index: np.ndarray, device: torch.device) -> tuple[Any, Tensor, Tensor]:
        """Return rows [2, B, T, ...] of some pairs, their mask [B, T], and labels [B]."""
        length = self.length[index, None]
        time = np.arange(length.max(initial=1))
        starts = np.stack([self.first[index], self.second[index]])
        at = torch.from_numpy(starts[..., None] + np.minimum(time, length - 1)).to(device)
        mask = torch.from_numpy(time < length).to(device)
        label = torch.from_numpy(self.label[index].astype(np.float32)).to(device)
        return self.rows[at], mask, label

    def join(self, other: "Pairs") -> "Pairs":
        """Concatenate with other pairs."""
        n_rows = len(self.rows)
        return Pairs(
            Batch.cat([self.rows, other.rows]),
            np.append(self.first, other.first + n_rows),
            np.append(self.second, other.second + n_rows),
            np.append(self.length, other.length),
            np.append(self.label, other.label),
            np.append(self.held_out, other.held_out),
        )


_NONE = np.zeros(0, np.int64)
NO_PAIRS = Pairs(Batch(), _NONE, _NONE, _NONE, np.zeros(0), np.zeros(0, bool))


class RankingNetwork(nn.Module):
    """Several networks that each map transitions to rewards."""

    def __init__(self, setting: Setting, config: RankingConfig) -> None:
        super().__init__()
        self.config = config
        self.input = TransitionInput(setting, config.inputs)
        self.members = EnsembleMLP(config.members, self.input.size, config.hidden, 1, "tanh")
        with torch.no_grad():  # otherwise initial sums over a segment would be large
            list(self.members.parameters())[-2].mul_(_OUTPUT_SCALE)
        self.offset = nn.Buffer(torch.zeros(config.members))
        self.scale = nn.Buffer(torch.ones(config.members))

    def forward(self, rows: Any) -> Tensor:
        """Return rewards [...] of transitions: the mean of the rescaled outputs."""
        return ((self.raw(rows).movedim(0, -1) - self.offset) * self.scale).mean(-1)

    def raw(self, rows: Any) -> Tensor:
        """Return outputs [members, ...] of the networks."""
        output: Tensor = self.members(self.input(self._mapped(rows))).squeeze(-1)
        return torch.tanh(output) if self.config.output == "tanh" else output

    def update(self, rows: Any) -> None:
        """Update the input statistics with transitions [N, ...]."""
        self.input.settle(self._mapped(rows))

    def _mapped(self, rows: Any) -> Any:
        if not self.config.symlog:
            return rows
        return {key: part if key == "act" else _symlog(part) for key, part in rows.items()}

    def logit(self, rows: Any, mask: Tensor) -> Tensor:
        """Return logits [members, B] that the second segments are better; see `Pairs.take`."""
        first, second = torch.where(mask, self.raw(rows), 0.0).sum(-1).unbind(1)
        return ops.preference_logit(first, second, self.config.max_difference)

    def loss(self, logit: Tensor, label: Tensor) -> Tensor:
        """Return the mean cross-entropy over pairs, summed over the networks."""
        loss = ops.preference_loss(logit, label.expand_as(logit), self.config.label_noise)
        return loss.mean(-1).sum()

    @torch.no_grad()
    def rescale(self, rows: Batch) -> None:
        """Scale networks equally, for rewards of mean 0 and variance 1 over rows [N, ...]."""
        if self.config.output == "tanh":
            return
        starts = range(0, len(rows), _CHUNK)
        raw = torch.cat([self.raw(rows[start : start + _CHUNK]) for start in starts], 1)
        std, offset = torch.std_mean(raw, 1, correction=0)
        scale = 1 / std.clamp(min=_MIN_STD)
        joint = ((raw.T - offset) * scale).mean(1)
        self.offset.copy_(offset)
        self.scale.copy_(scale / joint.std(correction=0).clamp(min=_MIN_STD))


class RankingReward(NetworkReward):
    """A reward whose sums rank segments; a subclass provides the labelled pairs.

    Attributes:
        pairs: The pairs so far.
    """

    Config = RankingConfig
    Network = RankingNetwork
    network: RankingNetwork

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        self.fields = tuple(dict.fromkeys(self.config.inputs))
        self.pairs = NO_PAIRS

    def loss(self) -> tuple[Tensor, Metrics]:
        """Return the loss of randomly drawn pairs."""
        fitted = np.flatnonzero(~self.pairs.held_out)
        index = fitted[self.generator.integers(len(fitted), size=self.config.batch_size)]
        rows, mask, label = self.pairs.take(index, self.device)
        logit = self.network.logit(rows, mask)
        loss = self.network.loss(logit, label)
        accuracy = ops.preference_accuracy(logit.detach().mean(0), label)
        return loss, {"loss": loss.detach() / self.config.members, "accuracy": accuracy}

    def fit(self, steps: int) -> Metrics:
        """Take gradient steps, with early stopping, and rescale the rewards."""
        n_held_out = np.count_nonzero(self.pairs.held_out)
        found, best, failures, weights = [], math.inf, 0, None
        for number in range(1, steps + 1):
            found.append(self.step())
            if n_held_out < MIN_HELD_OUT or number % EVALUATE_EVERY:
                continue
            loss = self.evaluate()["validation_loss"]
            if loss < best:
                best, failures, weights = loss, 0, copy.deepcopy(self.network.state_dict())
            else:
                failures += 1
            if failures == self.config.patience:
                break
        if weights is not None:
            self.network.load_state_dict(weights)
        self.network.rescale(self.pairs.rows)
        self.trained += len(found)
        last = found[-EVALUATE_EVERY:]
        metrics = {
            name: float(torch.stack([step[name] for step in last]).mean()) for name in last[0]
        }
        return metrics | {"steps": len(found)} | (self.evaluate() if n_held_out else {})

    def fitted_rows(self) -> Batch | None:
        """Return transitions of the pairs, evenly spaced."""
        every = -(-len(self.pairs.rows) // SIZE) if len(self.pairs) else 0
        return cast("Batch", self.pairs.rows[::every]) if every else None

    @torch.no_grad()
    def disagreement(self, batch: Batch) -> Tensor | None:
        """Return the standard deviation [...] of the networks' rewards; None for one network."""
        network = self.network
        if self.config.members < 2:
            return None
        raw = network.raw(self.tensors(batch)).movedim(0, -1)
        return ((raw - network.offset) * network.scale).std(-1, correction=0)

    def evaluate(self) -> dict[str, float]:
        """Return loss and accuracy on held-out pairs."""
        index = np.flatnonzero(self.pairs.held_out)
        logit = self.logits(self.pairs, index)
        label = torch.from_numpy(self.pairs.label[index].astype(np.float32)).to(self.device)
        return {
            "validation_loss": float(self.network.loss(logit, label)) / self.config.members,
            "validation_accuracy": float(ops.preference_accuracy(logit.mean(0), label)),
        }

    @torch.no_grad()
    def logits(self, pairs: Pairs, index: np.ndarray) -> Tensor:
        """Return logits [members, B] that the second segments are better, for some pairs [B]."""
        size = self.config.batch_size
        chunks = (index[start : start + size] for start in range(0, len(index), size))
        taken = (pairs.take(chunk, self.device) for chunk in chunks)
        return torch.cat([self.network.logit(rows, mask) for rows, mask, _ in taken], 1)


def _symlog(value: Any) -> Any:
    if isinstance(value, Batch):
        return value.apply(_symlog)
    return value.sign() * value.abs().log1p() if value.is_floating_point() else value

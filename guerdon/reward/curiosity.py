"""What the models of curiosity have in common: a bonus, on the scale of its own return."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from guerdon.data.batch import Batch
from guerdon.nn.encoders import MLP
from guerdon.nn.init import linear
from guerdon.reward import items
from guerdon.reward.history import in_columns
from guerdon.reward.inputs import TransitionInput
from guerdon.reward.scaling import ReturnScaler
from guerdon.reward.trained import TrainedConfig, TrainedReward

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guerdon.reward.base import Metrics, Setting

CLIP = 5.0
"""The largest absolute value of a normalised observation, as in the paper of RND."""


class CuriosityConfig(TrainedConfig):
    """What every model of curiosity can be told."""

    update_proportion: float = Field(default=1.0, gt=0, le=1)
    """The share of new transitions that it learns from, in minibatches of `batch_size`; 0.25 to 1.
    The less, the longer novelty lasts. (The paper of RND takes a quarter of them in each of four
    passes, which is as much as all of them in one.)"""
    update_per_collect: int | None = Field(default=None, ge=1)  # type: ignore[assignment]
    """Gradient steps in a call of `train`, instead of what `update_proportion` makes."""
    max_updates: int = Field(default=16, ge=1)
    """Where `update_proportion` would make more gradient steps than this, minibatches are larger
    instead: as much is learned from, in a fraction of the time."""
    train_every: int | None = Field(default=128, ge=1)
    """New transitions that `train` waits for."""
    warmup: int = Field(default=1000, ge=0)
    """Transitions that only make statistics of observations. Until it has seen so many, it learns
    nothing and every bonus is 0; 1,000 to 10,000."""
    normalize_bonus: bool = True
    """Whether the bonus is divided by the spread of its discounted return over all that was
    collected, so that weights mean the same anywhere."""
    gamma: float = Field(default=0.99, ge=0, lt=1)
    """Discount of that return, which runs on from one episode into the next."""


class Features(nn.Module):
    """Vectors for parts of a transition: normalised or encoded, and through layers.

    Args:
        setting: Knows the spaces.
        parts: What it reads: ``obs``, ``act``, ``obs_next``.
        hidden: Sizes of the hidden layers.
        size: Features of the result.
    """

    def __init__(
        self, setting: Setting, parts: Sequence[str], hidden: Sequence[int], size: int
    ) -> None:
        super().__init__()
        # A frozen random network does not learn what scale its input has.
        self.input = TransitionInput(setting, parts, clip=CLIP, images=True)
        self.layers = layers(self.input.size, hidden, size)
        self.size = size

    def forward(self, data: Any) -> Tensor:
        """Vectors [..., size] of transitions."""
        features: Tensor = self.layers(self.input(data))
        return features


class InverseModel(nn.Module):
    """Features of observations from which one can tell what action led from one to the next.

    They know of what the agent controls, and of nothing else (https://arxiv.org/abs/1705.05363).

    Args:
        setting: Knows the spaces; actions have to be Discrete, or numbers.
        hidden: Sizes of the hidden layers, of the encoder and of what guesses actions.
        size: Features of an observation.
    """

    def __init__(self, setting: Setting, hidden: Sequence[int], size: int) -> None:
        super().__init__()
        space = setting.action_space
        if not isinstance(space, spaces.Discrete | spaces.Box):
            raise ValueError(
                f"icm and ngu guess actions that are Discrete or Box, but these are {space}: use "
                "rnd, which reads none"
            )
        self.features = Features(setting, ["obs"], hidden, size)
        self.action = TransitionInput(setting, ["act"], clip=CLIP)
        self.guess = layers(2 * size, hidden, self.action.size)
        self.first = int(space.start) if isinstance(space, spaces.Discrete) else None

    def encode(self, obs: Any) -> Tensor:
        """Features [..., size] of observations."""
        features: Tensor = self.features({"obs": obs})
        return features

    def learn(self, before: Tensor, after: Tensor, act: Tensor) -> tuple[Tensor, Metrics]:
        """The loss of guessing actions [N, ...] from features, and what can be said about it."""
        guess = self.guess(torch.cat([before, after], -1))
        if self.first is None:
            loss = functional.mse_loss(guess, self.action({"act": act}))
            return loss, {"inverse_loss": loss.detach()}
        number = act.long() - self.first
        loss = functional.cross_entropy(guess, number)
        right = (guess.argmax(-1) == number).float().mean()
        return loss, {"inverse_loss": loss.detach(), "accuracy": right}

    def update(self, data: Any) -> None:
        """Lets the statistics see transitions [N, ...]."""
        self.features.input.update(data)
        self.action.update(data)


def layers(n_in: int, hidden: Sequence[int], n_out: int) -> nn.Sequential:
    """Hidden layers, and a linear one."""
    body = MLP(n_in, hidden, "relu")
    return nn.Sequential(body, linear(body.size, n_out, 1.0))


class Moments:
    """Mean and spread of the newest numbers of a stream.

    Args:
        window: About how many numbers count; older ones fade.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.count, self.mean, self.variance = 0, 0.0, 0.0

    def collect(self, values: np.ndarray) -> None:
        """Takes numbers [N]."""
        if not len(values):
            return
        self.count = min(self.count + len(values), max(self.window, len(values)))
        share = len(values) / self.count
        delta = float(values.mean(dtype=np.float64)) - self.mean
        spread = float(values.var(dtype=np.float64))
        self.variance = (1 - share) * (self.variance + share * delta**2) + share * spread
        self.mean += share * delta

    @property
    def std(self) -> float:
        """The spread; never 0."""
        return max(math.sqrt(self.variance), 1e-6 * abs(self.mean), 1e-12)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self.count, self.mean, self.variance = state["count"], state["mean"], state["variance"]


class Curiosity(TrainedReward):
    """A bonus for what the networks do not know yet, which a subclass computes in `surprise`.

    Statistics of observations, and of the bonus, change in `collect_data` alone: the bonus of a
    transition depends on nothing that it is read with.
    """

    Config = CuriosityConfig
    with_env = True

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        self.scaler = ReturnScaler(self.config.gamma)
        self.seen = 0
        """Transitions so far."""
        self.rows = self.config.batch_size
        """Transitions of the next gradient step."""

    # --- for subclasses

    def surprise(self, rows: dict[str, Any]) -> Tensor:
        """The bonus [...] of transitions, before it is normalised; pure."""
        raise NotImplementedError

    def observe(self, rows: dict[str, Any]) -> None:
        """Lets the statistics of observations see transitions [N, ...]."""
        raise NotImplementedError

    def fresh(self, data: Batch, rows: dict[str, Any], mask: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """The bonus [N] of the real rows of a rollout, before it is normalised.

        Args:
            data: The rollout [T, n_envs, ...].
            rows: Its real rows, as tensors [N, ...].
            mask: Which ones are real [T, n_envs].
        """
        return self.surprise(rows).numpy(force=True)

    # --- the contract

    @property
    def warm(self) -> bool:
        """Whether it has seen enough to say anything."""
        return self.seen > 0 and self.seen >= int(self.config.warmup)

    @property
    def scale(self) -> float:
        """What a bonus is multiplied with."""
        return self.scaler.scale if self.config.normalize_bonus else 1.0

    @torch.no_grad()
    def score(self, data: Batch) -> Any:
        """The bonus."""
        self.prepare(data)
        return self.surprise(self.tensors(data)) * self.scale if self.warm else 0.0

    @torch.no_grad()
    def collect_data(self, data: Any) -> None:
        """Takes a rollout, or a list of transitions in time order, into data and statistics."""
        given = data if isinstance(data, Batch) else items.to_batch(data)
        self.prepare(given)
        data = given if given is data else in_columns(given, self.fields)
        mask = np.asarray(data.mask)
        real = data[mask]
        if not len(real.rew):
            return
        self.memory.add(Batch({name: real[name] for name in self.fields}))
        self._new += len(real.rew)
        self.seen += len(real.rew)
        rows = self.tensors(real)
        self.observe(rows)
        if self.warm:
            bonus = np.zeros(mask.shape)
            bonus[mask] = self.fresh(data, rows, mask)
            self.scaler.collect(bonus, np.zeros_like(mask), mask)

    def train(self) -> Metrics | None:
        """Fits the networks to a share of what is new, if there is enough of it."""
        config, new = self.config, min(self._new, len(self.memory))
        if new < self.waits_for or not self.warm:
            return None
        steps, self.rows = config.update_per_collect, config.batch_size
        if steps is None:
            share = max(1, round(config.update_proportion * new))
            steps = min(math.ceil(share / config.batch_size), config.max_updates)
            self.rows = math.ceil(share / steps)
        self._new = 0
        return self.fit(steps)

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """See `RewardModel`."""
        state = super().state_dict()
        return state and state | {"scaler": self.scaler.state_dict(), "seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        super().load_state_dict(state)
        if state:
            self.scaler.load_state_dict(state["scaler"])
            self.seen = state["seen"]

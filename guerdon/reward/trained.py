"""What reward models with networks have in common: data in, gradient steps, files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import nn

from guerdon.data.batch import Batch
from guerdon.nn.init import seeded
from guerdon.reward import items
from guerdon.reward.base import Metrics, RewardConfig, RewardModel, Setting
from guerdon.reward.experts import ExpertConfig, check_experts, read_experts
from guerdon.reward.inputs import take_rows, tensors
from guerdon.reward.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.data.demonstrations import Demonstrations
    from guerdon.nn.optimizer import Optimizer


OFF_POLICY_WAITS = 256


class TrainedConfig(RewardConfig):
    """What every reward model with networks can be told."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Step size of Adam; 1e-4 to 3e-3."""
    batch_size: int = Field(default=128, ge=1)
    """Transitions of a gradient step, of each kind; 64 to 512."""
    hidden_size: PositiveInt | list[PositiveInt] = Field(default=[64, 64])
    """Sizes of the hidden layers, input side first; one number is one layer."""
    update_per_collect: int = Field(default=16, ge=1)
    """Gradient steps in a call of `train`."""
    train_every: int | None = Field(default=None, ge=1)
    """New transitions that `train` waits for. Where left out: it never waits if the policy is
    on-policy, and for 256 of them otherwise, since few are collected at a time then."""
    buffer_size: int = Field(default=100_000, ge=1)
    """Transitions of the policy that it remembers at most."""
    clear_buffer_per_iters: int | None = Field(default=None, ge=1)
    """It forgets them whenever the number of the policy's updates can be divided by this, and
    nothing waits to be learned from. Where left out: after every iteration of an on-policy policy,
    and never otherwise."""

    @property
    def hidden(self) -> list[int]:
        """The sizes of hidden layers as a list."""
        return [self.hidden_size] if isinstance(self.hidden_size, int) else list(self.hidden_size)


class TrainedReward(RewardModel):
    """A reward model with networks, which a subclass makes in `build` and fits in `step`.

    Attributes:
        network: All its networks; saved and restored as one module.
        optimizers: By name; saved and restored, too.
        memory: What the policy did lately: the `fields`, as rows.
        generator: What it draws from.
    """

    Config = TrainedConfig
    learns = True
    setting: Setting | None = None
    network: nn.Module

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        self.memory = Memory(self.config.buffer_size)
        self.optimizers: dict[str, Optimizer] = {}
        self.generator = np.random.default_rng(0)
        self.trained = 0
        """Gradient steps so far."""
        self._new = 0

    # --- for subclasses

    def build(self, setting: Setting) -> None:
        """Makes ``network`` and ``optimizers``; whatever it draws comes from the run's seed."""
        raise NotImplementedError

    def step(self) -> Metrics:
        """One gradient step."""
        raise NotImplementedError

    def remembered(self, rows: Batch) -> Batch:
        """What the memory keeps of transitions: their `fields`."""
        return Batch({name: rows[name] for name in self.fields})

    # --- the contract

    def setup(self, setting: Setting) -> None:
        """See `RewardModel`."""
        self.setting = setting
        self.generator = np.random.default_rng(setting.seed)
        with seeded(setting.seed):
            self.build(setting)
        self.network.to(self.device).eval()

    def prepare(self, data: Batch, demonstrations: Demonstrations | None = None) -> Setting:
        """Sees that the networks are there, made for these transitions if for nothing else."""
        if self.setting is None:
            self.setup(Setting.of(data, demonstrations))
        assert self.setting is not None
        return self.setting

    def collect_data(self, data: Any) -> None:
        """Remembers the real transitions of a rollout, or a list of them."""
        rows = data if isinstance(data, Batch) else items.to_batch(data)
        if "mask" in rows:
            rows = rows[np.asarray(rows.mask)]
        self.prepare(rows)
        if len(rows.rew):
            self.memory.add(self.remembered(rows))
            self._new += len(rows.rew)

    def train(self) -> Metrics | None:
        """Fits the networks, if there is enough that is new."""
        if self._new < self.waits_for:
            return None
        self._new = 0
        return self.fit(self.config.update_per_collect)

    @property
    def waits_for(self) -> int:
        """New transitions that `train` waits for."""
        if self.config.train_every is not None:
            return int(self.config.train_every)
        return 1 if self.setting is None or self.setting.on_policy else OFF_POLICY_WAITS

    def fit(self, steps: int) -> Metrics:
        """Takes gradient steps; the metrics are means over them."""
        self.network.train()
        seen = [self.step() for _ in range(steps)]
        self.network.eval()  # or spectral norms would change whenever it is asked
        self.trained += steps
        return {name: _mean([metrics[name] for metrics in seen]) for name in seen[-1]}

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Forgets what the policy did, if it is time to."""
        if self._new:  # `train` waits for more
            return
        every = self.config.clear_buffer_per_iters
        if self.forgets if every is None else iter % every == 0:
            self.memory.clear()

    @property
    def forgets(self) -> bool:
        """Whether it learns from what is new alone, where the config does not say."""
        return self.setting is not None and self.setting.on_policy

    def sample(self, number: int) -> dict[str, Any]:
        """Tensors of remembered transitions, drawn at random."""
        drawn: dict[str, Any] = tensors(self.memory.sample(number, self.generator), self.device)
        return drawn

    def tensors(self, data: Batch) -> dict[str, Any]:
        """The fields of transitions as tensors."""
        return {name: tensors(data[name], self.device) for name in self.fields}

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """See `RewardModel`."""
        if self.setting is None:
            return {}
        return {
            "network": {name: value.clone() for name, value in self.network.state_dict().items()},
            "optimizers": {name: o.state_dict() for name, o in self.optimizers.items()},
            "memory": self.memory.state_dict(),
            "generator": self.generator.bit_generator.state,
            "trained": self.trained,
            "new": self._new,
        }

    def portable(self, state: dict[str, Any]) -> dict[str, Any]:
        """See `RewardModel`: all but what it remembers of what the policy did."""
        return state and state | {"memory": Memory(1).state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        if not state:
            return
        self.network.load_state_dict(state["network"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.memory.load_state_dict(state["memory"])
        self.generator.bit_generator.state = state["generator"]
        self.trained, self._new = state["trained"], state["new"]


class ImitationConfig(ExpertConfig, TrainedConfig):
    """What every reward model with networks that learns from demonstrations can be told."""


class ImitationReward(TrainedReward):
    """A reward model that learns from demonstrations.

    Attributes:
        expert: The demonstrated transitions: the `fields`, as tensors.
    """

    Config = ImitationConfig
    imitates = True
    demonstrations: Demonstrations | None = None
    expert: dict[str, Any]

    def load_expert_data(self, data: Any = None) -> None:
        """Takes demonstrations.

        Args:
            data: The demonstrations, or what `guerdon.data.load_demonstrations` reads; what
                ``expert_data_path`` names by default.
        """
        self.demonstrations = read_experts(self, data)
        rows = self.demonstrations.transitions()
        rows = check_experts(self.prepare(rows, self.demonstrations), rows)
        self.expert = self.tensors(rows)
        self.take_experts(rows)

    def need_experts(self) -> None:
        """Loads the demonstrations that ``expert_data_path`` names, if there are none yet."""
        if self.demonstrations is None:
            self.load_expert_data()

    def fit(self, steps: int) -> Metrics:
        """See `TrainedReward`; demonstrations are loaded, if nobody did so."""
        self.need_experts()
        return super().fit(steps)

    def take_experts(self, rows: Batch) -> None:
        """Is told all demonstrated transitions, once they are there."""

    def sample_expert(self, number: int) -> dict[str, Any]:
        """Tensors of demonstrated transitions, drawn at random."""
        n_rows = len(self.expert["act"])
        index = torch.from_numpy(self.generator.integers(n_rows, size=number)).to(self.device)
        drawn: dict[str, Any] = take_rows(self.expert, index)
        return drawn


def _mean(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.stack(values).mean()
    return float(np.mean(values))

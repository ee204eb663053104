"""Bases of reward models with networks: data in, gradient steps, state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import nn

from guerdon.data.batch import Batch
from guerdon.data.demonstrations import Demonstrations
from guerdon.data.loading import load_demonstrations
from guerdon.data.spaces import as_rows, check_rows
from guerdon.nn.init import seeded
from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import Metrics, RewardConfig, RewardModel, Setting
from guerdon.reward.inputs import TransitionInput
from guerdon.reward.requirements import REQUIREMENTS
from guerdon.reward.transition_memory import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping

OFF_POLICY_TRAIN_EVERY = 256
_CHUNK = 1024  # rows of one call of the policy

Inputs = Annotated[list[Literal["obs", "act", "obs_next"]], Field(min_length=1)]
"""Fields that a network reads."""


class TrainedConfig(RewardConfig):
    """Options of every reward model with networks."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam; 1e-4 to 3e-3."""
    batch_size: int = Field(default=128, ge=1)
    """Transitions of a gradient step, of each kind; 64 to 512."""
    hidden_size: PositiveInt | list[PositiveInt] = Field(default=[64, 64])
    """Sizes of the hidden layers, input side first; one number is one layer."""
    update_per_collect: int = Field(default=16, ge=1)
    """Gradient steps in a call of `train`."""
    train_every: int | None = Field(default=None, ge=1)
    """New transitions that `train` waits for. By default it never waits if the policy is
    on-policy, and for 256 transitions otherwise."""
    buffer_size: int = Field(default=100_000, ge=1)
    """Maximum number of the policy's transitions that are kept."""
    clear_buffer_per_iters: int | None = Field(default=None, ge=1)
    """Drop them whenever the number of policy updates is divisible by this and none waits to be
    trained on. By default after every on-policy iteration, and never otherwise."""

    @property
    def hidden(self) -> list[int]:
        """The sizes of hidden layers as a list."""
        return [self.hidden_size] if isinstance(self.hidden_size, int) else list(self.hidden_size)


class TrainedReward(RewardModel):
    """A reward model with networks, which a subclass makes in `build` and trains in `step`.

    Attributes:
        network: All its networks, as one module.
        memory: The newest transitions of the policy: the fields of `collects`, as rows.
        generator: Source of randomness.
        trained: Gradient steps so far.
    """

    Config = TrainedConfig
    network: nn.Module
    optimizer: Optimizer | None = None

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        self.memory = Memory(self.config.buffer_size)
        self.generator = np.random.default_rng(self.setting.seed)
        self.trained = 0
        self._new = 0
        with seeded(self.setting.seed):
            self.network = self.build().to(self.device).eval()
        self.optimizer = self.make_optimizer()

    # --- for subclasses

    def build(self) -> nn.Module:
        """Make the networks."""
        raise NotImplementedError

    def make_optimizer(self) -> Optimizer | None:
        """Make the optimizer."""
        return Optimizer(
            self.network.parameters(),
            self.config.learning_rate,
            weight_decay=getattr(self.config, "weight_decay", 0.0),
        )

    def step(self) -> Metrics:
        """Take one gradient step."""
        raise NotImplementedError

    def descend(self, loss: torch.Tensor) -> None:
        """Take a step of the optimizer."""
        assert self.optimizer is not None
        self.optimizer.step(loss)

    # --- the interface

    @torch.no_grad()
    def score(self, batch: Batch) -> Any:
        """Return the network's output for transitions."""
        return self.network(self.tensors(batch))

    @property
    def fitted(self) -> bool:
        """See `RewardModel`."""
        return self.trained > 0

    def collect_data(self, batch: Batch) -> None:
        """Keep the transitions of a rollout, if it learns from any."""
        number = int(np.count_nonzero(batch.mask)) if self.collects else 0
        if number:
            rows = Batch({name: batch[name] for name in self.collects})
            self.memory.add(self.kept(rows[np.asarray(batch.mask)]))
            self._new += number

    def kept(self, rows: Batch) -> Batch:
        """What the memory keeps of transitions."""
        return rows

    def train(self) -> Metrics | None:
        """Train the networks, if there is enough new data."""
        if self._new < self.train_every:
            return None
        self._new = 0
        return self.fit(self.config.update_per_collect)

    @property
    def train_every(self) -> int:
        """New transitions that `train` waits for."""
        if self.config.train_every is not None:
            return int(self.config.train_every)
        return 1 if self.setting.on_policy else OFF_POLICY_TRAIN_EVERY

    def fit(self, steps: int) -> Metrics:
        """Take gradient steps; the metrics are means over them."""
        self.network.train()
        found = [self.step() for _ in range(steps)]
        self.network.eval()  # or spectral norms would change whenever it is called
        self.trained += steps
        return {name: _mean([metrics[name] for metrics in found]) for name in found[-1]}

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Drop the policy's transitions, if it is time to."""
        every = self.config.clear_buffer_per_iters
        if not self._new and (self.forgets if every is None else iter % every == 0):
            self.memory.clear()

    @property
    def forgets(self) -> bool:
        """Whether it trains on new data alone, where the config does not say."""
        return self.setting.on_policy

    def sample(self, number: int) -> Batch:
        """Tensors of kept transitions, drawn at random."""
        return self.memory.sample(number, self.generator).to_device(self.device)

    def tensors(self, batch: Batch) -> Batch:
        """The fields of transitions as tensors."""
        return Batch({name: batch[name] for name in self.fields}).to_device(self.device)

    # --- state

    def training_state(self) -> dict[str, Any]:
        """See `RewardModel`."""
        return {
            "network": {name: value.clone() for name, value in self.network.state_dict().items()},
            "optimizer": self.optimizer.state_dict() if self.optimizer else {},
            "memory": self.memory.training_state(),
            "generator": self.generator.bit_generator.state,
            "trained": self.trained,
            "new": self._new,
        }

    def portable_state(self) -> dict[str, Any]:
        """See `RewardModel`: without the policy's transitions."""
        return self.training_state() | {"memory": Memory(1).training_state()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        self.network.load_state_dict(state["network"])
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
        self.memory.load_training_state(state["memory"])
        self.generator.bit_generator.state = state["generator"]
        self.trained, self._new = state["trained"], state["new"]


class ExpertConfig(RewardConfig):
    """Options of every reward model that learns from demonstrations."""

    expert_data_path: str | None = None
    """Demonstrations: a folder that `guerdon collect` wrote, ``minari:<dataset id>``, a ``.pkl``
    file, ``zoo:<name>`` for those that come with guerdon, or ``expert:<preset>``, optionally with
    ``?episodes=10&return=475``, for those of a policy that is trained once and kept."""


def read_demonstrations(model: RewardModel, source: Any = None) -> tuple[Demonstrations, Batch]:
    """Read the demonstrations of a model, and check them against the spaces of its run.

    Args:
        model: Has ``expert_data_path`` among its options.
        source: Demonstrations to take instead, or what `guerdon.data.load_demonstrations` reads.

    Returns:
        The demonstrations, and their transitions in the dtypes of the run's spaces.
    """
    source = model.config.expert_data_path if source is None else source
    if source is None:
        raise ValueError(f"{model.name} {REQUIREMENTS['demonstrations']}")
    found = source if isinstance(source, Demonstrations) else load_demonstrations(source)
    rows, setting = found.transitions(), model.setting
    spaces = {
        "obs": setting.observation_space,
        "obs_next": setting.observation_space,
        "act": setting.action_space,
    }
    for name, space in spaces.items():
        check_rows(space, rows[name], f"{name} of the demonstrations", "same_kind")
    rows = rows.replace(**{name: as_rows(space, rows[name]) for name, space in spaces.items()})
    return found, rows


def draw_rows(rows: np.ndarray, size: int | None, generator: np.random.Generator) -> np.ndarray:
    """Draw so many rows without replacement; all of them if None, or more than there are."""
    if size is None or size >= len(rows):
        return rows
    drawn: np.ndarray = generator.choice(rows, size, replace=False)
    return drawn


class ImitationConfig(ExpertConfig, TrainedConfig):
    """Options of every reward model with networks that learns from demonstrations."""


class ImitationReward(TrainedReward):
    """A reward model with networks that learns from demonstrations.

    Attributes:
        demonstrations: The demonstrations; None before `load_expert_data`.
        expert: Their transitions: the fields, as tensors.
    """

    Config = ImitationConfig
    requires = frozenset({"demonstrations"})
    demonstrations: Demonstrations | None = None
    expert: Batch

    def load_expert_data(self, demonstrations: Any = None) -> None:
        """Take demonstrations.

        Args:
            demonstrations: The demonstrations, or what `guerdon.data.load_demonstrations` reads;
                by default what ``expert_data_path`` names.
        """
        self.demonstrations, rows = read_demonstrations(self, demonstrations)
        self.expert = self.tensors(rows)
        self.take_demonstrations(rows)

    def take_demonstrations(self, rows: Batch) -> None:  # noqa: ARG002 - for subclasses
        """Use the demonstrated transitions; by default, their statistics normalise inputs."""
        for module in self.network.modules():
            if isinstance(module, TransitionInput):
                module.settle(self.expert)

    def fit(self, steps: int) -> Metrics:
        """See `TrainedReward`; loads the demonstrations if that was not done."""
        if self.demonstrations is None:
            self.load_expert_data()
        return super().fit(steps)

    def read_inputs(self, *others: str) -> None:
        """Read and collect the fields of the option ``inputs``, and others."""
        self.fields = self.collects = tuple(dict.fromkeys((*others, *self.config.inputs)))

    @torch.no_grad()
    def log_prob(self, rows: Batch) -> torch.Tensor:
        """Log-probabilities of actions under the current policy."""
        log_prob, obs, act = self.setting.log_prob, rows["obs"], rows["act"]
        if log_prob is None:
            raise ValueError(
                f"{self.name} needs the log-probability of the policy's actions: make it with a "
                "Setting that has 'log_prob' (airl can do without, if its option 'log_prob' is "
                "false)"
            )
        chunks = [slice(start, start + _CHUNK) for start in range(0, len(act), _CHUNK)]
        return torch.cat([log_prob(obs[at], act[at]).float() for at in chunks])

    def sample_expert(self, number: int) -> Batch:
        """Tensors of demonstrated transitions, drawn at random."""
        n_rows = len(self.expert["act"])
        index = torch.from_numpy(self.generator.integers(n_rows, size=number)).to(self.device)
        drawn: Batch = self.expert[index]
        return drawn


class PretrainedReward(ImitationReward):
    """A reward model that is fitted to demonstrations once, by `pretrain` or the first `train`."""

    can_pretrain = True

    def pretrain(self) -> Metrics | None:
        """Fit the networks, unless that was done before."""
        if self.fitted:
            return None
        if self.demonstrations is None:
            self.load_expert_data()
        return self.fit(self.config.update_per_collect)

    def train(self) -> Metrics | None:
        """See `pretrain`."""
        return self.pretrain()


def _mean(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor):
        return torch.stack(values).mean()
    return float(np.mean(values))

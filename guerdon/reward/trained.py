"""Bases of reward models with networks: data in, gradient steps, state."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import nn

from guerdon.data.batch import Batch, flatten, unflatten
from guerdon.data.demonstrations import Demonstrations
from guerdon.data.loading import load_demonstrations
from guerdon.data.spaces import as_rows, check_rows
from guerdon.nn.init import seeded
from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import REQUIREMENTS, Metrics, RewardConfig, RewardModel, Setting
from guerdon.reward.inputs import TransitionInput

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
    """New transitions that `train` waits for; by default 1 on-policy and 256 off-policy."""
    buffer_size: int = Field(default=100_000, ge=1)
    """Maximum number of the policy's transitions that are kept."""
    clear_buffer_per_iters: int | None = Field(default=None, ge=1)
    """Policy updates after which they are dropped, once all were trained on; by default after every
    on-policy iteration, and never otherwise."""

    @property
    def hidden(self) -> list[int]:
        """The sizes of hidden layers as a list."""
        return [self.hidden_size] if isinstance(self.hidden_size, int) else list(self.hidden_size)


class Memory:
    """Keeps transitions, at most `size` of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._columns: dict[tuple[str, ...], np.ndarray] = {}
        self._written = 0  # since the last `clear`

    def __len__(self) -> int:
        return min(self._written, self.size)

    def add(self, rows: Batch) -> None:
        """Add rows [N, ...], oldest first; they replace the oldest."""
        leaves = self._leaves(rows)
        number = len(next(iter(leaves.values())))
        places = (self._written + np.arange(max(0, number - self.size), number)) % self.size
        for path, column in self._columns.items():
            column[places] = leaves[path][-len(places) :]
        self._written += number

    def mix_in(self, rows: Batch, generator: np.random.Generator) -> None:
        """Add rows by reservoir sampling, so that all so far are kept with equal probability."""
        leaves = self._leaves(rows)
        order = self._written + np.arange(len(next(iter(leaves.values()))))
        places = np.where(order < self.size, order, generator.integers(order + 1))
        for row in np.flatnonzero(places < self.size):
            for path, column in self._columns.items():
                column[places[row]] = leaves[path][row]
        self._written += len(order)

    def _leaves(self, rows: Batch) -> dict[tuple[str, ...], Any]:
        """The leaves of rows, for which columns are made if there are none."""
        leaves = dict(flatten(rows))
        if not self._columns:
            for path, leaf in leaves.items():
                self._columns[path] = np.empty((self.size, *leaf.shape[1:]), leaf.dtype)
        return leaves

    def sample(self, number: int, generator: np.random.Generator) -> Batch:
        """Draw rows uniformly, with replacement."""
        if not len(self):
            raise ValueError("nothing was collected yet: call collect_data() before train()")
        return self.rows(generator.integers(len(self), size=number))

    def rows(self, index: np.ndarray | None = None) -> Batch:
        """Copies of rows by index; by default views of all."""
        places = slice(0, len(self)) if index is None else index
        return unflatten({path: column[places] for path, column in self._columns.items()})

    def clear(self) -> None:
        """Remove all rows."""
        self._written = 0

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume, as copies."""
        return {
            "written": self._written,
            "paths": [list(path) for path in self._columns],
            "columns": [column[: len(self)].copy() for column in self._columns.values()],
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`; of a memory of another size, the rows that fit."""
        self._columns, self._written = {}, int(state["written"])
        for path, rows in zip(state["paths"], state["columns"], strict=True):
            rows = np.asarray(rows)
            if len(rows) != len(self):  # of another size: the order in the ring is lost
                rows = rows[-self.size :]
                self._written = len(rows)
            column = np.empty((self.size, *rows.shape[1:]), rows.dtype)
            column[: len(rows)] = rows
            self._columns[tuple(path)] = column


class TrainedReward(RewardModel):
    """A reward model with networks, which a subclass names as `Network` and trains in `step`.

    Attributes:
        network: All its networks, as one module.
        memory: The newest transitions of the policy: the fields of `collects`, as rows.
        generator: Source of randomness.
        trained: Gradient steps so far.
    """

    Config = TrainedConfig
    Network: ClassVar[Callable[..., nn.Module]]
    """Made with the setting and the config."""
    saved: tuple[str, ...] = ("network", "optimizer", "memory", "generator", "trained", "new")
    network: nn.Module

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        self.memory = Memory(self.config.buffer_size)
        self.generator = np.random.default_rng(self.setting.seed)
        self.trained = 0
        self.new = 0
        with seeded(self.setting.seed):
            self.network = self.build().to(self.device).eval()
        self.optimizer: Any = self.make_optimizer()

    def build(self) -> nn.Module:
        """Make the networks."""
        return self.Network(self.setting, self.config)

    def make_optimizer(self) -> Optimizer | None:
        """Make the optimizer; None if there is nothing to train."""
        decay = getattr(self.config, "weight_decay", 0.0)
        return Optimizer(self.network.parameters(), self.config.learning_rate, weight_decay=decay)

    def step(self) -> Metrics:
        """Take one gradient step."""
        raise NotImplementedError

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
            self.new += number

    def kept(self, rows: Batch) -> Batch:
        """What the memory keeps of transitions."""
        return rows

    def train(self) -> Metrics | None:
        """Train the networks, if there is enough new data."""
        if self.new < self.train_every:
            return None
        self.new = 0
        return self.fit(self.config.update_per_collect)

    @property
    def train_every(self) -> int:
        """New transitions that `train` waits for."""
        return int(self.config.train_every or (1 if self.setting.on_policy else 256))

    def fit(self, steps: int) -> Metrics:
        """Take gradient steps; the metrics are means over them."""
        self.network.train()
        found = [self.step() for _ in range(steps)]
        self.network.eval()  # or spectral norms would change whenever it is called
        self.trained += steps
        return {
            name: torch.stack([torch.as_tensor(metrics[name]) for metrics in found]).mean()
            for name in found[-1]
        }

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Drop the policy's transitions, if it is time to."""
        every = self.config.clear_buffer_per_iters
        if not self.new and (self.forgets if every is None else iter % every == 0):
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

    def portable_state(self) -> dict[str, Any]:
        """See `RewardModel`: without the policy's transitions."""
        return self.training_state() | {"memory": Memory(1).training_state()}


class ExpertConfig(RewardConfig):
    """Options of every reward model that learns from demonstrations."""

    expert_data_path: str | None = None
    """Demonstrations: a folder that `guerdon collect` wrote, ``minari:<dataset id>``, a ``.pkl``
    file, ``zoo:<name>`` for those that come with guerdon, or ``expert:<preset>``, optionally with
    ``?episodes=10&return=475``, for those of a policy that is trained once and kept."""


def read_demonstrations(model: RewardModel, source: Any = None) -> tuple[Demonstrations, Batch]:
    """Read demonstrations, and check them against the spaces of a model's run.

    The source is what `guerdon.data.load_demonstrations` reads, by default ``expert_data_path``.
    Returns the demonstrations, and their transitions in the dtypes of the spaces.
    """
    source = model.config.expert_data_path if source is None else source
    if source is None:
        raise ValueError(f"{model.name} {REQUIREMENTS['demonstrations']}")
    found = source if isinstance(source, Demonstrations) else load_demonstrations(source)
    rows, obs = found.transitions(), model.setting.observation_space
    spaces = {"obs": obs, "obs_next": obs, "act": model.setting.action_space}
    for name, space in spaces.items():
        check_rows(space, rows[name], f"{name} of the demonstrations", "same_kind")
    return found, rows.replace(**{name: as_rows(spaces[name], rows[name]) for name in spaces})


def draw_rows(rows: np.ndarray, size: int | None, generator: np.random.Generator) -> np.ndarray:
    """Draw so many rows without replacement; all of them if None, or more than there are."""
    if size is None or size >= len(rows):
        return rows
    return np.asarray(generator.choice(rows, size, replace=False))


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
        """Take demonstrations; see `read_demonstrations`."""
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

    @torch.no_grad()
    def log_prob(self, rows: Batch) -> torch.Tensor:
        """Log-probabilities of actions under the current policy."""
        log_prob, obs, act = self.setting.log_prob, rows["obs"], rows["act"]
        if log_prob is None:
            raise ValueError(
                f"{self.name} needs the log-probability of the policy's actions: make it with a "
                "Setting that has 'log_prob', or set airl's option 'log_prob' to false"
            )
        chunks = [slice(start, start + _CHUNK) for start in range(0, len(act), _CHUNK)]
        return torch.cat([log_prob(obs[at], act[at]).float() for at in chunks])

    def sample_expert(self, number: int) -> Batch:
        """Tensors of demonstrated transitions, drawn at random."""
        n_rows = len(self.expert["act"])
        index = torch.from_numpy(self.generator.integers(n_rows, size=number)).to(self.device)
        return cast("Batch", self.expert[index])


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

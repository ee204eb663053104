"""Base classes of reward models with networks."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import nn

from guerdon.data.batch import Batch
from guerdon.data.demonstrations import Demonstrations
from guerdon.data.loading import DemonstrationsConfig
from guerdon.data.spaces import in_spaces
from guerdon.nn.init import seeded
from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import REQUIREMENTS, Metrics, RewardConfig, RewardModel, Setting
from guerdon.reward.inputs import TransitionInput
from guerdon.reward.ood import SIZE, Reference

_CHUNK = 1024  # rows per call of the policy

Inputs = Annotated[list[Literal["obs", "act", "obs_next"]], Field(min_length=1)]
"""Input fields of a network."""


class NetworkConfig(RewardConfig):
    """Options of every reward model with networks."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam; usually 1e-4 to 3e-3."""
    batch_size: int = Field(default=128, ge=1)
    """Transitions per gradient step, of each kind; usually 64 to 1,024."""
    hidden_size: PositiveInt | list[PositiveInt] = Field(default=[64, 64])
    """Sizes of the hidden layers; one number is one layer."""
    update_per_collect: int = Field(default=16, ge=1)
    """Gradient steps per call of `train`; usually 1 to 100."""

    @property
    def hidden(self) -> list[int]:
        """Sizes of hidden layers as a list."""
        return [self.hidden_size] if isinstance(self.hidden_size, int) else list(self.hidden_size)


class NetworkReward(RewardModel):
    """A reward model with networks; a subclass defines `Network` and `loss`.

    Attributes:
        network: All networks, as one module.
        generator: Random generator.
        trained: Number of gradient steps so far.
    """

    Config = NetworkConfig
    Network: ClassVar[Callable[..., nn.Module]]
    """Called with the setting and the config."""
    saved: tuple[str, ...] = ("network", "optimizer", "generator", "trained", "reference")
    network: nn.Module

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        self.generator = np.random.default_rng(self.setting.seed)
        self.trained = 0
        self.reference = Reference()
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

    def loss(self) -> tuple[torch.Tensor, Metrics]:
        """Draw a minibatch; return its loss and metrics."""
        raise NotImplementedError

    def step(self) -> Metrics:
        """Take one gradient step."""
        loss, metrics = self.loss()
        self.optimizer.step(loss)
        return {"loss": loss.detach(), **metrics}

    def fit(self, steps: int) -> Metrics:
        """Take gradient steps; return the mean metrics."""
        self.network.train()
        found = [self.step() for _ in range(steps)]
        self.network.eval()  # otherwise every call would change spectral norms
        self.trained += steps
        return {
            name: torch.stack([torch.as_tensor(metrics[name]) for metrics in found]).mean()
            for name in found[-1]
        }

    @property
    def fitted(self) -> bool:
        """See `RewardModel`."""
        return self.trained > 0

    @torch.no_grad()
    def score(self, batch: Batch) -> Any:
        """Return the network's output for transitions."""
        return self.network(self.tensors(batch))

    def tensors(self, batch: Batch) -> Batch:
        """Return the fields of transitions as tensors."""
        return Batch({name: batch[name] for name in self.fields}).to_device(self.device)


class Memory:
    """Stores at most `size` transitions."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._columns = Batch()  # [size, ...]
        self._written = 0  # number of rows since the last `clear`

    def __len__(self) -> int:
        return min(self._written, self.size)

    def add(self, rows: Batch, reservoir: np.random.Generator | None = None) -> None:
        """Add rows [N, ...], oldest first, which replace the oldest ones.

        With `reservoir`, they replace randomly drawn rows, so that all rows so far are kept with
        equal probability.
        """
        if not self._columns:
            self._columns = rows.apply(
                lambda leaf: np.empty((self.size, *leaf.shape[1:]), leaf.dtype)
            )
        places = self._written + np.arange(len(rows))
        self._written += len(rows)
        if reservoir is None:
            places %= self.size
        else:
            places = np.where(places < self.size, places, reservoir.integers(places + 1))
        kept = places < self.size
        self._columns[places[kept]] = rows[kept]  # the last row wins for repeated places

    def sample(self, number: int, generator: np.random.Generator) -> Batch:
        """Draw rows uniformly, with replacement."""
        if not len(self):
            raise ValueError("nothing was collected yet: call collect_data() before train()")
        return cast("Batch", self._columns[generator.integers(len(self), size=number)])

    def rows(self) -> Batch:
        """Return views of all rows."""
        return self._columns[: len(self)] if self._columns else Batch()

    def clear(self) -> None:
        """Remove all rows."""
        self._written = 0

    def training_state(self) -> dict[str, Any]:
        """Return copies of everything needed to resume."""
        return {"written": self._written, "rows": self.rows().apply(np.copy).to_dict()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`; with another size, as many rows as possible."""
        rows, written = Batch(state["rows"]), int(state["written"])
        self._columns, self._written = Batch(), 0
        if rows:
            self.add(rows[-self.size :])
        if len(rows) == min(written, self.size):  # otherwise the order in the ring is lost
            self._written = written


class TrainedConfig(NetworkConfig):
    """Options of every reward model with networks that learns from the policy's transitions."""

    train_every: int | None = Field(default=None, ge=1)
    """Minimum number of new transitions for training; by default 1 on-policy and 256 off-policy."""
    buffer_size: int = Field(default=100_000, ge=1)
    """Maximum number of stored transitions of the policy."""
    clear_buffer_per_iters: int | None = Field(default=None, ge=1)
    """Policy updates after which they are dropped, once all were trained on; by default after every
    on-policy iteration, and never off-policy."""


class TrainedReward(NetworkReward):
    """A reward model with networks that learns from the policy's transitions.

    Attributes:
        memory: Newest transitions of the policy, with the fields of `collects`.
        new: Number of transitions since the last `train`.
    """

    Config = TrainedConfig
    saved = (*NetworkReward.saved, "memory", "new")

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        self.memory = Memory(self.config.buffer_size)
        self.new = 0

    def collect_data(self, batch: Batch) -> None:
        """Store the transitions of a rollout."""
        if number := int(np.count_nonzero(batch.mask)):
            rows = Batch({name: batch[name] for name in self.collects})
            self.memory.add(self.kept(rows[np.asarray(batch.mask)]))
            self.new += number

    def kept(self, rows: Batch) -> Batch:
        """Return the part of transitions that is stored."""
        return rows

    def train(self) -> Metrics | None:
        """Train the networks, if there is enough new data."""
        if self.new < self.train_every:
            return None
        self.new = 0
        return self.fit(self.config.update_per_collect)

    @property
    def train_every(self) -> int:
        """Minimum number of new transitions for training."""
        return int(self.config.train_every or (1 if self.setting.on_policy else 256))

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Drop the policy's transitions, depending on the number of policy updates."""
        every = self.config.clear_buffer_per_iters
        if not self.new and (self.forgets if every is None else iter % every == 0):
            self.memory.clear()

    @property
    def forgets(self) -> bool:
        """Whether to train on new data only, by default."""
        return self.setting.on_policy

    def sample(self, number: int) -> Batch:
        """Draw stored transitions, as tensors."""
        return self.memory.sample(number, self.generator).to_device(self.device)

    def portable_state(self) -> dict[str, Any]:
        """See `RewardModel`; excludes the policy's transitions."""
        return self.training_state() | {"memory": Memory(1).training_state()}


class ExpertConfig(DemonstrationsConfig, RewardConfig):
    """Options of every reward model that learns from demonstrations."""


class ExpertReward(RewardModel):
    """A reward model that learns from demonstrations.

    Attributes:
        demonstrations: The demonstrations; None before `load_expert_data`.
    """

    Config = ExpertConfig
    requires = frozenset({"demonstrations"})
    demonstrations: Demonstrations | None = None

    def load_expert_data(self, demonstrations: Any = None) -> None:
        """Set the demonstrations, and check them against the spaces of the run.

        See `DemonstrationsConfig` for sources and the part that is used.
        """
        if demonstrations is None and self.config.expert_data_path is None:
            raise ValueError(f"{self.name} {REQUIREMENTS['demonstrations']}")
        found = self.config.load(demonstrations)
        rows = in_spaces(found.transitions(), *self.setting.spaces, "the demonstrations")
        self.demonstrations = found
        self.take_demonstrations(rows)
        self.set_reference(rows, np.repeat(np.arange(len(found)), found.lengths))

    def take_demonstrations(self, rows: Batch) -> None:
        """Use the demonstrated transitions."""
        raise NotImplementedError


def draw_rows(rows: np.ndarray, size: int | None, generator: np.random.Generator) -> np.ndarray:
    """Draw `size` rows without replacement; all if None or if there are fewer."""
    if size is None or size >= len(rows):
        return rows
    return np.asarray(generator.choice(rows, size, replace=False))


class ImitationConfig(ExpertConfig, NetworkConfig):
    """Options of every reward model with networks that learns from demonstrations."""


class ImitationReward(ExpertReward, NetworkReward):
    """A reward model with networks that learns from demonstrations.

    Attributes:
        expert: Demonstrated transitions, as tensors.
    """

    Config = ImitationConfig
    expert: Batch

    def take_demonstrations(self, rows: Batch) -> None:
        """See `ExpertReward`; by default, sets the statistics for normalising inputs."""
        self.expert = self.tensors(rows)
        for module in self.network.modules():
            if isinstance(module, TransitionInput):
                module.settle(self.expert)

    def fitted_rows(self) -> Batch | None:
        """Return demonstrated transitions, evenly spaced; None in a run that has none."""
        if self.demonstrations is None:
            return None
        every = -(-len(self.expert[self.fields[0]]) // SIZE)
        return cast("Batch", self.expert[::every])

    def fit(self, steps: int) -> Metrics:
        """See `NetworkReward`; loads the demonstrations if necessary."""
        if self.demonstrations is None:
            self.load_expert_data()
        return super().fit(steps)

    @torch.no_grad()
    def log_prob(self, rows: Batch) -> torch.Tensor:
        """Return log-probabilities of actions under the current policy."""
        log_prob, obs, act = self.setting.log_prob, rows["obs"], rows["act"]
        if log_prob is None:
            raise ValueError(
                f"{self.name} needs the log-probability of the policy's actions: make it with a "
                "Setting that has 'log_prob', or set airl's option 'log_prob' to false"
            )
        chunks = [slice(start, start + _CHUNK) for start in range(0, len(act), _CHUNK)]
        return torch.cat([log_prob(obs[at], act[at]).float() for at in chunks])

    def sample_expert(self, number: int) -> Batch:
        """Draw demonstrated transitions, as tensors."""
        n_rows = len(self.expert["act"])
        index = torch.from_numpy(self.generator.integers(n_rows, size=number)).to(self.device)
        return cast("Batch", self.expert[index])


class PretrainedReward(ImitationReward):
    """A reward model that is fitted once to demonstrations, by `pretrain` or the first `train`."""

    can_pretrain = True

    def pretrain(self) -> Metrics | None:
        """Fit the networks, once."""
        if self.fitted:
            return None
        if self.demonstrations is None:
            self.load_expert_data()
        return self.fit(self.config.update_per_collect)

    def train(self) -> Metrics | None:
        """See `pretrain`."""
        return self.pretrain()

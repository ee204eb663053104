"""Reward models: a base class, its roles, and the registry."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from guerdon.config.registry import Registry
from guerdon.config.schema import Section
from guerdon.config.validation import validated
from guerdon.data.batch import Batch
from guerdon.data.demonstrations import Demonstrations
from guerdon.data.leaves import describe
from guerdon.data.loading import TO_GET_SOME
from guerdon.data.spaces import part_spaces
from guerdon.nn.optimizer import Optimizer
from guerdon.nn.spaces import is_image
from guerdon.reward.ood import Reference, comparable
from guerdon.reward.transitions import as_rollout, from_items, rows_before, with_rewards

Metrics = dict[str, Any]
"""Numbers, or scalar tensors."""


class RewardConfig(Section):
    """Options of every reward model."""

    type: str = ""
    """Registered name of the reward model."""

    @classmethod
    def env_weight(cls, options: Mapping[str, Any]) -> float:  # noqa: ARG003 - for ensembles
        """Return the default weight of the environment's reward beside this model."""
        return 0.0


@dataclass(frozen=True)
class Setting:
    """Properties of the run that a reward model is used in."""

    observation_space: Any = None
    """Observation space of one environment."""
    action_space: Any = None
    """Action space of one environment."""
    n_envs: int = 1
    """Number of training environments."""
    gamma: float = 0.99
    """Discount factor of the policy."""
    seed: int = 0
    """Random seed."""
    device: str = "cpu"
    """Device of the networks."""
    on_policy: bool = True
    """Whether the policy learns on-policy."""
    horizon: int | None = None
    """Maximum length of an episode, if limited."""
    log_prob: Callable[[Any, Any], torch.Tensor] | None = None
    """Log-probability of actions (second) at observations (first); None without a density."""
    example: Callable[[], Any] | None = None
    """Returns an environment whose methods can be looked up; it is never stepped."""
    frozen: bool = False
    """Whether the model is not trained, such as the reward of another run."""
    checkpoint_path: str | None = None
    """Checkpoint that the reward is loaded from, if any."""
    note: Callable[..., object] = lambda *_: None
    """Called before a file is written outside the run's folder; see `Journal.note`."""

    @property
    def spaces(self) -> tuple[Any, Any]:
        """Observation and action space."""
        return self.observation_space, self.action_space

    @classmethod
    def of(cls, data: Demonstrations, **options: Any) -> Self:
        """Return the setting of demonstrations, for use outside a run."""
        rows = data.transitions()
        return cls(
            data.observation_space or space_of(rows.obs, "obs"),
            data.action_space or space_of(rows.act, "act"),
            **options,
        )


REQUIREMENTS = {
    "demonstrations": f"learns from demonstrations: set 'expert_data_path'; {TO_GET_SOME}",
    "density": (
        "needs the log-probability of actions, which this policy does not have: use ppo, a2c or sac"
    ),
    "replay": "needs a policy with a replay buffer: use dqn, ddpg, td3 or sac",
    "checkpoint": (
        "has to be fitted beforehand: run `guerdon reward fit`, and set its folder as "
        "'reward.checkpoint_path'"
    ),
    "horizon": (
        "needs the maximum length of an episode: set 'horizon' in the reward's options, or "
        "'env.max_episode_steps'"
    ),
    "goals": (
        "needs observations with 'achieved_goal' and 'desired_goal' of one shape, as "
        "Gymnasium-Robotics has them: use another reward, or an environment with goals"
    ),
    "vectors": (
        "compares numbers, but observations have images: use gail or red, or an environment with "
        "vectors"
    ),
}
"""Requirements of reward models, as the end of an error message."""


class Stateful:
    """Mixin that saves and restores some attributes."""

    saved: tuple[str, ...] | None = None
    """Names of these attributes; by default networks, optimizers, generators, and objects with a
    `training_state`."""

    def training_state(self) -> dict[str, Any]:
        """Return copies of everything needed to resume."""
        return {name: state_of(getattr(self, name)) for name in self._saved_names()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`."""
        for name in self._saved_names():
            setattr(self, name, restored(getattr(self, name), state[name]))

    def _saved_names(self) -> list[str]:
        if self.saved is not None:
            return list(self.saved)
        kinds = nn.Module, torch.optim.Optimizer, Optimizer, np.random.Generator, torch.Generator
        return [
            name
            for name, part in vars(self).items()
            if isinstance(part, kinds) or hasattr(part, "training_state")
        ]


class RewardModel(Stateful):
    """Maps transitions to rewards.

    A subclass implements `score`, which is pure: only `collect_data`, `pretrain` and `train` change
    state. The constructor builds all networks. Options are an instance of `Config`, or a dictionary
    of its fields.
    """

    Config: ClassVar[type[RewardConfig]] = RewardConfig
    fields: tuple[str, ...] = ()
    """Fields of a transition that `score` reads, in addition to ``rew``."""
    collects: tuple[str, ...] = ()
    """Fields of new transitions that `collect_data` reads; empty if it needs no new data."""
    requires: ClassVar[frozenset[str]] = frozenset()
    """Requirements; keys of `REQUIREMENTS`."""
    reference = Reference()
    """The data that it was fitted to; empty if that is unknown, or if novelty is the aim."""
    can_pretrain: bool = False
    """Whether it can be trained before the policy."""
    history: int = 0
    """Number of previous rows of the episode that `score` reads as ``batch.before``: an axis after
    the leading ones, oldest first, and ``batch.before.mask``."""

    def __init__(
        self, config: RewardConfig | Mapping[str, Any], setting: Setting | None = None
    ) -> None:
        if not isinstance(config, RewardConfig):
            config = validated(self.Config, config, "reward")
        self.config: Any = config
        self.setting = setting or Setting()
        self.device = torch.device(self.setting.device)

    @classmethod
    def create(cls, config: Mapping[str, Any], setting: Setting) -> "RewardModel":
        """Make a model of this class, as a term of a reward."""
        return cls(config, setting)

    @classmethod
    def requirements(cls, config: Any) -> frozenset[str]:  # noqa: ARG003 - for subclasses
        """Return the requirements of a model with this config."""
        return cls.requires

    @property
    def name(self) -> str:
        """Registered name, for messages."""
        return self.config.type or type(self).__name__.lower()

    @property
    def fitted(self) -> bool:
        """Whether `score` is meaningful; always true for models without training."""
        return True

    # --- scoring

    def score(self, batch: Batch) -> Any:
        """Return rewards of transitions [...] (tensors on `device`): a tensor or one number."""
        raise NotImplementedError(f"{type(self).__name__} does not implement score()")

    def complete(self, batch: Batch) -> Batch:
        """Add the inputs of `score` other than `fields` to transitions [T, ...] outside a buffer.

        They are in time order, and the first rows begin episodes.
        """
        if self.history and "before" not in batch:
            before = rows_before(as_rollout(batch, self.fields), self.history, self.fields)
            lead = batch.rew.shape
            before = before.apply(lambda leaf: leaf.reshape(*lead, *leaf.shape[2:]))
            batch = batch.replace(before=before)
        return batch

    @torch.no_grad()
    def estimate(self, data: Any) -> Any:
        """Return a copy of transitions with the model's rewards as ``rew``.

        Transitions are a `Batch` [T, ...] in time order, or a list of dictionaries with ``obs``,
        ``action``, ``next_obs``, ``reward`` and ``done``.
        """
        batch = data if isinstance(data, Batch) else from_items(data)
        if not np.ndim(batch.rew):
            return self.estimate(Batch.stack([batch]))[0]
        complete = self.complete(batch).to_device(self.device)
        rew: Any = as_rewards(self.score(complete), complete.rew, self.name)
        if not isinstance(batch.rew, torch.Tensor):
            rew = rew.numpy(force=True)
        return batch.replace(rew=rew) if batch is data else with_rewards(data, rew)

    # --- learning

    def collect_data(self, batch: Batch) -> None:
        """Process new transitions.

        Args:
            batch: NumPy arrays [T, n_envs, ...] in time order with the fields of `collects`,
                ``rew``, ``terminated``, ``truncated``, ``mask`` (which rows are transitions) and
                ``first`` (which rows begin an episode).
        """

    def prepare(self) -> None:
        """Read data that `train` needs, to report missing data before a run starts."""

    def pretrain(self) -> Metrics | None:
        """Train before the policy, on the data available by then."""

    def train(self) -> Metrics | None:
        """Train on collected data; return metrics, or None without enough data."""

    def prefill(self) -> list[Batch]:
        """Return demonstrated episodes that a replay buffer starts with; none by default."""
        return []

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Drop collected data, depending on the number of policy updates."""

    def load_expert_data(self, demonstrations: Any = None) -> None:  # noqa: ARG002
        """Set the demonstrations."""
        raise TypeError(f"{self.name} does not learn from demonstrations")

    # --- the data that it was fitted to

    def compared(self, batch: Batch) -> torch.Tensor:
        """Return transitions [...] as vectors [..., size], which `reference` compares."""
        spaces_of = {"act": self.setting.action_space}
        parts = [
            comparable(batch[name], spaces_of.get(name, self.setting.observation_space))
            for name in self._compared_fields()
        ]
        return torch.cat([part.to(self.device) for part in parts], -1)

    def _compared_fields(self) -> list[str]:
        """Return the observations and actions that `score` depends on."""
        read = getattr(self.config, "inputs", (*self.fields, *getattr(self, "reads", ())))
        return [name for name in ("obs", "act", "obs_next") if name in read]

    def set_reference(self, rows: Batch, groups: np.ndarray) -> None:
        """Set the data that transitions are compared with; see `Reference.fit`."""
        setting = self.setting
        known = None not in (setting.observation_space, setting.action_space)
        if known and self._compared_fields():
            self.reference = Reference()
            self.reference.fit(self.compared(rows), groups, setting.seed)

    def fitted_rows(self) -> Batch | None:
        """Return the transitions [N, ...] that it was fitted to, as tensors; None if unknown."""
        return None

    @torch.no_grad()
    def update_reference(self) -> None:
        """Update what `reference` knows of the rewards of fitted transitions, after a fit."""
        rows = self.fitted_rows() if len(self.reference) and self.fitted else None
        if rows is None:
            return
        zeros = torch.zeros(len(rows), device=self.device)
        rewards = as_rewards(self.score(rows), zeros, self.name)
        self.reference.rewards = rewards.sort()[0].cpu()
        if (spread := self.disagreement(rows)) is not None:
            self.reference.disagreement = spread.flatten().sort()[0].cpu()

    def ood(self, batch: Batch) -> torch.Tensor:
        """Return out-of-distribution scores [...] of transitions; see `Reference.score`.

        NaN for those that do not matter, since nothing is paid for them.
        """
        return self.reference.score(self.compared(batch))

    def disagreement(self, batch: Batch) -> torch.Tensor | None:  # noqa: ARG002 - for ensembles
        """Return the standard deviation [...] of several members' rewards; None for one."""
        return None

    # --- state

    def portable_state(self) -> dict[str, Any]:
        """Return the state that another run can start from, without data of this run."""
        return self.training_state()

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state` or `portable_state`."""
        names = self._saved_names()
        if "reference" in names:  # older states have none
            state = {"reference": Reference().training_state(), **state}
        if state.keys() != set(names):
            raise ValueError(f"{self.name} has the state {names}, but was given {list(state)}")
        super().load_training_state(state)


class EpisodeRewardModel(RewardModel):
    """A reward model whose rewards depend on the history of the episode.

    New transitions are annotated once, in time order; the columns are stored with the transitions,
    and `score` reads them as fields of the batch. The state of running episodes is a *memory* owned
    by the caller: training, evaluations and wrapped environments each have their own.
    """

    reads: tuple[str, ...] = ()
    """Fields of new transitions that `annotate` reads."""
    annotations: tuple[str, ...] = ()
    """Columns of `annotate` that are stored; others are only passed to `collect_data`."""

    def new_memory(self, n_envs: int) -> Any:
        """Return the state of episodes at their start."""
        raise NotImplementedError

    def annotate(self, batch: Batch, memory: Any) -> tuple[dict[str, np.ndarray], Any]:
        """Annotate transitions; only the memory changes.

        Args:
            batch: See `collect_data`; with the fields of `reads`.
            memory: State of the running episodes. It is reset where ``batch.first`` is True.

        Returns:
            Columns [T, n_envs, ...] by name, and the memory after them.
        """
        raise NotImplementedError

    def complete(self, batch: Batch) -> Batch:
        """See `RewardModel`; adds the annotations of whole episodes."""
        batch = super().complete(batch)
        if all(name in batch for name in self.annotations):
            return batch
        fields = *self.fields, *self.reads, *self.annotations  # some of these may be present
        rollout = as_rollout(batch.to_numpy(), fields)
        found, _ = self.annotate(rollout, self.new_memory(rollout.rew.shape[1]))
        columns, lead = {name: found[name] for name in self.annotations}, batch.rew.shape
        shaped = {name: part.reshape(*lead, *part.shape[2:]) for name, part in columns.items()}
        return batch.replace(**shaped)


class SuccessModel(EpisodeRewardModel):
    """A reward model that predicts success, and so where an episode ends.

    Its columns include ``predicted`` (predicted success), ``paid`` (success that is rewarded) and
    ``after_success``: rows after a success of their episode, which are not used for learning.
    """

    ends_episodes: bool = True
    """Whether a success ends the episode for the learner."""
    rejects_ood: bool = False
    """Whether frames that are out of distribution are never a success."""
    ends_online: bool = False
    """Whether a success also resets the environment; `ends` is then called at every step."""

    def ends(self, obs_next: Any, done: np.ndarray, real: np.ndarray, memory: Any) -> np.ndarray:
        """Return which episodes end at this step; scores are kept in the memory for `annotate`.

        Args:
            obs_next: Next observations [n_envs, ...].
            done: Which episodes ended in the environment [n_envs].
            real: Which rows are transitions [n_envs].
            memory: State of the running episodes; updated.
        """
        raise NotImplementedError


class ReplayTransform:
    """Changes sampled transitions before rewards are computed, for example by relabelling."""

    def apply(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:
        """Return changed transitions [B, ...] or segments [T, B, ...] at indices of a buffer."""
        raise NotImplementedError


class ReplaySource:
    """Adds transitions to the samples of an off-policy policy, as SQIL does."""

    def mixed(self, buffer: Any) -> Any:
        """Return the buffer that the policy samples from; called after every collect."""
        raise NotImplementedError


REWARDS: Registry[type[RewardModel]] = Registry("reward", "guerdon.reward")
register_reward_model = REWARDS.register
"""Register a reward model under a name: as a decorator, or as a call with the class."""


def create_reward_model(cfg: Mapping[str, Any], setting: Setting | None = None) -> RewardModel:
    """Make the reward model of ``cfg["type"]``."""
    if "type" not in cfg:
        names = ", ".join(REWARDS.names())
        raise ValueError(f"a reward model's config needs 'type': one of {names}")
    return REWARDS.get(cfg["type"]).create(cfg, setting or Setting())


def check_requirements(
    name: str, requires: Iterable[str], setting: Setting, config: Any, cotrain: bool = True
) -> None:
    """Raise an error if a run does not meet the requirements of a term."""
    offers = {
        "demonstrations": True,  # `load_expert_data` checks its source
        "density": setting.log_prob is not None or not cotrain,
        "replay": not setting.on_policy,
        "checkpoint": setting.checkpoint_path is not None,
        "horizon": (getattr(config, "horizon", None) or setting.horizon) is not None,
        "goals": _has_goals(setting.observation_space),
        "vectors": not _has_images(setting.observation_space),
    }
    for requirement in sorted(requires):
        if not offers[requirement]:
            raise ValueError(f"the reward {name!r} {REQUIREMENTS[requirement]}")


def _has_goals(space: Any) -> bool:
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    achieved, desired = parts.get("achieved_goal"), parts.get("desired_goal")
    return achieved is not None and desired is not None and achieved.shape == desired.shape


def _has_images(space: Any) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(_has_images(part) for part in part_spaces(space).values())
    return space is not None and is_image(space)


def as_rewards(value: Any, like: torch.Tensor, name: str = "") -> torch.Tensor:
    """Convert rewards to a float tensor with the device and shape of others.

    Args:
        value: A tensor, an array or one number.
        like: Rewards of the same transitions.
        name: Name of the reward model, for the error message.
    """
    unchanged = value is like  # such as the environment's reward
    if unchanged and like.dtype == torch.float32:
        return like
    if isinstance(value, bool | int | float):  # filling does not synchronise, copying does
        return torch.full_like(like, float(value), dtype=torch.float32)
    try:
        rewards = torch.as_tensor(value, dtype=torch.float32, device=like.device)
    except (TypeError, ValueError):
        rewards = None
    if rewards is None or (rewards.ndim and rewards.shape != like.shape):
        raise ValueError(
            f"the reward model {name!r} returns {describe(value)} for transitions of shape "
            f"{tuple(like.shape)}: its score() has to return a number for each, or one for all"
        )
    return rewards.expand(like.shape)


def state_of(part: Any) -> Any:
    """Return a copy of the state of a part; other values as they are."""
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, Batch):
        return copy.deepcopy(part.to_dict())
    if hasattr(part, "training_state"):
        return part.training_state()
    return copy.deepcopy(part.state_dict() if hasattr(part, "state_dict") else part)


def restored(part: Any, state: Any) -> Any:
    """Return a part with another state; updated in place if it has a state of its own."""
    if isinstance(part, Batch):
        return Batch(copy.deepcopy(state))
    if isinstance(part, np.random.Generator):
        part.bit_generator.state = state
    elif isinstance(part, torch.Generator):
        part.set_state(state)
    elif hasattr(part, "load_training_state"):
        part.load_training_state(state)
    elif hasattr(part, "load_state_dict"):
        part.load_state_dict(state)
    else:
        return copy.deepcopy(state)
    return part


def space_of(rows: Any, name: str) -> Any:
    """Return a space that contains rows [N, ...]."""
    if isinstance(rows, Batch):
        return spaces.Dict({key: space_of(part, f"{name}.{key}") for key, part in rows.items()})
    rows = rows.numpy(force=True) if isinstance(rows, torch.Tensor) else np.asarray(rows)
    if name == "act" and rows.dtype.kind in "iub":
        raise ValueError(
            "the number of actions of these demonstrations is unknown: set their 'action_space', "
            "for example to gymnasium.spaces.Discrete(n)"
        )
    if rows.dtype == np.uint8:
        return spaces.Box(0, 255, rows.shape[1:], np.uint8)
    return spaces.Box(-np.inf, np.inf, rows.shape[1:], np.float32)

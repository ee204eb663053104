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
from guerdon.data.spaces import part_spaces
from guerdon.nn.optimizer import Optimizer
from guerdon.nn.spaces import is_image
from guerdon.reward.transitions import as_rollout, from_items, rows_before, with_rewards

Metrics = dict[str, Any]
"""Numbers, or tensors of one number."""


class RewardConfig(Section):
    """Options of every reward model."""

    type: str = ""
    """The registered name."""

    @classmethod
    def env_weight(cls, options: Mapping[str, Any]) -> float:  # noqa: ARG003 - for ensembles
        """Weight of the environment's reward beside a model that is configured alone."""
        return 0.0


@dataclass(frozen=True)
class Setting:
    """The run that a reward model is for."""

    observation_space: Any = None
    """Observation space of one environment."""
    action_space: Any = None
    """Action space of one environment."""
    n_envs: int = 1
    """Number of environments that collect."""
    gamma: float = 0.99
    """Discount of the policy."""
    seed: int = 0
    """Random seed."""
    device: str = "cpu"
    """Device of the networks."""
    on_policy: bool = True
    """Whether the policy learns on-policy."""
    horizon: int | None = None
    """Maximum length of an episode, where there is a limit."""
    log_prob: Callable[[Any, Any], torch.Tensor] | None = None
    """Log-probability of actions (second) at observations (first); None without a density."""
    example: Callable[[], Any] | None = None
    """Returns one of the environments, to be asked what it can compute, not to be stepped."""
    checkpoint_path: str | None = None
    """Checkpoint that the reward is loaded from, if any."""

    @classmethod
    def of(cls, data: Demonstrations, **options: Any) -> Self:
        """The setting of demonstrations, for a model that is used outside a run."""
        rows = data.transitions()
        return cls(
            data.observation_space or _space_of(rows.obs, "obs"),
            data.action_space or _space_of(rows.act, "act"),
            **options,
        )


REQUIREMENTS = {
    "demonstrations": "learns from demonstrations: name them in 'expert_data_path'",
    "density": (
        "needs the log-probability of actions, which this policy does not have: use ppo, a2c or sac"
    ),
    "replay": "needs a policy with a replay buffer: use dqn, ddpg, td3 or sac",
    "checkpoint": (
        "has to be fitted beforehand: run `guerdon reward fit`, and name its folder as "
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
        "compares numbers, but observations hold images: use gail or red, or an environment with "
        "vectors"
    ),
}
"""What a reward model may require of a run, as the end of an error message."""


class Stateful:
    """Saves and restores some of its attributes."""

    saved: tuple[str, ...] | None = None
    """Names of these attributes; by default networks, optimizers, generators, and whatever has a
    `training_state` itself."""

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume, as copies."""
        return {name: _state_of(getattr(self, name)) for name in self._saved_names()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`."""
        for name in self._saved_names():
            setattr(self, name, _restored(getattr(self, name), state[name]))

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

    A subclass implements `score`, which is pure: state changes in `collect_data`, `pretrain` and
    `train` alone. It builds its networks in the constructor. Its options are an instance of
    `Config`, or a dictionary for one.
    """

    Config: ClassVar[type[RewardConfig]] = RewardConfig
    fields: tuple[str, ...] = ()
    """Fields of a transition that `score` reads, beside ``rew``."""
    collects: tuple[str, ...] = ()
    """Fields of fresh transitions that `collect_data` reads; none: it needs no fresh data."""
    requires: ClassVar[frozenset[str]] = frozenset()
    """What a run has to offer; keys of `REQUIREMENTS`."""
    can_pretrain: bool = False
    """Whether it can be trained before the policy acts."""
    history: int = 0
    """Number of earlier rows of the same episode that `score` reads: ``batch.before``, with one
    more dimension after the leading ones, oldest first, and ``batch.before.mask``."""

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
        """Make a model of this class as a term of a reward."""
        return cls(config, setting)

    @classmethod
    def requirements(cls, config: Any) -> frozenset[str]:  # noqa: ARG003 - for subclasses
        """What a run has to offer for a model with this config."""
        return cls.requires

    @property
    def name(self) -> str:
        """The registered name, for messages."""
        return self.config.type or type(self).__name__.lower()

    @property
    def fitted(self) -> bool:
        """Whether `score` is of use yet; models without anything to learn always are."""
        return True

    # --- scoring

    def score(self, batch: Batch) -> Any:
        """Return the rewards of transitions [...], tensors on `device`: a tensor, or one number."""
        raise NotImplementedError(f"{type(self).__name__} does not implement score()")

    def complete(self, batch: Batch) -> Batch:
        """Add what `score` reads beside `fields` to transitions [T, ...] that are in no buffer.

        They are in time order, and the first of them begin episodes.
        """
        if self.history and "before" not in batch:
            before = rows_before(as_rollout(batch, self.fields), self.history, self.fields)
            lead = batch.rew.shape
            before = before.apply(lambda leaf: leaf.reshape(*lead, *leaf.shape[2:]))
            batch = batch.replace(before=before)
        return batch

    @torch.no_grad()
    def estimate(self, data: Any) -> Any:
        """Return a copy of transitions with ``rew`` as the model scores them.

        They are a `Batch` [T, ...] in time order, or a list of dictionaries with ``obs``,
        ``action``, ``next_obs``, ``reward`` and ``done``.
        """
        batch = data if isinstance(data, Batch) else from_items(data)
        if not np.ndim(batch.rew):
            return self.estimate(Batch.stack([batch]))[0]
        complete = self.complete(batch).to_device(self.device)
        rew: Any = as_rewards(self.score(complete), complete.rew)
        if not isinstance(batch.rew, torch.Tensor):
            rew = rew.numpy(force=True)
        return batch.replace(rew=rew) if batch is data else with_rewards(data, rew)

    # --- learning

    def collect_data(self, batch: Batch) -> None:
        """Take fresh transitions.

        Args:
            batch: NumPy arrays [T, n_envs, ...] in time order with the fields of `collects`,
                ``rew``, ``terminated``, ``truncated``, ``mask`` (which rows are transitions) and
                ``first`` (which rows begin an episode).
        """

    def prepare(self) -> None:
        """Read data that `train` needs, so that missing data is reported before a run starts."""

    def pretrain(self) -> Metrics | None:
        """Train before the policy acts, on the data that is there by then."""

    def train(self) -> Metrics | None:
        """Train on what was collected; return metrics, or None if there was nothing to do."""

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Drop collected data, if it is time to, after so many policy updates."""

    def load_expert_data(self, demonstrations: Any = None) -> None:  # noqa: ARG002
        """Take demonstrations."""
        raise TypeError(f"{self.name} does not learn from demonstrations")

    # --- state

    def portable_state(self) -> dict[str, Any]:
        """What another run can start from: without what belongs to this run alone."""
        return self.training_state()

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state` or `portable_state`."""
        names = self._saved_names()
        if state.keys() != set(names):
            raise ValueError(f"{self.name} has the state {names}, but was given {list(state)}")
        super().load_training_state(state)


class EpisodeRewardModel(RewardModel):
    """A reward model whose rewards depend on what came before in the episode.

    Fresh transitions are annotated once, in time order; the columns are stored beside them, and
    `score` reads them as fields of the batch. The state of running episodes is a *memory* that the
    caller owns: training, evaluations and wrapped environments each have their own.
    """

    reads: tuple[str, ...] = ()
    """Fields of fresh transitions that `annotate` reads."""
    annotations: tuple[str, ...] = ()
    """Columns of `annotate` that are stored; others reach `collect_data` alone."""

    def new_memory(self, n_envs: int) -> Any:
        """The state of episodes that have not begun."""
        raise NotImplementedError

    def annotate(self, batch: Batch, memory: Any) -> tuple[dict[str, np.ndarray], Any]:
        """Annotate transitions; changes nothing but the memory.

        Args:
            batch: See `collect_data`; with the fields of `reads`.
            memory: The state of the running episodes. Where ``batch.first`` is True it starts anew.

        Returns:
            Columns [T, n_envs, ...] by name, and the memory after them.
        """
        raise NotImplementedError

    def complete(self, batch: Batch) -> Batch:
        """See `RewardModel`: adds the annotations of whole episodes."""
        batch = super().complete(batch)
        if all(name in batch for name in self.annotations):
            return batch
        fields = *self.fields, *self.reads, *self.annotations  # some of these may be given
        rollout = as_rollout(batch.to_numpy(), fields)
        found, _ = self.annotate(rollout, self.new_memory(rollout.rew.shape[1]))
        columns, lead = {name: found[name] for name in self.annotations}, batch.rew.shape
        shaped = {name: part.reshape(*lead, *part.shape[2:]) for name, part in columns.items()}
        return batch.replace(**shaped)


class SuccessModel(EpisodeRewardModel):
    """A reward model that decides what a success is, and so where an episode ends.

    Its columns include ``predicted`` (predicted success), ``paid`` (a success that is rewarded) and
    ``after_success``: rows that come after a success in their episode, from which nothing learns.
    """

    ends_episodes: bool = True
    """Whether a success ends the episode for the learner."""
    ends_online: bool = False
    """Whether a success also resets the environment; then `ends` is called at every step."""

    def ends(self, obs_next: Any, done: np.ndarray, real: np.ndarray, memory: Any) -> np.ndarray:
        """Which episodes the newest step ends; scores are kept in the memory for `annotate`.

        Args:
            obs_next: Next observations [n_envs, ...].
            done: Which episodes ended anyway [n_envs].
            real: Which rows are transitions [n_envs].
            memory: The state of the running episodes; changed.
        """
        raise NotImplementedError


class ReplayTransform:
    """Changes sampled transitions before rewards are computed, as hindsight relabelling does."""

    def apply(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:
        """Return transitions [B, ...] or segments [T, B, ...] at indices of a buffer, changed."""
        raise NotImplementedError


class ReplaySource:
    """Adds transitions to what an off-policy policy samples, as SQIL does with demonstrations."""

    def mixed(self, buffer: Any) -> Any:
        """Return what the policy samples from instead of the buffer; called after every collect."""
        raise NotImplementedError


REWARDS: Registry[type[RewardModel]] = Registry("reward", "guerdon.reward")
register_reward_model = REWARDS.register
"""Makes a reward model known by a name: as a decorator, or as a call with the class."""


def create_reward_model(cfg: Mapping[str, Any], setting: Setting | None = None) -> RewardModel:
    """Make the reward model that ``cfg["type"]`` names."""
    if "type" not in cfg:
        names = ", ".join(REWARDS.names())
        raise ValueError(f"a reward model's config needs 'type': one of {names}")
    return REWARDS.get(cfg["type"]).create(cfg, setting or Setting())


def check_requirements(
    name: str, requires: Iterable[str], setting: Setting, config: Any, cotrain: bool = True
) -> None:
    """Raise an error if a run does not offer what a term requires: keys of `REQUIREMENTS`."""
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


def as_rewards(value: Any, like: torch.Tensor) -> torch.Tensor:
    """Rewards as a float tensor on the device and of the shape of others."""
    unchanged = value is like  # as the environment's is
    if unchanged and like.dtype == torch.float32:
        return like
    if isinstance(value, bool | int | float):  # filling does not wait for a device, copying does
        return torch.full_like(like, float(value), dtype=torch.float32)
    rewards = torch.as_tensor(value, dtype=torch.float32, device=like.device)
    return rewards.expand(like.shape)


def _state_of(part: Any) -> Any:
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, Batch):
        return copy.deepcopy(part.to_dict())
    if hasattr(part, "training_state"):
        return part.training_state()
    return copy.deepcopy(part.state_dict() if hasattr(part, "state_dict") else part)


def _restored(part: Any, state: Any) -> Any:
    """A part with another state; the same object, if it has a state of its own."""
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


def _space_of(rows: Any, name: str) -> Any:
    """A space that rows [N, ...] come from."""
    if isinstance(rows, Batch):
        return spaces.Dict({key: _space_of(part, f"{name}.{key}") for key, part in rows.items()})
    rows = rows.numpy(force=True) if isinstance(rows, torch.Tensor) else np.asarray(rows)
    if name == "act" and rows.dtype.kind in "iub":
        raise ValueError(
            "these demonstrations do not say how many actions there are: set their 'action_space', "
            "for example to gymnasium.spaces.Discrete(n)"
        )
    if rows.dtype == np.uint8:
        return spaces.Box(0, 255, rows.shape[1:], np.uint8)
    return spaces.Box(-np.inf, np.inf, rows.shape[1:], np.float32)

"""What a reward model is, and how one is found by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict

from guerdon.config.attr_dict import AttrDict
from guerdon.config.registry import Registry
from guerdon.config.validation import validated
from guerdon.data.batch import Batch
from guerdon.reward import items
from guerdon.reward.history import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from guerdon.data.demonstrations import Demonstrations

Metrics = dict[str, Any]
"""Numbers, or tensors of one number."""


class RewardConfig(BaseModel):
    """What every reward model can be told."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    type: str = ""
    """The registered name."""


@dataclass(frozen=True)
class Setting:
    """What a reward model is told about the run that it is for."""

    observation_space: Any
    """Of one environment."""
    action_space: Any
    """Of one environment."""
    n_envs: int = 1
    """Environments that collect."""
    gamma: float = 0.99
    """The policy's discount."""
    seed: int = 0
    """Of everything that the model draws."""
    on_policy: bool = True
    """Whether the policy learns from whole rollouts of its newest self."""
    horizon: int | None = None
    """The most steps that an episode can have, where there is a limit."""
    log_prob: Callable[[Any, Any], torch.Tensor] | None = None
    """The log-probability of actions (second) at observations (first) under the policy as it is,
    where it has a density."""
    example: Callable[[], Any] | None = None
    """Gives one of the environments, to be asked what it knows, and not to be stepped."""

    @classmethod
    def of(cls, data: Batch, demonstrations: Demonstrations | None = None) -> Setting:
        """What transitions say of their environment, for a model that is used on its own.

        Args:
            data: The transitions.
            demonstrations: Where they are from, which may know the spaces.
        """
        obs = getattr(demonstrations, "observation_space", None)
        act = getattr(demonstrations, "action_space", None)
        return cls(
            obs or _space_of(data.obs, data.rew), act or _space_of(data.act, data.rew, actions=True)
        )


class RewardModel:
    """Turns transitions into what the learner shall believe they are worth.

    `estimate` is pure: whatever changes does so in `collect_data`, `scan` and `train`. A subclass
    writes `score`; one that needs networks makes them in `setup`.

    Args:
        config: Its options, an instance of its `Config` or a dictionary for one.
        device: Where its networks live.
        tb_logger: Where it may write scalars of its own, as a TensorBoard writer does.
    """

    Config: ClassVar[type[RewardConfig]] = RewardConfig
    fields: tuple[str, ...] = ()
    """The fields of a transition that `estimate` and `collect_data` read, beside ``rew``."""
    with_env: ClassVar[bool] = False
    """Whether it is a bonus: written flat in a config, the environment's reward comes with it."""
    learns: bool = False
    """Whether it wants fresh data, and training."""
    imitates: bool = False
    """Whether it learns from demonstrations, which `load_expert_data` takes."""
    history: int = 0
    """How many rows before a transition it reads: they are ``data.before``, oldest first, with one
    more dimension after the leading ones; ``data.before.mask`` tells which there are in the same
    episode."""
    episodic: bool = False
    """Whether what a transition is worth depends on those before it in its episode; then `scan` is
    shown all of them in order, and what it says is stored beside them."""
    scans: tuple[str, ...] = ()
    """Fields that `scan` and `collect_data` read beside `fields`."""
    decides: bool = False
    """Whether it decides what is a success: a transition that it pays for is the last of its
    episode, and `scan` says a negative number of those that come after."""
    ends_online: bool = False
    """Whether a success is to end the episode in the environment, too: see `verdicts`."""
    needs_checkpoint: bool = False
    """Whether it has to be fitted beforehand, and is loaded from ``reward.checkpoint_path``."""
    absorbing: bool = False
    """Whether it pays, at an end, for all the time after it."""
    needs_log_prob: bool = False
    """Whether the policy has to have a density."""
    off_policy: bool = False
    """Whether it needs a policy that learns from a replay buffer."""

    def __init__(
        self, config: RewardConfig | Mapping[str, Any], device: str = "cpu", tb_logger: Any = None
    ) -> None:
        if not isinstance(config, RewardConfig):
            config = validated(self.Config, config, "reward")
        self.config: Any = config
        self.device = device
        self.tb_logger = tb_logger

    @classmethod
    def with_env_for(cls, options: Mapping[str, Any]) -> bool:  # noqa: ARG003 - for ensembles
        """Whether the environment's reward comes with it, if it has these options."""
        return cls.with_env

    @property
    def pretrains(self) -> bool:
        """Whether `pretrain` does anything."""
        return type(self).pretrain is not RewardModel.pretrain

    def setup(self, setting: Setting) -> None:
        """Is told what run it is for, once and before anything else."""

    # --- what transitions are worth

    def estimate(self, data: Any) -> Any:
        """The same transitions with the reward as the model sees it; the input stays as it is.

        Args:
            data: A `Batch` with any leading dimensions, or a list of dictionaries
                (``obs``, ``action``, ``next_obs``, ``reward``, ``done``).
        """
        batch = data if isinstance(data, Batch) else items.to_batch(data)
        shown = batch
        if self.history and "before" not in batch:  # rows [T, ...] are taken to be in time order
            shown = batch.replace(before=alone(batch, self))
        rew = as_rewards(self.score(shown), batch.rew)
        return batch.replace(rew=rew) if batch is data else items.with_rewards(data, rew)

    def score(self, data: Batch) -> Any:
        """What transitions are worth: an array, a tensor or a number, in the shape of ``rew``."""
        raise NotImplementedError(f"{type(self).__name__} has neither score() nor estimate()")

    def scan(self, data: Batch) -> np.ndarray:
        """Looks at a fresh rollout [T, n_envs, ...] in time order, where the model is episodic.

        Returns:
            A number for each transition [T, n_envs]; `score` finds it again as ``data.scanned``.
        """
        raise NotImplementedError(f"{type(self).__name__} is episodic, but has no scan()")

    def relabel(self, data: Batch, rows: np.ndarray, buffer: Any) -> Batch:  # noqa: ARG002
        """Other goals for transitions that were read, before anything is made of them.

        Args:
            data: What was read.
            rows: Where: row numbers.
            buffer: From which buffer.
        """
        return data

    def wrap_buffer(self, buffer: Any) -> Any:
        """What an off-policy policy shall read from; asked again after each round of collecting.

        Args:
            buffer: The collector's, with a transition or more.
        """
        return buffer

    def verdicts(self, obs_next: Any, done: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Which environments the newest step brought a success, where they are then ended.

        Args:
            obs_next: Its next observations [n_envs, ...].
            done: Which episodes it ended anyway [n_envs].
            real: Which rows are transitions [n_envs].
        """
        raise NotImplementedError(f"{type(self).__name__} ends no episodes")

    # --- learning

    def prepare_training(self) -> None:
        """Sees that all is there that `train` will need, before anything is begun."""

    def collect_data(self, data: Any) -> None:
        """Takes a fresh rollout [T, n_envs, ...] in time order, with ``mask`` and ``cut``."""

    def pretrain(self) -> Metrics | None:
        """Fits the model before the policy acts at all, to the data that it has by then."""

    def train(self) -> Metrics | None:
        """Fits the model to what it has collected.

        Returns:
            What can be said about it; None if there was nothing to do.
        """

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Forgets collected data, if it is time to."""

    def load_expert_data(self, data: Any = None) -> None:  # noqa: ARG002 - for subclasses
        """Takes demonstrations, where the model learns from them."""
        raise TypeError(f"{type(self).__name__} does not learn from demonstrations")

    def break_off(self, env_ids: np.ndarray | None = None) -> None:
        """The running episodes of some environments (None: all) will not go on."""

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        return {}

    def portable(self, state: dict[str, Any]) -> dict[str, Any]:
        """What of its state another run can begin with: not what belongs to this run alone."""
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given {list(state)}")


REWARDS: Registry[type[RewardModel]] = Registry("reward", "guerdon.reward")


register_reward_model = REWARDS.register
"""Makes a reward model known by a name: as a decorator, or as a call with the class."""


def create_reward_model(
    cfg: Mapping[str, Any], device: str = "cpu", tb_logger: Any = None
) -> RewardModel:
    """Makes the reward model that ``cfg["type"]`` names."""
    if "type" not in cfg:
        raise ValueError(
            f"a reward model's config needs 'type': one of {', '.join(REWARDS.names())}"
        )
    return REWARDS.get(cfg["type"])(AttrDict(cfg), device, tb_logger)


def as_rewards(value: Any, like: Any) -> Any:
    """Rewards of the kind (array, or tensor and its device) and shape that others have."""
    if isinstance(like, torch.Tensor):
        value = torch.as_tensor(value, dtype=torch.float32, device=like.device)
        return value.expand(like.shape)
    if isinstance(value, torch.Tensor):
        value = value.numpy(force=True)
    return np.broadcast_to(np.asarray(value, np.float32), like.shape)


def _space_of(values: Any, rew: Any, actions: bool = False) -> Any:
    """A space that values come from; `rew` tells how many dimensions come before theirs."""
    if isinstance(values, Batch):
        return spaces.Dict({key: _space_of(part, rew) for key, part in values.items()})
    values = values.numpy(force=True) if isinstance(values, torch.Tensor) else np.asarray(values)
    shape = values.shape[rew.ndim :]
    if actions and not shape and values.dtype.kind in "iub":
        return spaces.Discrete(int(values.max(initial=0)) + 1)
    if values.dtype == np.uint8:
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)

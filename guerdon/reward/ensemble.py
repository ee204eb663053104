"""Several reward models of one kind as one, which knows where they disagree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field, field_validator

from guerdon.config.errors import ConfigError
from guerdon.config.validation import validated
from guerdon.data.batch import Batch
from guerdon.reward import items
from guerdon.reward.base import (
    REWARDS,
    Metrics,
    RewardConfig,
    RewardModel,
    Setting,
    create_reward_model,
    register_reward_model,
)
from guerdon.reward.guide import Scalars, adapted

if TYPE_CHECKING:
    from guerdon.data.demonstrations import Demonstrations


class EnsembleConfig(RewardConfig):
    """Options of `ensemble`."""

    of: dict[str, Any]
    """The section of a member: ``{type: gail, ...}``."""
    members: int = Field(default=3, ge=1)
    """How many; 3 to 7. Each draws from a seed of its own."""
    pessimism: float = 0.0
    """How many times the members' spread is taken off their mean; 0 to 2. Below 0 it is added, and
    rewards what is unknown."""

    @field_validator("of", mode="after")
    @classmethod
    def _check_member(cls, of: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(of.get("type"), str):
            raise ConfigError(
                f"'of' of an ensemble needs 'type': one of {', '.join(REWARDS.names())}"
            )
        model = REWARDS.get(of["type"])
        if model.needs_checkpoint:
            raise ConfigError(
                f"{of['type']!r} is an ensemble by itself: fit several classifiers at once with "
                "`guerdon reward fit ... reward.members=3`"
            )
        if _changes_data(model):
            raise ConfigError(
                f"{of['type']!r} changes what is learned from, so there can be no ensemble of it"
            )
        return validated(model.Config, of, "of").model_dump()


@register_reward_model("ensemble")
class EnsembleReward(RewardModel):
    """The mean of its members' estimates, less a part of their spread.

    Of episodic members, what they say of a transition is what they said when it was collected.

    Attributes:
        members: The reward models.
    """

    Config = EnsembleConfig

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        self.members = [
            _member(self.config.of, device, tb_logger) for _ in range(self.config.members)
        ]
        first = self.members[0]
        self.fields = first.fields
        self.learns, self.imitates = first.learns, first.imitates
        self.episodic, self.off_policy = first.episodic, first.off_policy
        self.needs_log_prob, self.absorbing = first.needs_log_prob, first.absorbing
        self.history = first.history
        self._fresh: Batch | None = None

    @classmethod
    def with_env_for(cls, options: Mapping[str, Any]) -> bool:
        """Whether the members are bonuses, so that the environment's reward comes with them.

        Args:
            options: The section of an ensemble, not validated.
        """
        of = options.get("of")
        if not isinstance(of, Mapping) or of.get("type") not in REWARDS.names():
            return False
        member = REWARDS.get(of["type"])
        return cls.with_env_for(of) if issubclass(member, cls) else member.with_env

    def setup(self, setting: Setting) -> None:
        """Sets up every member with a seed of its own."""
        seeds = np.random.SeedSequence(setting.seed).generate_state(len(self.members))
        for member, seed in zip(self.members, seeds, strict=True):
            member.setup(replace(setting, seed=int(seed)))
        self.fields = self.members[0].fields

    # --- what transitions are worth

    def score(self, data: Batch) -> Any:
        """The mean, less `pessimism` times the spread."""
        if self.episodic and "scanned" in data:
            return data.scanned
        return self._joined([member.estimate(data).rew for member in self.members])

    def scan(self, data: Batch) -> np.ndarray:
        """What `score` gives, with what every member saw in the episode before."""
        said = [
            member.estimate(data.replace(scanned=member.scan(data))).rew for member in self.members
        ]
        return np.asarray(self._joined(said))

    def _joined(self, said: list[Any]) -> Any:
        mean, spread = _moments(said)
        return mean - self.config.pessimism * spread if self.config.pessimism else mean

    # --- learning

    def collect_data(self, data: Any) -> None:
        """Gives every member the data."""
        for member in self.members:
            member.collect_data(data)
        rows = data[np.asarray(data.mask)] if isinstance(data, Batch) else items.to_batch(data)
        self._fresh = rows if len(rows.rew) else None

    @property
    def pretrains(self) -> bool:
        """Whether members can be trained before the policy acts."""
        return any(member.pretrains for member in self.members)

    def pretrain(self) -> Metrics | None:
        """Lets every member learn from the data it has."""
        return _joint_metrics([member.pretrain() for member in self.members])

    def train(self) -> Metrics | None:
        """Lets every member learn; with ``spread``, that of their estimates of the newest data."""
        metrics = _joint_metrics([member.train() for member in self.members])
        if metrics is None or self._fresh is None or self.episodic:
            return metrics
        _, spread = _moments([member.estimate(self._fresh).rew for member in self.members])
        return metrics | {"spread": spread.mean()}

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Lets every member forget."""
        for member in self.members:
            member.clear_data(iter)

    def load_expert_data(self, data: Any = None) -> None:
        """Gives every member the demonstrations, which are read once where that is possible."""
        for member in self.members:
            member.load_expert_data(data)
            data = getattr(member, "demonstrations", None) or data

    @property
    def demonstrations(self) -> Demonstrations | None:
        """What its members learn from, where they keep that."""
        return getattr(self.members[0], "demonstrations", None)

    def break_off(self, env_ids: np.ndarray | None = None) -> None:
        """Tells every member."""
        for member in self.members:
            member.break_off(env_ids)

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """The states of the members."""
        return {"members": [member.state_dict() for member in self.members]}

    def portable(self, state: dict[str, Any]) -> dict[str, Any]:
        """See `RewardModel`."""
        parts = zip(self.members, state["members"], strict=True)
        return {"members": [member.portable(part) for member, part in parts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        if len(state["members"]) != len(self.members):
            raise ValueError(
                f"the saved ensemble has {len(state['members'])} members, but this one has "
                f"{len(self.members)}"
            )
        for member, part in zip(self.members, state["members"], strict=True):
            member.load_state_dict(part)


def _changes_data(model: type[RewardModel]) -> bool:
    methods = ("relabel", "wrap_buffer")
    return any(getattr(model, name) is not getattr(RewardModel, name) for name in methods)


def _member(section: dict[str, Any], device: str, tb_logger: Any) -> RewardModel:
    scalars = Scalars()
    return adapted(create_reward_model(section, device, tb_logger or scalars), scalars)


def _moments(said: list[Any]) -> tuple[Any, Any]:
    """The mean and the spread of several estimates, arrays or tensors."""
    if isinstance(said[0], torch.Tensor):
        spread, mean = torch.std_mean(torch.stack(said), 0, correction=0)
        return mean, spread
    stacked = np.stack(said)
    return stacked.mean(0), stacked.std(0)


def _joint_metrics(found: list[Metrics | None]) -> Metrics | None:
    """The means of what members that had something to do say."""
    told = [metrics for metrics in found if metrics]
    if not told:
        return None
    return {
        name: sum(metrics[name] for metrics in told) / len(told)
        for name in told[0]
        if all(name in metrics for metrics in told)
    }

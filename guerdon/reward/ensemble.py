"""Ensembles of reward models of one type."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import Field, field_validator

from guerdon.config.errors import ConfigError
from guerdon.config.validation import validated
from guerdon.data.batch import Batch
from guerdon.data.demonstrations import Demonstrations
from guerdon.data.loading import load_demonstrations
from guerdon.reward.base import (
    REWARDS,
    EpisodeRewardModel,
    Metrics,
    ReplaySource,
    ReplayTransform,
    RewardConfig,
    RewardModel,
    Setting,
    SuccessModel,
    as_rewards,
    create_reward_model,
    register_reward_model,
)
from guerdon.reward.ood import Reference


class EnsembleConfig(RewardConfig):
    """Options of `ensemble`."""

    of: dict[str, Any]
    """Options of a member: ``{type: gail, ...}``."""
    members: int = Field(default=3, ge=1)
    """Number of members, each with its own seed; usually 3 to 7."""
    pessimism: float = 0.0
    """Multiple of the members' standard deviation that is subtracted from their mean; usually 0 to
    2. A negative value rewards uncertainty."""

    @field_validator("of", mode="after")
    @classmethod
    def _check_member(cls, of: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(of.get("type"), str):
            names = ", ".join(REWARDS.names())
            raise ConfigError(f"'of' of an ensemble needs 'type': one of {names}")
        kind, options = _member(of)
        if "checkpoint" in kind.requirements(options):
            raise ConfigError(
                f"{of['type']!r} is an ensemble by itself: fit several classifiers at once with "
                "`guerdon reward fit ... reward.members=3`"
            )
        if issubclass(kind, ReplayTransform | ReplaySource | SuccessModel):
            raise ConfigError(
                f"{of['type']!r} changes the training data, so it cannot be a member of an ensemble"
            )
        return options.model_dump()

    @property
    def absorbing(self) -> bool:
        """Whether members score absorbing states."""
        return getattr(_member(self.of)[1], "absorbing", False)

    @classmethod
    def env_weight(cls, options: Mapping[str, Any]) -> float:
        """See `RewardConfig`; the weight for a member."""
        of = options.get("of")
        if not isinstance(of, Mapping) or of.get("type") not in REWARDS.names():
            return 0.0
        return REWARDS.get(of["type"]).Config.env_weight(of)


def _member(of: Mapping[str, Any]) -> tuple[type[RewardModel], RewardConfig]:
    """Return class and options of a member."""
    kind = REWARDS.get(of["type"])
    return kind, validated(kind.Config, of, "of")


@register_reward_model("ensemble")
class EnsembleReward(EpisodeRewardModel):
    """Mean of the members' rewards, minus a multiple of their standard deviation.

    Column ``name`` of the first member is ``0.name``.
    """

    Config = EnsembleConfig

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        seeds = np.random.SeedSequence(self.setting.seed).generate_state(self.config.members)
        settings = [replace(self.setting, seed=int(seed)) for seed in seeds]
        self.members: list[Any] = [create_reward_model(self.config.of, each) for each in settings]
        first = self.members[0]
        self.fields, self.history = first.fields, first.history
        self.reads = getattr(first, "reads", ())
        self.can_pretrain = first.can_pretrain
        if first.collects:  # `train` scores fresh data
            self.collects = tuple(dict.fromkeys((*first.collects, *first.fields)))
        numbers, names = range(len(self.members)), getattr(first, "annotations", ())
        self.annotations = tuple(f"{number}.{name}" for number in numbers for name in names)
        self._fresh: Batch | None = None
        self.reference = Reference()

    @classmethod
    def requirements(cls, config: Any) -> frozenset[str]:
        """See `RewardModel`; the requirements of a member."""
        kind, options = _member(config.of)
        return kind.requirements(options)

    @property
    def fitted(self) -> bool:
        """See `RewardModel`."""
        return all(member.fitted for member in self.members)

    @property
    def demonstrations(self) -> Demonstrations | None:
        """Demonstrations of the members, or None."""
        return getattr(self.members[0], "demonstrations", None)

    def score(self, batch: Batch) -> torch.Tensor:
        """Return the mean minus `pessimism` times the standard deviation."""
        mean, std = self._moments(batch)
        return mean - self.config.pessimism * std if self.config.pessimism else mean

    def _moments(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        scores = [m.score(_with_columns(batch, number)) for number, m in enumerate(self.members)]
        rewards = torch.stack([as_rewards(score, batch.rew, self.name) for score in scores])
        std, mean = torch.std_mean(rewards, 0, correction=0)
        return mean, std

    def disagreement(self, batch: Batch) -> torch.Tensor | None:
        """Return the standard deviation of the members' rewards."""
        return self._moments(batch)[1]

    def fitted_rows(self) -> Batch | None:
        """Return those of the first member, unless they have to be annotated."""
        rows = None if self.annotations else self.members[0].fitted_rows()
        if rows is None:
            return None
        number = len(rows[self.fields[0]])
        return Batch({**rows, "rew": torch.zeros(number, device=self.device)})

    def compared(self, batch: Batch) -> torch.Tensor:
        """See `RewardModel`; those of the first member."""
        first: RewardModel = self.members[0]
        return first.compared(batch)

    def update_reference(self) -> None:
        """See `RewardModel`; the data is that of the first member."""
        if not len(self.reference):
            self.reference.load_training_state(self.members[0].reference.training_state())
        super().update_reference()

    def ood(self, batch: Batch) -> torch.Tensor:
        """Return how unusual the members' disagreement is; without it, see `RewardModel`."""
        if not len(self.reference.disagreement):
            return super().ood(batch)
        return self.reference.disagrees(self._moments(batch)[1])

    def collect_data(self, batch: Batch) -> None:
        """Pass the data to every member."""
        for number, member in enumerate(self.members):
            member.collect_data(_with_columns(batch, number))
        fresh = self.complete(batch)[np.asarray(batch.mask)] if self.collects else None
        self._fresh = fresh if fresh and len(fresh.rew) else None

    def prepare(self) -> None:
        """See `RewardModel`."""
        for member in self.members:
            member.prepare()

    def pretrain(self) -> Metrics | None:
        """Pretrain every member."""
        return _mean([member.pretrain() for member in self.members])

    def train(self) -> Metrics | None:
        """Train every member; ``spread`` is their mean standard deviation on the newest data."""
        metrics = _mean([member.train() for member in self.members])
        if metrics and self._fresh is not None:
            _, std = self._moments(self._fresh.to_device(self.device))
            metrics["spread"] = std.mean()
        return metrics

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """See `RewardModel`."""
        for member in self.members:
            member.clear_data(iter)

    def load_expert_data(self, demonstrations: Any = None) -> None:
        """Set the demonstrations of every member; they are read once."""
        path = getattr(self.members[0].config, "expert_data_path", None)
        if demonstrations is None and path is not None:
            demonstrations = load_demonstrations(path)
        for member in self.members:
            member.load_expert_data(demonstrations)

    def training_state(self) -> dict[str, Any]:
        """See `RewardModel`."""
        members = [member.training_state() for member in self.members]
        return {"members": members, "reference": self.reference.training_state()}

    def portable_state(self) -> dict[str, Any]:
        """See `RewardModel`."""
        members = [member.portable_state() for member in self.members]
        return {"members": members, "reference": self.reference.training_state()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        found, wanted = len(state["members"]), len(self.members)
        if found != wanted:
            raise ValueError(f"the saved ensemble has {found} members, but this one has {wanted}")
        for member, part in zip(self.members, state["members"], strict=True):
            member.load_training_state(part)
        if "reference" in state:
            self.reference.load_training_state(state["reference"])

    # --- members that depend on the episode

    def new_memory(self, n_envs: int) -> list[Any]:
        """Return the memories of the members."""
        return [member.new_memory(n_envs) for member in self.members]

    def annotate(self, batch: Batch, memory: list[Any]) -> tuple[dict[str, np.ndarray], list[Any]]:
        """Annotate by every member."""
        columns: dict[str, np.ndarray] = {}
        memory = list(memory)
        for number, member in enumerate(self.members):
            found, memory[number] = member.annotate(batch, memory[number])
            columns |= {f"{number}.{name}": column for name, column in found.items()}
        return columns, memory


def _with_columns(batch: Batch, number: int) -> Batch:
    """Return a batch with the columns of one member, without prefix."""
    prefix = f"{number}."
    own = {name: column for name, column in batch.items() if name.startswith(prefix)}
    return batch.replace(**{name.removeprefix(prefix): column for name, column in own.items()})


def _mean(found: list[Metrics | None]) -> Metrics | None:
    """Return the mean metrics of the members that returned any."""
    reported = [metrics for metrics in found if metrics]
    if not reported:
        return None
    shared = [name for name in reported[0] if all(name in metrics for metrics in reported)]
    return {name: sum(metrics[name] for metrics in reported) / len(reported) for name in shared}

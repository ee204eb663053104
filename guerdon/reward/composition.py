"""The reward as the learner sees it: a weighted sum of terms, resolved when data is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from guerdon.data.batch import Batch
from guerdon.reward.base import REWARDS, RewardModel, create_reward_model
from guerdon.reward.scaling import ReturnScaler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guerdon.data import ReplayBuffer

STAGES = ("scale", "clip", "normalize")


class Term(NamedTuple):
    """One summand."""

    model: RewardModel
    weight: float


class Reward:
    """A weighted sum of reward models, and what is done to the sum.

    In every batch it resolves, ``rew`` is what the learner sees, ``rew_env`` what the environment
    paid, and ``rew_terms.<name>`` each term before its weight.

    Args:
        terms: The reward models by name, with their weights.
        scale: What the sum is multiplied with.
        clip: The bounds of the scaled sum, or None.
        normalize: Whether the sum is divided by the spread of its discounted return.
        gamma: The discount of that return.
    """

    def __init__(
        self,
        terms: Mapping[str, Term],
        *,
        scale: float = 1.0,
        clip: tuple[float, float] | None = None,
        normalize: bool = False,
        gamma: float = 0.99,
    ) -> None:
        if not terms:
            raise ValueError("a reward needs one term or more: {type: env} is the environment's")
        self.terms = dict(terms)
        self.scale = scale
        self.clip = clip
        self.scaler = ReturnScaler(gamma) if normalize else None
        self.fields = tuple(sorted({f for term in self.terms.values() for f in term.model.fields}))
        """The fields of a transition that `resolve` needs, beside ``rew``."""
        self.learns = normalize or any(term.model.learns for term in self.terms.values())
        """Whether it wants `collect_data` and `train`."""

    def resolve(self, batch: Batch) -> Batch:
        """The transitions with the reward that the learner shall believe; the input stays."""
        terms = {name: term.model.estimate(batch).rew for name, term in self.terms.items()}
        return batch.replace(
            rew=self._stages(self._sum(terms)), rew_env=batch.rew, rew_terms=Batch(**terms)
        )

    def _sum(self, terms: Mapping[str, Any]) -> Any:
        total: Any = None
        for name, rew in terms.items():
            weight = self.terms[name].weight
            term = rew if weight == 1.0 else weight * rew
            total = term if total is None else total + term
        return total

    def _stages(self, rew: Any) -> Any:
        scale = self.scale * (self.scaler.scale if self.scaler else 1.0)
        if scale != 1.0:
            rew = scale * rew
        return rew if self.clip is None else rew.clip(*self.clip)

    def view(self, buffer: ReplayBuffer) -> ResolvedBuffer:
        """The buffer as the learner shall see it."""
        return ResolvedBuffer(buffer, self)

    def collect_data(self, data: Batch) -> None:
        """Takes a fresh rollout [T, B, ...] in time order, with ``mask`` and ``cut``.

        Beside `fields` it has to have ``rew``, ``terminated`` and ``truncated``.
        """
        for term in self.terms.values():
            term.model.collect_data(data)
        if self.scaler:
            terms = {name: term.model.estimate(data).rew for name, term in self.terms.items()}
            mask = np.asarray(data.mask)
            self.scaler.collect(np.asarray(self._sum(terms)), _over(data, mask), mask)

    def train(self) -> None:
        """Fits every term to what it has collected."""
        for term in self.terms.values():
            term.model.train()

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Lets every term forget collected data, if it is time to."""
        for term in self.terms.values():
            term.model.clear_data(iter)

    def break_off(self) -> None:
        """All running episodes were broken off."""
        if self.scaler:
            self.scaler.break_off()

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        state = {"terms": {name: term.model.state_dict() for name, term in self.terms.items()}}
        return state | ({"scaler": self.scaler.state_dict()} if self.scaler else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        if list(state["terms"]) != list(self.terms):
            raise ValueError(
                f"the saved reward has the terms {list(state['terms'])}, "
                f"but this one has {list(self.terms)}"
            )
        for name, term in self.terms.items():
            term.model.load_state_dict(state["terms"][name])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])


def _over(data: Batch, mask: np.ndarray) -> np.ndarray:
    """Where episodes are over: one that is cut at its newest row goes on in the next rollout."""
    newest = mask & (np.cumsum(mask[::-1], axis=0)[::-1] == 1)
    ended = np.asarray(data.terminated) | np.asarray(data.truncated)
    over: np.ndarray = ended | (np.asarray(data.cut) & ~newest)
    return over


def make_reward(
    section: Mapping[str, Any], *, gamma: float = 0.99, device: str = "cpu", tb_logger: Any = None
) -> Reward:
    """The reward of a config section: ``{type: NAME, …}``, or ``{terms: {NAME: {weight: …}}}``."""
    section = dict(section)
    stages = {name: section.pop(name) for name in STAGES if name in section}
    terms = section.pop("terms", None)
    if terms is None:
        name = section.get("type", "env")
        terms = {name: section} | ({"env": {}} if REWARDS.get(name).with_env else {})
    elif section:
        raise ValueError(f"a reward with terms takes its options in them, not beside: {section}")
    made = {}
    for name, options in terms.items():
        options = {"type": name, **(options or {})}
        weight = options.pop("weight", 1.0)
        made[name] = Term(create_reward_model(options, device, tb_logger), weight)
    return Reward(made, gamma=gamma, **stages)


class ResolvedBuffer:
    """A buffer whose rewards are resolved as they are read; everything else is the buffer's own."""

    def __init__(self, buffer: ReplayBuffer, reward: Reward) -> None:
        self._buffer = buffer
        self._reward = reward

    def __len__(self) -> int:
        return len(self._buffer)

    def __getitem__(self, index: Any) -> Batch:
        return self._reward.resolve(self._buffer[index])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def get(self, index: Any, key: str, stack_num: int | None = None) -> Any:
        """One field at some rows."""
        if key.startswith("rew"):
            return self[index][key]
        return self._buffer.get(index, key, stack_num)

    def sample(
        self, batch_size: int, length: int = 1, fields: Sequence[str] | None = None
    ) -> tuple[Batch, np.ndarray]:
        """As `ReplayBuffer.sample`."""
        batch, rows = self._buffer.sample(batch_size, length, self._reads(fields))
        return self._reward.resolve(batch), rows

    def rollout(
        self, fields: Sequence[str] | None = None, since: np.ndarray | None = None
    ) -> tuple[Batch, np.ndarray]:
        """As `ReplayBuffer.rollout`."""
        batch, rows = self._buffer.rollout(self._reads(fields), since)
        return self._reward.resolve(batch), rows

    def _reads(self, fields: Sequence[str] | None) -> Sequence[str] | None:
        if fields is None:
            return None
        return tuple(dict.fromkeys((*fields, "rew", *self._reward.fields)))

    @property
    def rew(self) -> ResolvedRewards:
        """The rewards, to be indexed with row numbers."""
        return ResolvedRewards(self)


class ResolvedRewards:
    """What ``buffer.rew`` is for a learner: only the rows that are asked for are resolved."""

    def __init__(self, buffer: ResolvedBuffer) -> None:
        self._buffer = buffer

    def __getitem__(self, index: Any) -> Any:
        return self._buffer[index].rew

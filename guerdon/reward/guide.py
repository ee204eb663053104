"""Reward models written by DI-engine's guide: lists of dictionaries in and out."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from pydantic import ConfigDict

from guerdon.data.batch import Batch
from guerdon.reward import items
from guerdon.reward.base import Metrics, RewardConfig, RewardModel, Setting
from guerdon.reward.drawing import Draws

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_GIVEN = ("cfg", "config", "device", "tb_logger")
_PLAIN = (bool, int, float, str, type(None), torch.Tensor, np.ndarray, np.generic)
_LEFT_OUT = object()
# What a saved attribute was, where that is not seen: the only key of a dictionary.
_PART = "saved part"  # a network, an optimizer or a generator, which has to be there
_TRANSITIONS = "saved transitions"  # a list of them, as one array a key
_DEQUE = "saved deque"
_SET = "saved set"


class GuideConfig(RewardConfig):
    """Takes whatever options the model reads."""

    model_config = ConfigDict(extra="allow")


class BaseRewardModel(RewardModel, ABC):
    """What a reward model of the guide's style derives from.

    It is made with its config (keys are attributes), a device and a ``tb_logger``. Data are lists
    of dictionaries with tensors: ``obs``, ``action``, ``reward``, ``next_obs``, ``done``; actions
    and rewards that are single numbers have shape [1]. What it draws from torch, NumPy and Python's
    ``random`` while it is made and trained depends on the run's seed alone.
    """

    Config: ClassVar[type[RewardConfig]] = GuideConfig
    fields = ("obs", "act", "obs_next", "terminated")
    learns = True

    def __init__(self, config: Any = None, device: str = "cpu", tb_logger: Any = None) -> None:
        if config is not None:  # else a subclass keeps them itself
            self.cfg = config
            self.device = device
            self.tb_logger = tb_logger

    @abstractmethod
    def estimate(self, data: Any) -> Any:
        """The dictionaries with ``reward`` as the model sees it; they are copies already."""

    @abstractmethod
    def train(self) -> None:
        """Fits the model to what it has collected."""

    @abstractmethod
    def collect_data(self, data: Any) -> None:
        """Takes fresh transitions."""

    @abstractmethod
    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Forgets collected data, if it is time to."""

    def state_dict(self) -> dict[str, Any]:
        """Its networks, optimizers and generators, numbers, tensors, and lists of transitions."""
        found = {name: _saved(value) for name, value in vars(self).items() if name not in _GIVEN}
        lost = [
            name
            for name, value in found.items()
            if value is _LEFT_OUT and not callable(getattr(self, name))
        ]
        if lost:  # Python shows the same warning once
            warnings.warn(
                f"{', '.join(lost)} of the reward model {type(self).__name__} cannot be saved, and "
                f"will be as new when the run is resumed: write state_dict() and load_state_dict()",
                stacklevel=2,
            )
        return {name: value for name, value in found.items() if value is not _LEFT_OUT}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        for name, value in state.items():
            _restore(self, name, value)


class Scalars:
    """A ``tb_logger`` that keeps the newest value of each scalar, for the run's own log."""

    def __init__(self) -> None:
        self.newest: Metrics = {}

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Takes a value, as a TensorBoard writer does."""
        value = scalar_value.detach() if isinstance(scalar_value, torch.Tensor) else scalar_value
        self.newest[tag.rpartition("/")[2]] = value

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("add_"):
            raise AttributeError(f"a logger of reward models has no {name!r}")
        return lambda *_, **__: None  # histograms and so on, which a run's log does not show


class GuideAdapter(RewardModel):
    """A model of the guide's style as a part of a `Reward`.

    Args:
        model: The model.
        scalars: What it writes its scalars to.
    """

    learns = True

    def __init__(self, model: BaseRewardModel, scalars: Scalars) -> None:
        super().__init__(RewardConfig())
        if model.history or model.episodic:
            raise ValueError(
                f"{type(model).__name__} is given lists of transitions in any order, so it has no "
                "use for 'history' or 'episodic': derive it from RewardModel"
            )
        self.model = model
        self.scalars = scalars
        self.fields, self.imitates = model.fields, model.imitates
        self.off_policy, self.needs_log_prob = model.off_policy, model.needs_log_prob
        self.absorbing = model.absorbing
        self._draws = Draws()

    def setup(self, setting: Setting) -> None:
        """See `RewardModel`."""
        self._draws = Draws(setting.seed)
        with self._draws.own():
            self.model.setup(setting)
        self.fields = self.model.fields

    @torch.no_grad()
    def score(self, data: Batch) -> np.ndarray:
        """What the model's copies of the transitions say; the same whenever it is asked."""
        read = Batch({name: data[name] for name in ("rew", *self.fields)})
        rows = items.from_batch(read[np.ones(data.rew.shape, bool)])
        with self._draws.own(goes_on=False):
            estimated = self.model.estimate(rows)
        if estimated is None:  # it has changed the dictionaries in place
            estimated = rows
        rew = np.array([float(item["reward"]) for item in estimated], np.float32)
        return rew.reshape(data.rew.shape)

    def collect_data(self, data: Batch) -> None:
        """Gives the model the real transitions as a list."""
        with self._draws.own():
            self.model.collect_data(items.from_batch(data[np.asarray(data.mask)]))

    def pretrain(self) -> Metrics:
        """Lets the model learn from what it took in when it was made."""
        return self.train()

    def train(self) -> Metrics:
        """Lets the model learn.

        Returns:
            What it wrote to its logger meanwhile. If that is nothing, but its networks are not what
            they were: ``trained``.
        """
        self.scalars.newest.clear()
        before = self._weights()
        with self._draws.own():
            self.model.train()
        written = dict(self.scalars.newest)
        if written or all(map(torch.equal, before, self._weights())):
            return written
        return {"trained": 1.0}

    def _weights(self) -> list[torch.Tensor]:
        """A copy of what the model's networks hold."""
        modules = [part for part in vars(self.model).values() if isinstance(part, torch.nn.Module)]
        return [
            tensor.detach().clone()
            for module in modules
            for tensor in (*module.parameters(), *module.buffers())
        ]

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """See `RewardModel`."""
        self.model.clear_data(iter)

    def load_expert_data(self, data: Any = None) -> None:
        """See `RewardModel`; by the guide, a model knows where they are and takes no argument."""
        with self._draws.own():
            if data is None:
                self.model.load_expert_data()
            else:
                self.model.load_expert_data(data)

    def state_dict(self) -> dict[str, Any]:
        """What the model wants saved, and where the generators are that it draws from."""
        return {"model": self.model.state_dict(), "draws": self._draws.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        self.model.load_state_dict(state["model"])
        self._draws.load_state_dict(state["draws"])


def adapted(model: RewardModel, scalars: Scalars) -> RewardModel:
    """A model as a part of a `Reward`, whatever style it is written in.

    Args:
        model: The model.
        scalars: The ``tb_logger`` that it was made with, where it was given no other.
    """
    return GuideAdapter(model, scalars) if isinstance(model, BaseRewardModel) else model


# --- attributes of a user's class as files


def _saved(value: Any) -> Any:
    """An attribute as a file can hold it, if it can."""
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
        return {_PART: copy.deepcopy(value.state_dict())}
    if isinstance(value, torch.Generator):
        return {_PART: value.get_state()}
    if isinstance(value, np.random.Generator):
        return {_PART: value.bit_generator.state}
    if isinstance(value, deque | set):
        held = _saved(list(value))
        if held is _LEFT_OUT:
            return held
        return {_SET: held} if isinstance(value, set) else {_DEQUE: [value.maxlen, held]}
    if _is_plain(value):
        rows = _are_rows(value)
        return {_TRANSITIONS: items.columns(value)} if rows else copy.deepcopy(value)
    return _LEFT_OUT


def _restore(owner: Any, name: str, value: Any) -> None:
    """Gives an object back what `_saved` made of its attribute, which need not be there yet."""
    present = getattr(owner, name, None)
    if not _is_marked(value, _PART):
        setattr(owner, name, _read(value, present))
        return
    state = value[_PART]
    if isinstance(present, torch.nn.Module | torch.optim.Optimizer):
        present.load_state_dict(state)
    elif isinstance(present, torch.Generator):
        present.set_state(state)
    elif isinstance(present, np.random.Generator):
        present.bit_generator.state = state
    else:
        raise ValueError(
            f"{type(owner).__name__} has no {name!r} that could go on from the saved one: make it "
            "in __init__() or setup()"
        )


def _read(value: Any, present: Any = None) -> Any:
    """What `_saved` was given; a deque is as long as the one that it takes the place of."""
    if _is_marked(value, _TRANSITIONS):
        return items.rows(value[_TRANSITIONS])
    if _is_marked(value, _SET):
        return set(_read(value[_SET]))
    if _is_marked(value, _DEQUE):
        longest, held = value[_DEQUE]
        return deque(_read(held), present.maxlen if isinstance(present, deque) else longest)
    return copy.deepcopy(value)


def _is_marked(value: Any, mark: str) -> bool:
    return isinstance(value, dict) and value.keys() == {mark}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(part) for key, part in value.items())
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _are_rows(value: Any) -> bool:
    """Whether this is a list of transitions: dictionaries with tensors of the same shapes."""
    if type(value) is not list or not value or not isinstance(value[0], dict):
        return False
    first = _shapes(value[0])
    return first is not None and all(_shapes(each) == first for each in value)


def _shapes(item: Any) -> Any:
    if isinstance(item, dict):
        parts = {key: _shapes(part) for key, part in item.items()}
        return None if None in parts.values() else parts
    return (item.shape, item.dtype) if isinstance(item, torch.Tensor) else None

"""Reward models in the style of DI-engine's guide, with lists of dictionaries."""

import copy
import inspect
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import ConfigDict

from guerdon.compat.di_engine import items
from guerdon.compat.di_engine.draws import Draws
from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.data import load_demonstrations
from guerdon.data.batch import Batch, flatten, unflatten
from guerdon.data.leaves import describe
from guerdon.reward.base import (
    REWARDS,
    Metrics,
    RewardConfig,
    RewardModel,
    Setting,
    restored,
    state_of,
)


class GuideConfig(RewardConfig):
    """Accepts all options; the model reads them itself."""

    model_config = ConfigDict(extra="allow")


class BaseRewardModel(RewardModel, ABC):
    """Base of reward models in the style of the guide.

    The constructor gets the config (keys are attributes), a device and a ``tb_logger``. Data are
    lists of dictionaries of tensors: ``obs``, ``action``, ``reward``, ``next_obs``, ``done``;
    scalar actions and rewards have shape [1]. Random numbers of torch, NumPy and Python depend only
    on the run's seed.
    """

    Config: ClassVar[type[RewardConfig]] = GuideConfig
    fields = ("obs", "act", "obs_next", "terminated")
    config: Any = {}  # noqa: RUF012 - the documented form
    """Default values of options."""

    def __init__(self, config: Any = None, device: str = "cpu", tb_logger: Any = None) -> None:
        if config is not None:  # otherwise a subclass stores them itself
            self.cfg = config
            self.device = device  # type: ignore[assignment]  # a string, as in the guide
            self.tb_logger = tb_logger

    @classmethod
    def create(cls, config: Mapping[str, Any], setting: Setting) -> RewardModel:
        """Make a model of this class, as a term of a reward."""
        return GuideAdapter(cls, config, setting)

    @classmethod
    def default_config(cls) -> AttrDict:
        """Return a copy of the default values, with keys as attributes."""
        return AttrDict(copy.deepcopy(cls.config))

    @abstractmethod
    def estimate(self, data: Any) -> Any:
        """Return the dictionaries with the model's ``reward``; those of a run are copies."""

    @abstractmethod
    def train(self, *data: Any) -> None:
        """Train on collected data; a class with an argument gets the newest transitions."""

    @abstractmethod
    def collect_data(self, data: Any) -> None:
        """Process new transitions."""

    @abstractmethod
    def clear_data(self, iter: int = 0) -> None:  # noqa: A002 - the documented name
        """Drop collected data, depending on the number of policy updates.

        A class without an argument is called every ``clear_buffer_per_iters`` updates.
        """

    def reward_deepcopy(self, train_data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return copies of the dictionaries, whose rewards can be changed in place."""
        return [{**item, "reward": copy.deepcopy(item["reward"])} for item in train_data]

    def state_dict(self) -> dict[str, Any]:
        """Return attributes to save: networks, optimizers, generators, numbers, tensors, data."""
        given = ("cfg", "config", "device", "tb_logger")
        found = {name: _saved(value) for name, value in vars(self).items() if name not in given}
        lost = [name for name in found if found[name] is _LOST and not callable(vars(self)[name])]
        if lost:  # Python shows a repeated warning once
            warnings.warn(
                f"{', '.join(lost)} of the reward model {type(self).__name__} cannot be saved and "
                "will be reset on resume: define state_dict() and load_state_dict()",
                stacklevel=2,
            )
        return {name: value for name, value in found.items() if value is not _LOST}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        for name, value in state.items():
            present = getattr(self, name, None)
            if present is None and isinstance(value, dict) and _STATE in value:
                raise ValueError(
                    f"{type(self).__name__} has no {name!r} to restore the saved state of: make it "
                    "in __init__()"
                )
            setattr(self, name, _loaded(value, present))


class Scalars:
    """A ``tb_logger`` that keeps the newest value of each scalar, for the run's log."""

    def __init__(self) -> None:
        self.newest: Metrics = {}

    def add_scalar(self, tag: str, scalar_value: Any, *_: Any, **__: Any) -> None:
        """Store a value; the interface of a TensorBoard writer."""
        value = scalar_value.detach() if isinstance(scalar_value, torch.Tensor) else scalar_value
        self.newest[tag.rpartition("/")[2]] = value

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("add_"):
            raise AttributeError(f"a logger of reward models has no {name!r}")
        return lambda *_, **__: None  # histograms, images etc. are ignored


class GuideAdapter(RewardModel):
    """A model in the style of the guide as a term of a reward."""

    Config = GuideConfig
    can_pretrain = True

    def __init__(
        self, kind: type[BaseRewardModel], config: Mapping[str, Any], setting: Setting
    ) -> None:
        super().__init__(config, setting)
        self._draws, self._scalars = Draws(setting.seed), Scalars()
        self._options = AttrDict({**kind.default_config(), **config})
        with self._draws.own():
            self.model = kind(self._options, setting.device, self._scalars)
        self.fields = self.collects = self.model.fields
        self._new: list[dict[str, Any]] = []  # the newest transitions

    @classmethod
    def requirements(cls, config: Any) -> frozenset[str]:
        """See `RewardModel`; the requirements of the model."""
        return REWARDS.get(config.type).requirements(config)

    @torch.no_grad()
    def score(self, batch: Batch) -> torch.Tensor:
        """Return the model's rewards; random numbers are the same in every call."""
        shape = batch.rew.shape
        read = Batch({name: batch[name] for name in ("rew", *self.fields)}).to_numpy()
        with torch.inference_mode(mode=False), torch.no_grad():  # tensors that count their changes
            rows = items.from_batch(read[np.ones(shape, bool)])
        before = [(item["reward"], item["reward"]._version) for item in rows]
        with self._draws.own(advance=False):
            estimated = self.model.estimate(rows)
        unchanged = estimated is None and all(
            reward._version == version and item.get("reward") is reward
            for item, (reward, version) in zip(rows, before, strict=True)
        )
        if estimated is None and not unchanged:  # the dictionaries were changed in place
            estimated = rows
        try:
            return torch.tensor([float(item["reward"]) for item in estimated]).reshape(shape)
        except (TypeError, ValueError, LookupError, RuntimeError) as error:
            what = describe(estimated) + (
                ", and leaves every reward as it was" if unchanged else ""
            )
            raise ValueError(
                f"estimate() of the reward model {self.name!r} returns {what}: it has to return "
                f"the {len(rows)} dictionaries with their 'reward'"
            ) from error

    def collect_data(self, batch: Batch) -> None:
        """Pass the transitions to the model as a list."""
        self._new = items.from_batch(batch[np.asarray(batch.mask)])
        with self._draws.own():
            self.model.collect_data(self._new)

    def pretrain(self) -> Metrics:
        """Train the model on the data that it loaded."""
        return self.train()

    def train(self) -> Metrics:
        """Train the model; return the scalars that it logged."""
        self._scalars.newest.clear()
        with self._draws.own():
            self.model.train(*[self._new][: _arguments(self.model.train)])
        return dict(self._scalars.newest)

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """See `RewardModel`."""
        if _arguments(self.model.clear_data):
            self.model.clear_data(iter)
        elif iter % self._options.get("clear_buffer_per_iters", 1) == 0:
            self.model.clear_data()

    def load_expert_data(self, demonstrations: Any = None) -> None:
        """See `RewardModel`; a class with an argument gets a list of dictionaries."""
        path, given = self._options.get("expert_data_path"), demonstrations
        if given is None and path is not None and _arguments(self.model.load_expert_data):
            given = items.from_batch(load_demonstrations(path).transitions())
        with self._draws.own():
            self.model.load_expert_data(*[] if given is None else [given])

    def training_state(self) -> dict[str, Any]:
        """See `RewardModel`."""
        return {"model": self.model.state_dict(), "draws": self._draws.uses}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        self.model.load_state_dict(state["model"])
        self._draws.uses = state["draws"]


def _arguments(method: Callable[..., Any]) -> int:
    """Return the number of arguments of a method, without keyword-only and variable ones."""
    parameters = inspect.signature(method).parameters.values()
    return sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)


# --- attributes of user-defined classes as trees of arrays and plain values

_STATEFUL = (torch.nn.Module, torch.optim.Optimizer, torch.Generator, np.random.Generator)
_PLAIN = (bool, int, float, str, type(None), torch.Tensor, np.ndarray, np.generic)
_LOST = object()
# Attributes of other types are saved as dictionaries with one of these keys.
_STATE = "saved state"  # of a network, an optimizer or a generator that exists
_TRANSITIONS = "saved transitions"  # a list of dictionaries, stacked by path
_COLLECTION = "saved collection"  # its type, its maximum length, and a list


def _saved(value: Any) -> Any:
    """Return an attribute in the form to save; `_LOST` if it cannot be saved."""
    if isinstance(value, _STATEFUL):
        return {_STATE: state_of(value)}
    if isinstance(value, deque | set):
        held = _saved(list(value))
        described = type(value).__name__, getattr(value, "maxlen", None), held
        return held if held is _LOST else {_COLLECTION: list(described)}
    if not _is_plain(value):
        return _LOST
    columns = items.columns(value)
    if columns is None:
        return copy.deepcopy(value)
    return {_TRANSITIONS: [[list(path), column] for path, column in flatten(columns)]}


def _loaded(value: Any, present: Any) -> Any:
    """Return the attribute that `_saved` encoded; a state is loaded into `present`."""
    marked = isinstance(value, dict) and len(value) == 1
    kind, held = next(iter(value.items())) if marked else (None, value)
    if kind == _STATE:
        return restored(present, held)
    if kind == _TRANSITIONS:
        return items.rows(unflatten({tuple(path): column for path, column in held}))
    if kind == _COLLECTION:
        name, longest, rows = held
        longest = present.maxlen if isinstance(present, deque) else longest
        rows = _loaded(rows, None)
        return set(rows) if name == "set" else deque(rows, longest)
    return copy.deepcopy(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(part) for key, part in value.items())
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)

"""guerdon's reward models with the interface of DI-engine's guide, and its registry."""

import copy
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from guerdon.compat.di_engine.reward_model.base_reward_model import BaseRewardModel
from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.config import imports
from guerdon.data import Batch, Demonstrations, load_demonstrations
from guerdon.reward import EpisodeRewardModel, Setting
from guerdon.reward.base import REWARDS
from guerdon.reward.transitions import as_rollout, from_items, with_rewards

_RENAMED = {"hidden_size_list": "hidden_size", "data_path": "expert_data_path"}
# Sizes of inputs, which data has; and options of the entry functions and of `estimate`.
_UNUSED = {
    *("type", "exp_name", "import_names", "in_place", "input_size", "obs_shape", "action_shape"),
    *("s_size", "a_size", "action_size", "discrete_action", "collect_count", "horizon"),
    *("target_new_data_count", "clear_buffer_per_iters", "intrinsic_reward_type"),
    *("intrinsic_reward_weight", "extrinsic_reward_norm", "extrinsic_reward_norm_max"),
}


class Registry:
    """Reward models by name; a class that is registered here can be used in a run, too."""

    def __init__(self) -> None:
        self._classes: dict[str, type[BaseRewardModel]] = {}

    def register(self, module_name: str, module: Any = None, force_overwrite: bool = False) -> Any:
        """Register a class under a name, as a decorator or as a call with the class."""
        if module is None:
            return lambda decorated: self.register(module_name, decorated, force_overwrite)
        if issubclass(module, CoreRewardModel):  # a run uses the model inside
            self._classes[module_name] = module
        else:
            REWARDS.register(module_name, module, override=force_overwrite)
        return module

    def get(self, name: str) -> Any:
        """Return the class of a name."""
        return self._classes.get(name) or REWARDS.get(name)

    def build(self, obj_type: str, *args: Any, **kwargs: Any) -> Any:
        """Make a model of the class of a name."""
        return self.get(obj_type)(*args, **kwargs)


REWARD_MODEL_REGISTRY = Registry()


def get_reward_model_cls(cfg: Mapping[str, Any]) -> Any:
    """Return the class of ``cfg["type"]``, with lists of dictionaries."""
    imports.import_all(imports.resolved(list(cfg.get("import_names") or []), Path.cwd()))
    kind = REWARD_MODEL_REGISTRY.get(cfg["type"])
    return kind if issubclass(kind, BaseRewardModel) else CoreRewardModel


def create_reward_model(cfg: Any, device: str = "cpu", tb_logger: Any = None) -> BaseRewardModel:
    """Make the reward model of ``cfg["type"]``; `device` and `tb_logger` are as in the guide."""
    options = copy.deepcopy(dict(cfg))
    kind = get_reward_model_cls(options)
    options = AttrDict({**kind.default_config(), **options})
    return kind(options, device, tb_logger)  # type: ignore[no-any-return]


class CoreRewardModel(BaseRewardModel):
    """A reward model of guerdon with lists of dictionaries.

    The model inside is made when the first data arrives, since its inputs are not known before.

    Attributes:
        cfg: Options; ``cfg.in_place`` says whether `estimate` changes the given dictionaries, which
            is the default, as in the guide.
        train_iter: Number of updates.
    """

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(AttrDict({**self.default_config(), **config}), device, tb_logger)
        self.train_iter = 0
        self._kind: Any = REWARDS.get(self.cfg.type)
        self._options = self._core_options()
        self._model: Any = None
        # Of models that annotate episodes: the state of the running one, and the annotations of
        # transitions that were collected, which come back in another order.
        self._memory: Any = None
        self._annotated: dict[tuple[bytes, bytes], tuple[Any, ...]] = {}
        if Path(str(self.cfg.get("expert_data_path"))).exists():
            self.load_expert_data()

    def _core_options(self) -> dict[str, Any]:
        """Return the options of the model inside; warn of those that nothing reads."""
        known = self._kind.Config.model_fields
        options: dict[str, Any] = {"train_every": 1} if "train_every" in known else {}
        for key, value in self.cfg.items():
            name = _RENAMED.get(key, key)
            if name in known:
                options[name] = value
            elif name not in _UNUSED:
                text = f"{key!r} of the reward model {self.cfg.type} is not read"
                warnings.warn(text, stacklevel=4)
        return options

    @property
    def model(self) -> Any:
        """The model inside."""
        if self._model is None:
            raise ValueError(
                f"{self.cfg.type} has no data yet: call load_expert_data() or collect_data() first"
            )
        return self._model

    def _made(self, rows: Batch, horizon: int | None = None) -> Any:
        """Return the model inside, made for such transitions."""
        if self._model is None:
            act = _actions(rows, self.cfg.get("action_shape"), self.cfg.get("input_size"))
            horizon, device = self.cfg.get("horizon", horizon), str(self.device)
            setting = Setting(
                _numbers(rows.obs), act, device=device, on_policy=False, horizon=horizon
            )
            self._model = self._kind(self._options, setting)
        return self._model

    def load_expert_data(self, data: Any = None) -> None:
        """Set the demonstrations: a list, or see `load_demonstrations`; the config's by default."""
        source = self.cfg.get("expert_data_path") if data is None else data
        if isinstance(source, list):
            source = [{"reward": 0.0, "done": False, **item} for item in source]
        found = source if isinstance(source, Demonstrations) else load_demonstrations(source)
        model = self._made(found.transitions(), int(found.lengths.max()))
        model.load_expert_data(found)
        if isinstance(model, EpisodeRewardModel):
            self._memory = model.new_memory(1)

    def collect_data(self, data: Any) -> None:
        """Process new transitions, in time order."""
        rows = from_items(data)
        model = self._made(rows)
        if isinstance(model, EpisodeRewardModel):
            columns, self._memory = model.annotate(as_rollout(rows, model.reads), self._memory)
            found = zip(*(columns[name][:, 0] for name in model.annotations), strict=True)
            self._annotated |= zip(_keys(rows), found, strict=True)
        if model.collects:
            model.collect_data(as_rollout(rows, model.collects))

    def train(self, *_: Any) -> None:
        """Train, and write the metrics to ``tb_logger`` as ``reward_model/NAME``."""
        metrics = self._train() or {}
        self.train_iter += self._options.get("update_per_collect", 1) if metrics else 0
        for name, value in metrics.items() if self.tb_logger is not None else ():
            tag = f"reward_model/{'reward_loss' if name == 'loss' else name}"
            self.tb_logger.add_scalar(tag, float(value), self.train_iter)

    def _train(self) -> Any:
        return self.model.train()

    def estimate(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the dictionaries with the model's ``reward``; the same ones if ``cfg.in_place``.

        With ``cfg.intrinsic_reward_type`` ``add``, it is added to the reward that is there.
        """
        cfg, rows = self.cfg, from_items(data)
        model = self._made(rows)
        if isinstance(model, EpisodeRewardModel):
            missing = (0.0,) * len(model.annotations)
            columns = zip(*(self._annotated.get(key, missing) for key in _keys(rows)), strict=True)
            rows.update(dict(zip(model.annotations, map(np.array, columns), strict=True)))
        rewards = model.estimate(rows).rew
        if cfg.get("intrinsic_reward_type") == "add":
            normed = cfg.get("extrinsic_reward_norm", False)
            scale = cfg.get("extrinsic_reward_norm_max", 1) if normed else 1
            rewards = rows.rew / scale + cfg.get("intrinsic_reward_weight", 1) * rewards
        found = with_rewards(data, rewards)
        if not cfg.get("in_place", True):
            return found
        for item, new in zip(data, found, strict=True):
            item["reward"] = new["reward"]
        return data

    def clear_data(self, iter: int | None = None) -> None:  # noqa: A002 - the documented name
        """Drop collected transitions: all, or every ``cfg.clear_buffer_per_iters`` updates."""
        self.model.clear_data(iter or 0)

    def state_dict(self) -> dict[str, Any]:
        """Return what the model has learned, once it has data."""
        return {"model": self.model.training_state(), "train_iter": self.train_iter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`."""
        self.model.load_training_state(state["model"])
        self.train_iter = state["train_iter"]


def _keys(rows: Batch) -> list[tuple[bytes, bytes]]:
    """Return hashable keys of transitions."""
    return [(obs.tobytes(), act.tobytes()) for obs, act in zip(rows.obs, rows.act, strict=True)]


def _numbers(rows: Any) -> Any:
    """Return a space of rows [N, ...]: images, numbers, or a dictionary."""
    if isinstance(rows, Batch):
        return spaces.Dict({key: _numbers(part) for key, part in rows.items()})
    if rows.dtype == np.uint8:
        return spaces.Box(0, 255, rows.shape[1:], np.uint8)
    return spaces.Box(-math.inf, math.inf, rows.shape[1:], np.float32)


def _actions(rows: Batch, number: Any, input_size: Any) -> Any:
    """Return the space of actions; whole ones are numbers unless their count is given."""
    if rows.act.dtype.kind in "iu" and rows.act.ndim == 1:
        if number is None and isinstance(input_size, int):
            number = input_size - math.prod(rows.obs.shape[1:])
        if isinstance(number, int) and number > 1:
            return spaces.Discrete(number)
    return _numbers(rows.act)


# --- the models of the package, with its default values

_LEARNING = {"learning_rate": 1e-3, "update_per_collect": 100, "batch_size": 64}
_CLEARED = {"clear_buffer_per_iters": 1}
_ADDED = {**_LEARNING, "intrinsic_reward_type": "add", "extrinsic_reward_norm": True,
          "extrinsic_reward_norm_max": 1, "warmup": 0}  # fmt: skip


def _class(name: str, type_: str, **config: Any) -> type[CoreRewardModel]:
    members = {"config": {"type": type_, **config}, "__module__": __name__}
    made: type[CoreRewardModel] = type(name, (CoreRewardModel,), members)
    REWARD_MODEL_REGISTRY.register(type_, made)
    return made


GailRewardModel = _class("GailRewardModel", "gail", hidden_size=128, **_LEARNING, **_CLEARED)
ICMRewardModel = _class("ICMRewardModel", "icm", intrinsic_reward_weight=0.003, **_ADDED)
PdeilRewardModel = _class("PdeilRewardModel", "pdeil", alpha=0.5, **_CLEARED)
PwilRewardModel = _class("PwilRewardModel", "pwil", sample_size=1000, alpha=5, beta=5, **_CLEARED)
RndRewardModel = _class("RndRewardModel", "rnd", intrinsic_reward_weight=0.01, **_ADDED)
TrexRewardModel = _class(
    "TrexRewardModel", "trex", learning_rate=1e-5, update_per_collect=100, num_snippets=6000
)

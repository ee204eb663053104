"""guerdon's reward models with the interface of DI-engine's guide."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from guerdon.compat.di_engine.reward_model.base_reward_model import BaseRewardModel
from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.compat.nervex.tables import REWARD_DROPPED, REWARD_KEYS
from guerdon.data import Batch, Demonstrations, load_demonstrations
from guerdon.reward import EpisodeRewardModel, Setting
from guerdon.reward.base import REWARDS, space_of
from guerdon.reward.transitions import as_rollout, from_items, with_rewards

# Options of `CoreRewardModel` and of runs, and sizes of inputs, which data has.
_OTHERS = {"type", "in_place", "horizon", "import_names", "intrinsic_reward_weight"}
_OTHERS |= {*" ".join(REWARD_DROPPED.values()).split()}


class CoreRewardModel(BaseRewardModel):
    """A reward model of guerdon with lists of dictionaries, made when the first data arrives.

    ``cfg.in_place`` says whether `estimate` changes the given dictionaries, as in the guide.
    """

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(AttrDict({**self.default_config(), **config}), device, tb_logger)
        self.train_iter = 0
        self._kind: Any = REWARDS.get(self.cfg.type)
        self._options = self._core_options()
        self._model: Any = None
        # The state of the running episode, and annotations of transitions, for models that have it.
        self._memory: Any = None
        self._annotated: dict[tuple[bytes, bytes], tuple[Any, ...]] = {}
        if Path(str(self.cfg.get("expert_data_path"))).exists():
            self.load_expert_data()

    def _core_options(self) -> dict[str, Any]:
        """Return the options of the model inside; warn of those that nothing reads."""
        known = self._kind.Config.model_fields
        given = {REWARD_KEYS.get(key, key): value for key, value in self.cfg.items()}
        for key in given.keys() - known - _OTHERS - {"weight"}:
            warnings.warn(f"{key!r} of the reward model {self.cfg.type} is not read", stacklevel=4)
        given = {"train_every": 1, "warmup": 0, **given}  # the caller decides when it is trained
        return {key: value for key, value in given.items() if key in known}

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
            # Whole actions are numbers, unless the config tells how many there are.
            number, act = self.cfg.get("action_shape"), space_of(rows.act, "action")
            if isinstance(number, int) and rows.act.dtype.kind in "iu" and rows.act.ndim == 1:
                act = spaces.Discrete(number)
            setting = Setting(
                space_of(rows.obs, "obs"), act, device=str(self.device), on_policy=False,
                horizon=self.cfg.get("horizon", horizon),
            )  # fmt: skip
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
        rows = from_items(data)
        model = self._made(rows)
        if isinstance(model, EpisodeRewardModel):
            missing = (0.0,) * len(model.annotations)
            columns = zip(*(self._annotated.get(key, missing) for key in _keys(rows)), strict=True)
            rows.update(dict(zip(model.annotations, map(np.array, columns), strict=True)))
        rewards = model.estimate(rows).rew
        if self.cfg.get("intrinsic_reward_type") == "add":
            rewards = rows.rew + self.cfg.get("intrinsic_reward_weight", 1) * rewards
        found = with_rewards(data, rewards)
        if not self.cfg.get("in_place", True):
            return found
        for item, new in zip(data, found, strict=True):
            item["reward"] = new["reward"]
        return data

    def clear_data(self, iter: int | None = None) -> None:  # noqa: A002 - the documented name
        """Drop collected transitions every ``cfg.clear_buffer_per_iters`` updates, if it is set."""
        self.model.clear_data(iter or 0)


def _keys(rows: Batch) -> list[tuple[bytes, bytes]]:
    """Return hashable keys of transitions."""
    return [(obs.tobytes(), act.tobytes()) for obs, act in zip(rows.obs, rows.act, strict=True)]

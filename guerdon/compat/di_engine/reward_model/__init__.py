"""DI-engine's reward models: the guide's base class, and guerdon's models with its interface."""

from typing import Any

from guerdon.compat.di_engine.reward_model import base_reward_model, core_reward_model
from guerdon.compat.di_engine.reward_model.red_irl_model import RedRewardModel
from guerdon.compat.nervex.attr_dict import AttrDict
from guerdon.reward.base import REWARDS

BaseRewardModel = base_reward_model.BaseRewardModel
REWARD_MODEL_REGISTRY = REWARDS


def create_reward_model(cfg: Any, device: str = "cpu", tb_logger: Any = None) -> BaseRewardModel:
    """Make the reward model of ``cfg["type"]``; `device` and `tb_logger` are as in the guide."""
    kind: Any = REWARDS.get(cfg["type"])
    if not issubclass(kind, BaseRewardModel):
        kind = RedRewardModel if cfg["type"] == "red" else core_reward_model.CoreRewardModel
    options = AttrDict({**kind.default_config(), **cfg})
    return kind(options, device, tb_logger)  # type: ignore[no-any-return]

"""DI-engine's reward models: the guide's base class, and guerdon's models with its interface."""

from guerdon.compat.di_engine.reward_model.base_reward_model import BaseRewardModel
from guerdon.compat.di_engine.reward_model.models import (
    REWARD_MODEL_REGISTRY,
    CoreRewardModel,
    GailRewardModel,
    ICMRewardModel,
    PdeilRewardModel,
    PwilRewardModel,
    RndRewardModel,
    TrexRewardModel,
    create_reward_model,
    get_reward_model_cls,
)
from guerdon.compat.di_engine.reward_model.red_irl_model import RedRewardModel

__all__ = [
    "REWARD_MODEL_REGISTRY",
    "BaseRewardModel",
    "CoreRewardModel",
    "GailRewardModel",
    "ICMRewardModel",
    "PdeilRewardModel",
    "PwilRewardModel",
    "RedRewardModel",
    "RndRewardModel",
    "TrexRewardModel",
    "create_reward_model",
    "get_reward_model_cls",
]

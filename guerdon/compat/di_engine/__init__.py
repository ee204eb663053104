"""DI-engine's interfaces: reward models that take lists of dictionaries."""

from guerdon.compat.di_engine.reward_model import BaseRewardModel

__all__ = ["BaseRewardModel"]

"""DI-engine's interfaces: reward models with lists of dictionaries."""

from guerdon.compat.di_engine.reward_model import BaseRewardModel

__all__ = ["BaseRewardModel"]

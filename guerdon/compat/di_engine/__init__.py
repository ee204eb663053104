"""DI-engine's interfaces: ``guerdon.compat.di_engine.reward_model``, ``entry`` and ``worker``."""

from guerdon.compat.di_engine.reward_model import BaseRewardModel

__all__ = ["BaseRewardModel"]

"""DI-engine's registry of reward models."""

from guerdon.compat.di_engine.reward_model import REWARD_MODEL_REGISTRY

__all__ = ["REWARD_MODEL_REGISTRY"]

"""Reward models: one file each, and how they are put together."""

from guerdon.reward.base import (
    REWARDS,
    RewardConfig,
    RewardModel,
    create_reward_model,
    register_reward_model,
)
from guerdon.reward.composition import ResolvedBuffer, Reward, Term, make_reward
from guerdon.reward.controls import ConstantReward, EnvReward, FunctionReward

__all__ = [
    "REWARDS",
    "ConstantReward",
    "EnvReward",
    "FunctionReward",
    "ResolvedBuffer",
    "Reward",
    "RewardConfig",
    "RewardModel",
    "Term",
    "create_reward_model",
    "make_reward",
    "register_reward_model",
]

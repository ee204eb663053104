"""Reward models: one file each, and how they are put together."""

from guerdon.reward.adversarial import AIRL, FAIRL, GAIL
from guerdon.reward.base import (
    REWARDS,
    RewardConfig,
    RewardModel,
    Setting,
    create_reward_model,
    register_reward_model,
)
from guerdon.reward.composition import ResolvedBuffer, Reward, Term, make_reward
from guerdon.reward.controls import ConstantReward, EnvReward, FunctionReward
from guerdon.reward.guide import BaseRewardModel

__all__ = [
    "AIRL",
    "FAIRL",
    "GAIL",
    "REWARDS",
    "BaseRewardModel",
    "ConstantReward",
    "EnvReward",
    "FunctionReward",
    "ResolvedBuffer",
    "Reward",
    "RewardConfig",
    "RewardModel",
    "Setting",
    "Term",
    "create_reward_model",
    "make_reward",
    "register_reward_model",
]

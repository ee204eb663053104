"""Reward models, and their combination."""

from guerdon.reward.adversarial import AIRL, FAIRL, GAIL
from guerdon.reward.base import (
    REWARDS,
    EpisodeRewardModel,
    ReplaySource,
    ReplayTransform,
    RewardConfig,
    RewardModel,
    Setting,
    SuccessModel,
    create_reward_model,
    register_reward_model,
)
from guerdon.reward.composition import ResolvedBuffer, Reward, Term, make_reward
from guerdon.reward.controls import ConstantReward, EnvReward, FunctionReward
from guerdon.reward.ensemble import EnsembleReward
from guerdon.reward.gcl import GCL
from guerdon.reward.her import HER
from guerdon.reward.icm import ICM
from guerdon.reward.ngu import NGU
from guerdon.reward.pdeil import PDEIL
from guerdon.reward.preference import PreferenceReward
from guerdon.reward.pwil import PWIL
from guerdon.reward.red import RED
from guerdon.reward.rnd import RND
from guerdon.reward.sqil import SQIL
from guerdon.reward.success_classifier import ClassifierReward
from guerdon.reward.trex import DREX, TREX

__all__ = [
    "AIRL",
    "DREX",
    "FAIRL",
    "GAIL",
    "GCL",
    "HER",
    "ICM",
    "NGU",
    "PDEIL",
    "PWIL",
    "RED",
    "REWARDS",
    "RND",
    "SQIL",
    "TREX",
    "ClassifierReward",
    "ConstantReward",
    "EnsembleReward",
    "EnvReward",
    "EpisodeRewardModel",
    "FunctionReward",
    "PreferenceReward",
    "ReplaySource",
    "ReplayTransform",
    "ResolvedBuffer",
    "Reward",
    "RewardConfig",
    "RewardModel",
    "Setting",
    "SuccessModel",
    "Term",
    "create_reward_model",
    "make_reward",
    "register_reward_model",
]

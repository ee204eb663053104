"""Policies, one file per algorithm."""

from guerdon.config.attr_dict import AttrDict
from guerdon.policy.a2c import A2C
from guerdon.policy.adder import Adder
from guerdon.policy.base import POLICIES, Policy, PolicyConfig, create_policy, register_policy
from guerdon.policy.common_policy import CommonConfig, CommonPolicy
from guerdon.policy.ddpg import DDPG
from guerdon.policy.dqn import DQN
from guerdon.policy.ppo import PPO
from guerdon.policy.sac import SAC
from guerdon.policy.td3 import TD3

__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "POLICIES",
    "PPO",
    "SAC",
    "TD3",
    "Adder",
    "AttrDict",
    "CommonConfig",
    "CommonPolicy",
    "Policy",
    "PolicyConfig",
    "create_policy",
    "register_policy",
]

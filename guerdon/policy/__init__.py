"""Policies, one file per algorithm."""

from guerdon.policy.a2c import A2C
from guerdon.policy.base import POLICIES, Policy, PolicyConfig, create_policy, register_policy
from guerdon.policy.bc import BC
from guerdon.policy.dagger import DAgger
from guerdon.policy.ddpg import DDPG
from guerdon.policy.dqn import DQN
from guerdon.policy.impala import Impala
from guerdon.policy.iqlearn import IQLearn
from guerdon.policy.ppo import PPO
from guerdon.policy.sac import SAC
from guerdon.policy.td3 import TD3

__all__ = [
    "A2C",
    "BC",
    "DDPG",
    "DQN",
    "POLICIES",
    "PPO",
    "SAC",
    "TD3",
    "DAgger",
    "IQLearn",
    "Impala",
    "Policy",
    "PolicyConfig",
    "create_policy",
    "register_policy",
]

"""Every built-in policy in the variants that are tested, and rollouts for them."""

import zlib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from guerdon.collect import Collector
from guerdon.data import ReplayBuffer
from guerdon.envs import make_vec
from guerdon.policy import create_policy

N_ENVS = 4
DISCRETE = ("CartPole-v1", 18)  # id, and steps until an episode is truncated: some end before
CONTINUOUS = ("Pendulum-v1", 7)


@dataclass(frozen=True)
class Case:
    """A policy, what it is told, and where it acts."""

    type: str
    env: tuple[str, int]
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "dqn": Case("dqn", DISCRETE, {"double": False}),
    "dqn_double": Case("dqn", DISCRETE, {"double": True}),
    "dqn_dueling": Case("dqn", DISCRETE, {"model": {"hidden": [16], "dueling": True}}),
    "dqn_soft_squared": Case("dqn", DISCRETE, {"tau": 0.05, "huber": False}),
    "dqn_soft": Case("dqn", DISCRETE, {"soft": True, "temperature": 0.3}),
    "dqn_3_step": Case("dqn", DISCRETE, {"n_step": 3}),
    "dqn_prioritized": Case("dqn", DISCRETE, {"prioritized": True}),
    "dqn_3_step_prioritized": Case("dqn", DISCRETE, {"n_step": 3, "prioritized": True}),
    "a2c": Case("a2c", DISCRETE),
    "a2c_continuous": Case("a2c", CONTINUOUS, {"gae_lambda": 0.9}),
    "ppo": Case("ppo", DISCRETE),
    "ppo_continuous": Case("ppo", CONTINUOUS),
    "impala": Case("impala", DISCRETE),
    "impala_continuous": Case("impala", CONTINUOUS, {"trace_lambda": 0.9}),
    "ddpg": Case("ddpg", CONTINUOUS),
    "ddpg_3_step": Case("ddpg", CONTINUOUS, {"n_step": 3}),
    "td3": Case("td3", CONTINUOUS),
    "td3_3_step": Case("td3", CONTINUOUS, {"n_step": 3}),
    "sac": Case("sac", CONTINUOUS),
    "sac_3_step": Case("sac", CONTINUOUS, {"n_step": 3}),
    "sac_discrete": Case("sac", DISCRETE),
    "sac_discrete_3_step": Case("sac", DISCRETE, {"n_step": 3}),
}

WITHOUT_REWARD = {
    "bc": "clones demonstrations",
    "dagger": "clones an expert",
    "iqlearn": "learns Q-values, and so a reward, from demonstrations",
}
"""Built-in policies that use no reward, and what they learn from; the laws are not theirs. That the
environment's reward changes no weight of theirs is in `tests/training/test_noise_law.py`."""


def make_env(case: Case) -> Any:
    """Environments with short episodes; those of CartPole reset in a step of its own."""
    name, length = case.env
    return make_vec(name, N_ENVS, max_episode_steps=length)


@cache
def spaces_of(env: tuple[str, int]) -> tuple[Any, Any]:
    """Those of observations and actions."""
    made = make_vec(env[0], 1)
    return made.observation_space, made.action_space


def make_policy(case: Case, seed: int = 0, **options: Any) -> Any:
    """The policy, with a small network and no clipping of gradients."""
    config = {"type": case.type, "model": {"hidden": [16]}, "max_grad_norm": None, **case.options}
    return create_policy(config, *spaces_of(case.env), seed=seed, **options)


def collected(policy: Any, case: Case, n_step: int = 120, seed: int = 5) -> Any:
    """A buffer with that many transitions of a policy."""
    if policy.on_policy:  # a replay buffer can be asked for single rows
        buffer = ReplayBuffer(256, N_ENVS, seed=seed)
    else:
        buffer = policy.make_buffer(256, N_ENVS, seed)
    Collector(policy, make_env(case), buffer, seed=seed).collect(n_step=n_step)
    return buffer


def warmed_up(case: Case, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """A policy that has learned a little, so that targets are no copies; and its buffer."""
    policy = make_policy(case, seed, **options)
    buffer = collected(policy, case)
    for _ in range(3):
        policy.update(16, buffer)
    return policy, buffer


def twin(policy: Any, case: Case, **options: Any) -> Any:
    """Another policy that is where this one is."""
    other = make_policy(case, seed=99, **options)
    other.load_training_state(policy.training_state())
    return other


def hashed(data: Any) -> np.ndarray:
    """A reward function: a number in [-1, 1] for each transition, like random ones."""
    rows = np.ascontiguousarray(data.obs, np.float32).reshape(data.rew.size, -1)
    numbers = [zlib.crc32(row.tobytes()) / 2**31 - 1 for row in rows]
    return np.array(numbers, np.float32).reshape(data.rew.shape)


def weights(policy: Any) -> dict[str, np.ndarray]:
    """All parameters and buffers, copied."""
    return {name: value.numpy().copy() for name, value in policy.training_state()["module"].items()}


def assert_same_weights(first: Any, second: Any) -> None:
    """Bit for bit."""
    one, other = weights(first), weights(second)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)

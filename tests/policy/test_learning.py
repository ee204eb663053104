"""Every policy learns an environment that any agent must learn, and learns what it is paid for."""

import numpy as np
import pytest

from guerdon.collect import Collector
from guerdon.data import Batch
from guerdon.envs import make_vec
from guerdon.policy import POLICIES, create_policy
from guerdon.reward import make_reward
from guerdon.training.evaluation import evaluate
from guerdon.training.trainers import offpolicy_trainer, onpolicy_trainer

IDENTITY = "guerdon/Identity-v0"  # returns: 10 at best, 2.5 by chance
TARGET = "guerdon/Target-v0"  # returns: 0 at best, -6.7 by chance
GOOD = {IDENTITY: 9.5, TARGET: -0.4}
N_ENVS = 8

OFF_POLICY = {"n_step": 8, "batch_size": 64, "warmup_steps": 800, "updates_per_collect": 3}
NETWORK = {"hidden": [32, 32]}
SLOW = {"gamma": 0.5, "model": NETWORK, "learning_rate": 1e-3}
FAST = {**SLOW, "learning_rate": 3e-3}
FASTER = {**SLOW, "learning_rate": 1e-2}
EPSILON = {"epsilon": {"start": 1.0, "end": 0.05, "decay": 1000}, "target_update_every": 20}
ALL = {"n_step": 3, "prioritized": True, "model": {**NETWORK, "dueling": True}}
RUNS = {
    "dqn": (IDENTITY, {**SLOW, **EPSILON}, {"max_steps": 1600}),
    "dqn_all": (IDENTITY, {**SLOW, **EPSILON, **ALL}, {"max_steps": 1600}),
    "sac_discrete": (IDENTITY, {**FAST, "target_entropy_share": 0.2}, {"max_steps": 2000}),
    "a2c": (IDENTITY, FASTER, {"n_step": 64, "max_steps": 6000}),
    "ppo": (IDENTITY, FAST, {"n_step": 256, "repeat": 8, "max_steps": 4096}),
    "ddpg": (TARGET, SLOW, {"max_steps": 1800}),
    "td3": (TARGET, SLOW, {"max_steps": 2000}),
    "sac": (TARGET, FAST, {"max_steps": 2000}),
    "a2c_continuous": (TARGET, {**FASTER, "gamma": 0.0}, {"n_step": 64, "max_steps": 16_000}),
    "ppo_continuous": (TARGET, FAST, {"n_step": 256, "repeat": 10, "max_steps": 6400}),
}


def trained(name, reward=None, seed=0):
    """The policy of a run."""
    env_id, options, loop = RUNS[name]
    env = make_vec(env_id, N_ENVS)
    config = {"type": name.split("_")[0], **options}
    policy = create_policy(config, env.observation_space, env.action_space, seed=seed)
    trainer = onpolicy_trainer if policy.on_policy else offpolicy_trainer
    loop = loop if policy.on_policy else {**OFF_POLICY, **loop}
    buffer = policy.make_buffer(20_000, N_ENVS, seed)
    trainer(policy, Collector(policy, env, buffer, seed=seed), reward=reward, **loop)
    return policy


def mean_return(name, policy):
    """Of a deterministic evaluation, in the environment's reward."""
    return float(np.mean(evaluate(policy, make_vec(RUNS[name][0], N_ENVS), 40, seed=123).returns))


def test_every_built_in_policy_is_here():
    built_in = {
        name for name in POLICIES.names() if POLICIES.get(name).__module__.startswith("guerdon.")
    }
    assert {name.split("_")[0] for name in RUNS} == built_in


@pytest.mark.parametrize("name", RUNS)
def test_it_learns(name):
    assert mean_return(name, trained(name)) >= GOOD[RUNS[name][0]]


def shifted(data):
    """Pays for the action after the one that the observation shows."""
    return ((data.obs.argmax(-1) + 1) % 4 == data.act).astype(np.float32)


@pytest.mark.parametrize("name", [name for name in RUNS if RUNS[name][0] == IDENTITY])
def test_it_learns_what_the_reward_says_and_not_what_the_environment_pays(name):
    rule = {"type": "function", "target": shifted, "fields": ("obs", "act"), "normalize": True}
    policy = trained(name, make_reward(rule)).eval()
    assert policy(Batch(obs=np.eye(4, dtype=np.float32))).act.tolist() == [1, 2, 3, 0]
    assert mean_return(name, policy) == 0.0


def mirrored(data):
    """Pays for the action that mirrors the observation."""
    return -np.square(data.obs + data.act).sum(-1)


@pytest.mark.parametrize("name", [name for name in RUNS if RUNS[name][0] == TARGET])
def test_it_learns_the_mirror_image_if_that_is_what_it_is_paid_for(name):
    rule = {"type": "function", "target": mirrored, "fields": ("obs", "act")}
    policy = trained(name, make_reward(rule)).eval()
    shown = np.linspace(-1, 1, 21, dtype=np.float32)[:, None]
    assert np.square(policy(Batch(obs=shown)).act + shown).mean() < 0.04


def test_without_information_it_stays_at_chance():
    policy = trained("ppo", make_reward({"type": "constant"}))
    assert 0.0 <= mean_return("ppo", policy) <= 5.5

"""Every policy learns an environment that any agent must learn, and learns what it is paid for."""

import numpy as np
import pytest

from guerdon.collect import Collector
from guerdon.data import Batch, Demonstrations
from guerdon.envs import make_vec
from guerdon.policy import POLICIES, create_policy
from guerdon.reward import make_reward
from guerdon.training.evaluation import evaluate
from guerdon.training.trainers import offline_trainer, offpolicy_trainer, onpolicy_trainer

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
    "dqn_soft": (
        IDENTITY,
        {**SLOW, "soft": True, "temperature": 0.2, "target_update_every": 20},
        {"max_steps": 1600},
    ),
    "sac_discrete": (IDENTITY, {**FAST, "target_entropy_share": 0.2}, {"max_steps": 2000}),
    "a2c": (IDENTITY, FASTER, {"n_step": 64, "max_steps": 6000}),
    "ppo": (IDENTITY, FAST, {"n_step": 256, "repeat": 8, "max_steps": 4096}),
    "impala": (IDENTITY, FASTER, {"n_step": 64, "max_steps": 6000}),
    "ddpg": (TARGET, SLOW, {"max_steps": 1800}),
    "td3": (TARGET, SLOW, {"max_steps": 2000}),
    "sac": (TARGET, FAST, {"max_steps": 2000}),
    "a2c_continuous": (TARGET, {**FASTER, "gamma": 0.0}, {"n_step": 64, "max_steps": 16_000}),
    "ppo_continuous": (TARGET, FAST, {"n_step": 256, "repeat": 10, "max_steps": 6400}),
}
WITHOUT_REWARD = {
    "bc": (IDENTITY, FAST, {"max_steps": 300}),
    "bc_continuous": (TARGET, FAST, {"max_steps": 600}),
    "bc_squashed": (TARGET, {**FAST, "squash": True}, {"max_steps": 600}),
    "dagger": (IDENTITY, {**FAST, "beta_steps": 200}, {"n_step": 8, "max_steps": 600}),
    "iqlearn": (IDENTITY, SLOW, {"max_steps": 1600}),
    "iqlearn_continuous": (TARGET, SLOW, {"max_steps": 1600}),
    "dagger_continuous": (TARGET, {**FAST, "beta_steps": 200}, {"n_step": 8, "max_steps": 1200}),
}
"""Policies that learn from an expert, and no reward."""


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
    assert {name.split("_")[0] for name in (*RUNS, *WITHOUT_REWARD)} == built_in


@pytest.mark.parametrize("name", RUNS)
def test_it_learns(name):
    assert mean_return(name, trained(name)) >= GOOD[RUNS[name][0]]


def expert(env_id, mistakes=0.0):
    """Demonstrations of the right actions, of which a share is replaced by random ones."""
    generator, env = np.random.default_rng(0), make_vec(env_id, 1)
    shape = (40, 10)
    if env_id == IDENTITY:
        act = generator.integers(4, size=shape)
        obs = np.eye(4, dtype=np.float32)[act]
        other = generator.integers(4, size=shape)
    else:
        obs = generator.uniform(-1, 1, (*shape, 1)).astype(np.float32)
        act, other = obs, generator.uniform(-1, 1, obs.shape).astype(np.float32)
    wrong = generator.random(shape) < mistakes
    act = np.where(wrong if act.ndim == 2 else wrong[..., None], other, act)
    ends = np.arange(10) == 9
    episodes = [
        Batch(obs=obs[i], act=act[i], rew=np.zeros(10), terminated=ends & False, truncated=ends,
              obs_next=np.roll(obs[i], -1, 0))
        for i in range(40)
    ]  # fmt: skip
    return Demonstrations(episodes, env_id, env.observation_space, env.action_space)


def cloned(name, mistakes=0.0):
    """The policy that a run without a reward ends with."""
    env_id, options, loop = WITHOUT_REWARD[name]
    env = make_vec(env_id, N_ENVS)
    config = {"type": name.split("_")[0], **options}
    policy = create_policy(config, env.observation_space, env.action_space)
    if policy.offline:
        policy.load_expert_data(expert(env_id, mistakes))
        offline_trainer(policy, **loop)
        return policy
    if policy.config.type == "dagger":
        policy.expert = asked(env_id, mistakes)
    else:
        policy.load_expert_data(expert(env_id, mistakes))
    buffer = policy.make_buffer(20_000, N_ENVS, 0)
    loop = {**OFF_POLICY, "warmup_steps": 64, **loop}
    offpolicy_trainer(policy, Collector(policy, env, buffer), **loop)
    return policy


def asked(env_id, mistakes):
    """An expert who is asked, and answers at random so often."""
    generator = np.random.default_rng(0)

    def answer(obs):
        wrong = generator.random(len(obs)) < mistakes
        if env_id == IDENTITY:
            return np.where(wrong, generator.integers(4, size=len(obs)), obs.argmax(-1))
        guess = generator.uniform(-1, 1, obs.shape).astype(np.float32)
        return np.where(wrong[:, None], guess, obs)

    return answer


@pytest.mark.parametrize("name", WITHOUT_REWARD)
def test_it_learns_without_a_reward(name):
    env_id = WITHOUT_REWARD[name][0]
    played = evaluate(cloned(name), make_vec(env_id, N_ENVS), 40, seed=123)
    assert np.mean(played.returns) >= GOOD[env_id]


@pytest.mark.parametrize("name", WITHOUT_REWARD)
def test_random_actions_teach_nothing(name):
    env_id = WITHOUT_REWARD[name][0]
    played = evaluate(cloned(name, mistakes=1.0), make_vec(env_id, N_ENVS), 40, seed=123)
    assert np.mean(played.returns) <= {IDENTITY: 6.0, TARGET: -2.0}[env_id]


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

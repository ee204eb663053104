"""Every preset runs for a few iterations, and every policy on any environment that suits it."""

import json
import math
from importlib.util import find_spec
from pathlib import Path

import gymnasium
import pytest
import torch

import guerdon
from guerdon.config import compose
from guerdon.config.registry import registry_of
from guerdon.config.schema import unread
from guerdon.reward.trained import NetworkReward
from guerdon.training.checkpoints import load_checkpoint
from guerdon.training.run import train

PRESETS = sorted(
    path.stem for path in (Path(guerdon.__file__).parent / "zoo" / "preset").glob("*.yaml")
)
# The package without which environments with such ids cannot be made.
PACKAGES = {
    "ALE/": "ale_py",
    "HalfCheetah": "mujoco",
    "Hopper": "mujoco",
    "LunarLander": "Box2D",
    "MiniGrid": "minigrid",
    "PickCube": "mani_skill",
    "PushCube": "mani_skill",
}
ITERATIONS = 3
# Options with which a reward learns something in a few iterations, and does not take long.
REWARD_OPTIONS = {
    "warmup": 32,
    "update_per_collect": 20,
    "num_snippets": 100,
    "segment_length": 8,
    "min_accuracy": 0,
}


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path_factory):
    """Experts are made once for all of these tests, and not where the user keeps them."""
    shared = tmp_path_factory.getbasetemp().parent / "guerdon-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))


def need_package(env_id):
    for start, package in PACKAGES.items():
        if env_id.startswith(start) and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def few_iterations(*choices, n_step=64):
    """Overrides with which a run has a few iterations of learning, and short evaluations."""
    config = compose(choices[0] if "=" not in choices[0] else None,
                     [choice for choice in choices if "=" in choice])  # fmt: skip
    need_package(config.env.id)
    policy = registry_of("policy").get(config.policy["type"])
    if policy.offline:
        return config, ["learn.updates_per_collect=4", "run.max_steps=12", "eval.episodes=1"]
    on_policy = policy.on_policy
    n_step = n_step if on_policy else min(config.collect.n_step, 16)
    warmup = 0 if on_policy else 32
    overrides = [
        f"env.n_envs={min(config.env.n_envs, 2)}",
        f"collect.n_step={n_step}",
        f"learn.repeat={min(config.learn.repeat, 2)}",
        f"learn.updates_per_collect={min(config.learn.updates_per_collect, 4)}",
        f"run.max_steps={warmup + ITERATIONS * n_step}",
        "run.log_every=1",
        "eval.every=1_000_000",
        "eval.episodes=1",
        # An episode of Pong takes minutes; this is no matter of the policy.
        f"env.eval={{max_episode_steps: 100, backend: {config.env.backend}}}",
    ]
    overrides += few_reward_steps(*config.reward.terms.values())
    if "learn.batch_size" not in unread(policy, config.policy):
        overrides += [f"learn.batch_size={min(config.learn.batch_size, 32)}"]
    if not on_policy:
        overrides += [f"collect.warmup_steps={warmup}", "collect.buffer_size=200"]
    return config, overrides


def few_reward_steps(options, *_):
    """Overrides of a reward's options: those of the first term, which a preset writes flat."""
    smaller = [
        f"reward.{key}={least}"
        for key, least in REWARD_OPTIONS.items()
        if (options.get(key) or 0) > least
    ]
    return [*smaller, "reward.train_every=16"] if "train_every" in options else smaller


def learned(directory, config):
    """The terms of the reward that should have learned, and those that did."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    keys = {key for line in lines for key in json.loads(line)}
    terms, kinds = config.reward.terms, registry_of("reward")
    should = {
        name
        for name, options in terms.items()
        if issubclass(kinds.get(options["type"]), NetworkReward)
    }
    return should, {name for name in terms if f"reward/{name}/loss" in keys}


def check(summary, directory, config):
    on_policy = registry_of("policy").get(config.policy["type"]).on_policy
    assert summary["stop_reason"] == "max_steps"
    assert summary["updates"] >= (ITERATIONS - 1 if on_policy else ITERATIONS)
    assert math.isfinite(summary["eval_return_mean"])
    state, step = load_checkpoint(directory / "checkpoints")
    offline = registry_of("policy").get(config.policy["type"]).offline
    assert step == summary["updates" if offline else "env_steps"]
    for name, value in state["policy"]["module"].items():
        assert torch.isfinite(value.float()).all(), name


def test_there_are_presets():
    assert {"cartpole_ppo", "cartpole_dqn", "pendulum_sac", "pong_dqn", "hopper_ppo"} <= {*PRESETS}


@pytest.mark.filterwarnings("ignore:red: ")  # after so few steps
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_runs(preset, tmp_path):
    config, overrides = few_iterations(preset)
    summary = train(preset, *overrides, f"run.dir={tmp_path}", seed=1, display="none")
    check(summary, tmp_path, config)
    should, did = learned(tmp_path, config)
    assert did == should


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_complete(preset):
    """What is written in the file is what a run has; nothing of it was misspelt or unused."""
    config = compose(preset)
    assert config.run.name == preset
    assert config.run.max_steps > config.collect.warmup_steps
    assert config.eval.every < config.run.max_steps
    assert (config.collect.n_step or 0) < config.eval.every


_registry = registry_of("policy")
POLICIES = [name for name in _registry.names() if _registry.get(name).uses_reward]
"""All but those that need an expert."""


def suits(name, env_id):
    """Whether a policy acts in the environment's space of actions; it says so itself."""
    env = gymnasium.make(env_id)
    try:
        registry_of("policy").get(name)({"type": name}, env.observation_space, env.action_space)
    except ValueError:
        return False
    finally:
        env.close()
    return True


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("Acrobot-v1", {"dqn", "a2c", "ppo", "sac"}),
        ("MountainCarContinuous-v0", {"a2c", "ppo", "ddpg", "td3", "sac"}),
    ],
)
def test_policies_say_which_actions_they_suit(env_id, expected):
    built_in = {"dqn", "a2c", "ppo", "ddpg", "td3", "sac"}
    assert {name for name in built_in if suits(name, env_id)} == expected
    assert built_in <= {*POLICIES}


@pytest.mark.parametrize("env_id", ["Acrobot-v1", "MountainCarContinuous-v0"])
@pytest.mark.parametrize("policy", POLICIES)
def test_any_environment_runs_without_a_preset(policy, env_id, tmp_path):
    choices = (f"env.id={env_id}", f"policy={policy}")
    config, overrides = few_iterations(*choices)
    overrides = (*choices, *overrides, f"run.dir={tmp_path / 'run'}")
    if suits(policy, env_id):
        check(train(None, *overrides, seed=1, display="none"), tmp_path / "run", config)
        return
    with pytest.raises(
        ValueError, match=f"{policy} supports (real-valued )?(Box|Discrete) .*spaces.*, not"
    ):
        train(None, *overrides, display="none")
    assert not (tmp_path / "run").exists()

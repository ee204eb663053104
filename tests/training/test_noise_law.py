"""A policy that is trained on a learned reward never sees the environment's reward.

Every test trains the same short run twice. The second time, the environment's rewards (and what it
says about success) are replaced by random numbers, and nothing else differs. As long as the
environment's own reward is not part of the training reward, both runs must end with exactly the
same weights, bit for bit: for every policy with every reward model.

A leak cannot hide behind a tolerance here. That the comparison is sensitive enough is tested, too:
with the environment's reward as the training reward, the weights of every policy differ; and each
learned reward leads to other weights than a reward of zero, so it really is what was learned from.

The runs use only what users have: `guerdon.train`, `guerdon.load_policy`, the config sections, the
`guerdon` command, and the files of demonstrations and preferences.
"""

import pathlib

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file
from typer.testing import CliRunner

import guerdon
from guerdon.cli import app
from guerdon.config import registry_of
from guerdon.data import (
    Batch,
    Demonstrations,
    Preference,
    save_demonstrations,
    save_preferences,
)

EPISODE_LENGTH = 10
IMAGE_SIZE = 16
NOISE_SEED = 1


class PointEnv(gymnasium.Env):
    """A point on a line, which is rewarded for being near zero.

    Episodes terminate where the point leaves the line. The random numbers of the noise come from a
    generator of their own, so that states are the same with and without it.

    Args:
        continuous: Whether the action is a number in [-1, 1], or one of three directions.
        camera: Whether observations are dictionaries with a picture beside the state.
        noise_seed: If given, rewards and successes are random numbers from this seed.
    """

    def __init__(self, continuous=False, camera=False, noise_seed=None):
        state = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        image = spaces.Box(0, 255, (IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
        self.observation_space = spaces.Dict(state=state, camera=image) if camera else state
        self.action_space = spaces.Box(-1, 1, (1,)) if continuous else spaces.Discrete(3)
        self.continuous, self.camera = continuous, camera
        self.noise = None if noise_seed is None else np.random.default_rng(noise_seed)
        self.state = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.state = self.np_random.uniform(-1, 1, 2)
        return self._observation(), {}

    def step(self, action):
        force = float(action[0]) if self.continuous else float(action) - 1
        position, velocity = self.state
        velocity = 0.8 * velocity + 0.4 * force + 0.1 * self.np_random.normal()
        position = position + 0.5 * velocity
        self.state = np.array([position, velocity])
        reward, success = 1 - abs(position), abs(position) < 0.4
        if self.noise is not None:
            reward, success = 10 * self.noise.normal(), self.noise.random() < 0.5
        info = {"success": bool(success)}
        return self._observation(), float(reward), bool(abs(position) > 1.5), False, info

    def _observation(self):
        state = self.state.astype(np.float32)
        if not self.camera:
            return state
        image = np.zeros((IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
        column = round((self.state[0] + 2) / 4 * (IMAGE_SIZE - 1))
        image[:, np.clip(column, 0, IMAGE_SIZE - 1)] = 255
        return {"state": state, "camera": image}


def near_zero(data):
    """A reward function for `function`, which reads observations only."""
    return -abs(data.obs_next[..., 0])


def push(obs):
    """The forces of the controller that is demonstrated."""
    return np.clip(-2 * obs[:, :1] - obs[:, 1:], -1, 1)


# --- policies

ON_POLICY = {"collect": {"n_step": 32}, "learn": {"batch_size": 16, "repeat": 2}}
ONE_EPOCH = {"collect": {"n_step": 32}, "learn": {"batch_size": 16}}
WHOLE_ROLLOUTS = {"collect": {"n_step": 32}}  # a2c learns from all of a rollout at once
OFF_POLICY = {
    "collect": {"n_step": 16, "warmup_steps": 32, "buffer_size": 400},
    "learn": {"batch_size": 16, "updates_per_collect": 2},
}
DISCRETE, CONTINUOUS = {"continuous": False}, {"continuous": True}
DQN = {"type": "dqn", "target_update_every": 4}

POLICIES = {
    "ppo": ({"type": "ppo"}, ON_POLICY, DISCRETE),
    "ppo_continuous": ({"type": "ppo"}, ON_POLICY, CONTINUOUS),
    "a2c": ({"type": "a2c"}, WHOLE_ROLLOUTS, DISCRETE),
    "impala": ({"type": "impala"}, ONE_EPOCH, DISCRETE),
    "a2c_continuous": ({"type": "a2c"}, WHOLE_ROLLOUTS, CONTINUOUS),
    "dqn": (DQN, OFF_POLICY, DISCRETE),
    "dqn_prioritized": ({**DQN, "prioritized": True}, OFF_POLICY, DISCRETE),
    "dqn_n_step": ({**DQN, "n_step": 3}, OFF_POLICY, DISCRETE),
    "dqn_prioritized_n_step": (
        {**DQN, "prioritized": True, "n_step": 3},
        OFF_POLICY,
        DISCRETE,
    ),
    "ddpg": ({"type": "ddpg"}, OFF_POLICY, CONTINUOUS),
    "td3": ({"type": "td3"}, OFF_POLICY, CONTINUOUS),
    "sac": ({"type": "sac"}, OFF_POLICY, CONTINUOUS),
    "sac_discrete": ({"type": "sac"}, OFF_POLICY, DISCRETE),
}
"""Options of each policy, how much is collected and learned, and options of the environment."""

# --- rewards

# Stand for paths, which `fill_paths` puts in their place.
DEMONSTRATIONS, PREFERENCES, CLASSIFIER = "<demonstrations>", "<preferences>", "<classifier>"

CLONING = {"learn": {"batch_size": 16, "updates_per_collect": 8}}
BC = {"type": "bc", "expert_data_path": DEMONSTRATIONS}
IQLEARN = {"type": "iqlearn", "expert_data_path": DEMONSTRATIONS}

WITHOUT_REWARD = {
    "bc": (BC, CLONING, DISCRETE),
    "bc_continuous": ({**BC, "squash": True}, CLONING, CONTINUOUS),
    "iqlearn": (IQLEARN, OFF_POLICY, DISCRETE),
    "iqlearn_continuous": (IQLEARN, OFF_POLICY, CONTINUOUS),
    "dagger": ({"type": "dagger", "expert": f"{__name__}:push"}, OFF_POLICY, CONTINUOUS),
}
"""The same of policies that use no reward."""

TRAINED = {"hidden_size": [8], "batch_size": 16, "update_per_collect": 4}
FITTED_ONCE = {**TRAINED, "expert_data_path": DEMONSTRATIONS}
IMITATION = {**FITTED_ONCE, "train_every": 32}
RANKING = {
    **FITTED_ONCE,
    "min_snippet_length": 3,
    "max_snippet_length": 5,
    "num_snippets": 40,
}
CURIOSITY = {**TRAINED, "warmup": 0, "train_every": 16}
WITHOUT_ENV = {"env": {"weight": 0.0}}

REWARDS = {
    "gail": {"terms": {"gail": IMITATION}},
    "gail_absorbing": {"terms": {"gail": {**IMITATION, "absorbing": True}}},
    "gail_normalized": {"terms": {"gail": IMITATION}, "normalize": True, "clip": [-5, 5]},
    "gail_with_env_weight_0": {"terms": {"gail": IMITATION, **WITHOUT_ENV}},
    "airl": {"terms": {"airl": IMITATION}},
    "airl_without_log_prob": {"terms": {"airl": {**IMITATION, "log_prob": False}}},
    "fairl": {"terms": {"fairl": IMITATION}},
    "gcl": {"terms": {"gcl": IMITATION}},
    "red": {"terms": {"red": {**FITTED_ONCE, "update_per_collect": 200, "learning_rate": 3e-3}}},
    "pwil": {"terms": {"pwil": {"expert_data_path": DEMONSTRATIONS, "subsample": 3}}},
    "pdeil": {"terms": {"pdeil": {"expert_data_path": DEMONSTRATIONS, "train_every": 32}}},
    "trex": {"terms": {"trex": {**RANKING, "rank_by": "order"}}},
    "drex": {"terms": {"drex": {**RANKING, "min_accuracy": 0.0}}},
    "preference": {
        "terms": {
            "preference": {
                **TRAINED,
                "preferences_path": PREFERENCES,
                "comparisons": 0,  # no teacher, who would look at the environment's reward
                "segment_length": 4,
                "train_every": 16,
            }
        }
    },
    "rnd": {"terms": {"rnd": CURIOSITY, **WITHOUT_ENV}},
    "icm": {"terms": {"icm": CURIOSITY, **WITHOUT_ENV}},
    "ngu": {"terms": {"ngu": CURIOSITY, **WITHOUT_ENV}},
    "sqil": {"terms": {"sqil": {"expert_data_path": DEMONSTRATIONS}}},
    "ensemble": {"terms": {"ensemble": {"members": 2, "of": {"type": "gail", **IMITATION}}}},
    "classifier": {
        "terms": {"classifier": {"min_precision": 0.0, "min_recall": 0.0}},
        "checkpoint_path": CLASSIFIER,
    },
    "classifier_per_step": {
        "terms": {
            "classifier": {
                "reward_type": "continuous",
                "reward_mode": "per_step",
                "min_precision": 0.0,
                "min_recall": 0.0,
            }
        },
        "checkpoint_path": CLASSIFIER,
    },
    "constant": {"terms": {"constant": {"value": 1.0}}},
    "function": {"terms": {"function": {"target": f"{__name__}:near_zero"}}},
}
"""The section ``reward`` of each reward; none of them includes the environment's own."""

EXCLUDED_REWARDS = {
    "env": "is the environment's reward",
    "her": "is the environment's reward, for other goals",
    "guided_cost": "is another name of gcl",
}
"""Registered reward models that there are no runs for, and why."""

STATELESS = {"constant", "function"}
"""Rewards that save no tensors."""

NEEDS_LOG_PROB = "the reward needs the probabilities of actions, which this policy does not have"
NEEDS_REPLAY = "the reward needs a policy with a replay buffer"

REFUSED = {
    **{
        (policy, reward): NEEDS_LOG_PROB
        for policy in POLICIES
        if POLICIES[policy][0]["type"] in ("dqn", "ddpg", "td3")
        for reward in ("airl", "gcl")
    },
    **{
        (policy, "sqil"): NEEDS_REPLAY
        for policy in POLICIES
        if POLICIES[policy][0]["type"] in ("ppo", "impala", "a2c")
    },
}
"""Pairs of policy and reward that `guerdon.train` refuses, and why."""

FAST = {
    "gail": "ppo",
    "gail_absorbing": "dqn",
    "gail_normalized": "a2c",
    "gail_with_env_weight_0": "ddpg",
    "airl": "sac_discrete",
    "airl_without_log_prob": "dqn_n_step",
    "fairl": "td3",
    "gcl": "ppo_continuous",
    "red": "a2c_continuous",
    "pwil": "dqn_prioritized",
    "pdeil": "sac",
    "trex": "dqn_prioritized_n_step",
    "drex": "ddpg",
    "preference": "a2c",
    "rnd": "impala",
    "icm": "sac",
    "ngu": "sac_discrete",
    "sqil": "dqn_n_step",
    "ensemble": "td3",
    "classifier": "ppo_continuous",
    "classifier_per_step": "dqn",
    "constant": "dqn_prioritized",
    "function": "a2c_continuous",
}
"""The policy with which each reward is tested in the fast tests; all other pairs are slow."""

PAIRS = [
    pytest.param(
        policy,
        reward,
        marks=() if FAST[reward] == policy else pytest.mark.slow,
        id=f"{policy}-{reward}",
    )
    for policy in POLICIES
    for reward in REWARDS
    if (policy, reward) not in REFUSED
]

# --- files that rewards learn from, made once


def play(env, randomness, seed):
    """One episode of a controller that pushes the point towards zero, with some random actions."""
    generator = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    rows = []
    for time in range(EPISODE_LENGTH):
        force = np.clip(-2 * obs[0] - obs[1], -1, 1)
        if generator.random() < randomness:
            force = generator.uniform(-1, 1)
        act = np.array([force], np.float32) if env.continuous else np.int64(np.rint(force) + 1)
        obs_next, _, terminated, _, _ = env.step(act)
        truncated = time == EPISODE_LENGTH - 1 and not terminated
        rows.append((obs, act, 0.0, terminated, truncated, obs_next, randomness))
        obs = obs_next
        if terminated:
            break
    keys = ("obs", "act", "rew", "terminated", "truncated", "obs_next", "noise")
    return Batch({key: np.stack([row[i] for row in rows]) for i, key in enumerate(keys)})


def compared(episodes):
    """Pairs of segments of a bad and of a good episode, labelled with which is the good one."""
    half = len(episodes) // 2
    for i, (bad, good) in enumerate(zip(episodes[:half], episodes[half:], strict=True)):
        for start in (0, 4):
            segments = [
                Batch({key: episode[key][start : start + 4] for key in ("obs", "act")})
                for episode in (bad, good)
            ]
            if len(segments[0]) == len(segments[1]):
                swap = i % 2
                first, second = reversed(segments) if swap else segments
                yield Preference(f"{i}-{start}", first, second, label=0.0 if swap else 1.0)


def write_expert_files(folder, continuous):
    """Demonstrations without rewards, worst first, and preferences between parts of them."""
    env = PointEnv(continuous)
    randomness = np.repeat([1.0, 0.5, 0.0], 4)
    episodes = [play(env, share, seed) for seed, share in enumerate(randomness)]
    save_demonstrations(
        Demonstrations(
            episodes, observation_space=env.observation_space, action_space=env.action_space
        ),
        folder / "demonstrations",
    )
    save_preferences(folder / "preferences.jsonl", compared(episodes))
    return {
        DEMONSTRATIONS: str(folder / "demonstrations"),
        PREFERENCES: str(folder / "preferences.jsonl"),
    }


def write_classifier(folder):
    """A success classifier, fitted to pictures that a run has collected."""
    folders = {f"{kind}_dir": str(folder / kind) for kind in ("positive", "negative")}
    reward = {
        "terms": {"env": {}},
        "collect_data": True,
        "data_collection": {**folders, "image_keys": ["camera"]},
    }
    config = make_config("ppo", reward, folder / "run", camera=True)
    guerdon.train(config, display="none")
    options = {
        "reward.model.image_keys": "[camera]",
        "reward.model.image_size": f"[3,{IMAGE_SIZE},{IMAGE_SIZE}]",
        "reward.model.width": 4,
        "reward.model.hidden_dim": 8,
        "reward.model.num_spatial_blocks": 2,
        "reward.optim.lr": 3e-3,
        "reward.data.augment": "false",
        "reward.num_epochs": 8,
        "reward.save_dir": folder / "fit",
        **{f"reward.data.{key}": value for key, value in folders.items()},
    }
    arguments = [f"{key}={value}" for key, value in options.items()]
    result = CliRunner().invoke(app, ["reward", "fit", *arguments, "--display", "none"])
    assert result.exit_code == 0, result.output
    return {CLASSIFIER: str(folder / "fit")}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A function that gives the paths of all files, for discrete or for continuous actions."""
    made = {}

    def get(policy, reward):
        continuous = (POLICIES | WITHOUT_REWARD)[policy][2]["continuous"]
        if uses_camera(reward):
            if CLASSIFIER not in made:
                made[CLASSIFIER] = write_classifier(tmp_path_factory.mktemp("classifier"))
            return made[CLASSIFIER]
        if continuous not in made:
            made[continuous] = write_expert_files(tmp_path_factory.mktemp("expert"), continuous)
        return made[continuous]

    return get


# --- runs


def uses_camera(reward):
    return reward.startswith("classifier")


def fill_paths(options, paths):
    """The options of a reward, with the paths of its files filled in."""
    if isinstance(options, dict):
        return {key: fill_paths(value, paths) for key, value in options.items()}
    return paths.get(options, options) if isinstance(options, str) else options


def make_config(policy, reward, folder, *, noise_seed=None, camera=False):
    """The config of a short run.

    Args:
        policy: A name of `POLICIES`.
        reward: The section ``reward``.
        folder: Where the run is written to.
        noise_seed: See `PointEnv`.
        camera: See `PointEnv`; the policy itself does not look at pictures.
    """
    options, sizes, env = (POLICIES | WITHOUT_REWARD)[policy]
    return {
        "env": {
            "id": f"{__name__}:PointEnv",
            "n_envs": 2,
            "max_episode_steps": EPISODE_LENGTH,
            "kwargs": {**env, "camera": camera, "noise_seed": noise_seed},
        },
        "policy": {
            **options,
            "model": {"hidden": [8], **({"keys": ["state"]} if camera else {})},
        },
        "reward": reward,
        **sizes,
        "eval": {"episodes": 1, "every": 64},
        "run": {"dir": str(folder), "max_steps": 192},
    }


def train(config):
    """Trains; returns the final and the best weights, and all tensors that the reward has saved."""
    summary = guerdon.train(config, seed=0, display="none")
    assert summary["updates"] >= 6
    assert summary["episodes"] >= 10 or not summary["env_steps"]  # an offline policy
    weights = {
        (which, name): tensor
        for which in ("latest", "best")
        for name, tensor in guerdon.load_policy(summary["run_dir"], which).state_dict().items()
    }
    return weights, reward_tensors(config["run"]["dir"])


def reward_tensors(run_dir):
    """The tensors in the folder ``reward`` of a run, by file and name."""
    folder = pathlib.Path(run_dir, "reward")
    return {
        (str(path.relative_to(folder)), name): tensor
        for path in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def differences(first, second):
    """The names of the tensors that are not exactly equal."""
    assert first.keys() == second.keys()
    return [name for name in first if not torch.equal(first[name], second[name])]


@pytest.fixture(scope="module")
def trained_on_zero(tmp_path_factory):
    """A function that gives the weights of a policy that was trained on a reward of zero."""
    made = {}

    def get(policy, camera):
        if (policy, camera) not in made:
            reward = {"terms": {"constant": {"value": 0.0}}}
            folder = tmp_path_factory.mktemp("zero") / "run"
            made[policy, camera], _ = train(make_config(policy, reward, folder, camera=camera))
        return made[policy, camera]

    return get


# --- tests


@pytest.mark.parametrize(("policy", "reward"), PAIRS)
def test_noise_in_the_environment_reward_changes_no_weight(
    policy, reward, files, trained_on_zero, tmp_path
):
    section = fill_paths(REWARDS[reward], files(policy, reward))
    camera = uses_camera(reward)
    weights, reward_state = train(make_config(policy, section, tmp_path / "own", camera=camera))
    noisy_weights, noisy_reward_state = train(
        make_config(policy, section, tmp_path / "noise", noise_seed=NOISE_SEED, camera=camera)
    )

    assert differences(weights, noisy_weights) == []
    assert differences(reward_state, noisy_reward_state) == []
    assert bool(reward_state) == (reward not in STATELESS)
    assert differences(weights, trained_on_zero(policy, camera)), "the reward has no effect"


@pytest.mark.parametrize("policy", WITHOUT_REWARD)
def test_noise_in_the_environment_reward_changes_no_weight_of_a_policy_without_a_reward(
    policy, files, tmp_path
):
    def run(name, noise_seed=None):
        reward = {"terms": {"env": {}}}
        config = make_config(policy, reward, tmp_path / name, noise_seed=noise_seed)
        return train(fill_paths(config, files(policy, "env")))[0]

    weights, noisy_weights = run("own"), run("noise", NOISE_SEED)
    latest = {key: weights[key] for key in weights if key[0] == "latest"}
    noisy = {key: noisy_weights[key] for key in latest}  # the best is selected by the environment
    assert differences(latest, noisy) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_noise_changes_weights_if_the_environment_reward_is_learned_from(policy, tmp_path):
    reward = {"terms": {"env": {"weight": 1.0}}}
    weights, _ = train(make_config(policy, reward, tmp_path / "own"))
    noisy_weights, _ = train(make_config(policy, reward, tmp_path / "noise", noise_seed=NOISE_SEED))
    assert differences(weights, noisy_weights)


def test_noise_changes_weights_if_the_environment_reward_is_added_to_a_learned_one(files, tmp_path):
    section = fill_paths(
        {"terms": {"gail": IMITATION, "env": {"weight": 1.0}}}, files("ppo", "gail")
    )
    weights, _ = train(make_config("ppo", section, tmp_path / "own"))
    noisy_weights, _ = train(make_config("ppo", section, tmp_path / "noise", noise_seed=NOISE_SEED))
    assert differences(weights, noisy_weights)


def test_noise_in_the_environment_reward_changes_no_weight_with_an_intrinsic_critic(tmp_path):
    """PPO with `policy.intrinsic` learns the bonus from its own term, and not from the sum."""

    def run(name, bonus, noise_seed=None):
        reward = {"terms": {"bonus": {**bonus, "weight": 0.0}, **WITHOUT_ENV}}
        config = make_config("ppo", reward, tmp_path / name, noise_seed=noise_seed)
        config["policy"]["intrinsic"] = {"terms": ["bonus"]}
        return train(config)

    rnd, zero = {"type": "rnd", **CURIOSITY}, {"type": "constant", "value": 0.0}
    weights, reward_state = run("own", rnd)
    noisy_weights, noisy_reward_state = run("noise", rnd, NOISE_SEED)
    zero_weights, _ = run("zero", zero)

    assert differences(weights, noisy_weights) == []
    assert differences(reward_state, noisy_reward_state) == []
    assert differences(weights, zero_weights), "the bonus has no effect"


@pytest.mark.parametrize(("policy", "reward"), REFUSED)
def test_incompatible_pairs_are_refused(policy, reward, files, tmp_path):
    section = fill_paths(REWARDS[reward], files(policy, reward))
    with pytest.raises(ValueError, match=reward):
        guerdon.train(make_config(policy, section, tmp_path / "run"), display="none")


def built_in(registry):
    """The names in a registry of all that guerdon itself has registered."""
    return {
        name for name in registry.names() if registry.get(name).__module__.startswith("guerdon.")
    }


def test_every_registered_reward_model_and_policy_is_covered():
    tested = {
        options.get("type", name)
        for section in REWARDS.values()
        for name, options in section["terms"].items()
    }
    assert tested | EXCLUDED_REWARDS.keys() == built_in(registry_of("reward"))
    policies = POLICIES | WITHOUT_REWARD
    assert {options["type"] for options, _, _ in policies.values()} == built_in(
        registry_of("policy")
    )


def test_fast_tests_cover_every_policy_and_every_reward():
    assert FAST.keys() == REWARDS.keys()
    assert set(FAST.values()) == POLICIES.keys()
    assert not {(policy, reward) for reward, policy in FAST.items()} & REFUSED.keys()

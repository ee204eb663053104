"""The functions of the package `guerdon`."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import guerdon
from guerdon.config import as_overrides, compose, imports, sources
from guerdon.data import Batch, Demonstrations
from guerdon.data.frames import Trajectory
from guerdon.data.loading import load_demonstrations
from guerdon.envs import make_vec
from guerdon.training.replay import collect_run
from tests.rounding import assert_close

SHORT = {
    "policy": {"model": {"hidden": [8]}},
    "collect": {"n_step": 64},
    "learn": {"batch_size": 32},
    "eval": {"episodes": 2, "every": 64},
    "run": {"max_steps": 128},
    "display": "none",
}

DATA = "reward.expert_data_path=zoo:cartpole_fixed"


class Corridor(gymnasium.Env):
    """The reward is the action."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=5):
        self.length, self.steps = length, 0

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        obs = np.full(2, self.steps / self.length, np.float32)
        return obs, float(action), self.steps == self.length, False, {}


@pytest.fixture(scope="module")
def imitated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api") / "run"
    options = SHORT | {"run": {"max_steps": 128, "dir": folder}}
    return guerdon.train("cartpole_fixed_ppo_gail", **options)


# --- training


def test_overrides_are_strings_dictionaries_and_keywords(tmp_path):
    result = guerdon.train(
        "cartpole_ppo", "policy.gamma=0.9", {"policy": {"gae_lambda": 0.8}},
        **SHORT | {"run": {"max_steps": 64, "dir": tmp_path / "a run's"}}, seed=3,
    )  # fmt: skip
    assert result.run_dir == tmp_path / "a run's"
    config = result.policy.config
    assert (config.gamma, config.gae_lambda, config.model.hidden) == (0.9, 0.8, [8])
    saved = json.loads((result.run_dir / "summary.json").read_text())
    assert result.summary == {**saved, "run_dir": str(result.run_dir)}
    assert result["seed"] == result.summary["seed"] == 3
    assert result == result.summary
    assert "seed" in result
    assert not result.policy.training
    assert repr(result).startswith("Result(PPO, eval_return_mean=")


@pytest.mark.parametrize("env", ["Acrobot-v1", "pendulum"])
def test_an_environment_is_named_by_its_id_or_by_its_option(env, tmp_path):
    options = SHORT | {"run": {"max_steps": 64, "dir": tmp_path / "run"}}
    result = guerdon.train(env=env, **options | {"policy": {"type": "ppo", "anneal": True}})
    n_numbers = {"Acrobot-v1": 6, "pendulum": 3}
    assert result.policy.observation_space.shape == (n_numbers[env],)
    assert result.policy.config.anneal


@pytest.mark.parametrize("env", [Corridor, lambda: Corridor(length=3)], ids=["class", "function"])
def test_an_environment_is_a_class_or_a_function(env, tmp_path):
    options = SHORT | {"run": {"max_steps": 64, "dir": tmp_path / "run"}}
    result = guerdon.train(env=env, **options)
    length = env().length
    assert guerdon.evaluate(result.policy, env, episodes=3)["lengths"] == [length] * 3
    if env is Corridor:  # is found again by its name
        policy = guerdon.load_policy(result.run_dir, "latest")
    else:
        with pytest.raises(ValueError, match=env.__name__):
            guerdon.load_policy(result.run_dir)
        policy = guerdon.load_policy(result.run_dir, "latest", env=env)
    assert torch.equal(policy.model.value_head.weight, result.policy.model.value_head.weight)


def test_a_callback_sees_metrics_and_stops_the_run(tmp_path):
    seen = []

    def stop(step, metrics, policy):
        seen.append(step)
        assert {type(value) for value in metrics.values()} == {float}
        assert policy.predict(np.zeros(4)) in (0, 1)
        return np.bool_(step < 128)

    options = SHORT | {"run": {"max_steps": 640, "log_every": 64, "dir": tmp_path / "run"}}
    result = guerdon.train("cartpole_ppo", callback=stop, **options)
    assert result["stop_reason"] == "callback"
    assert seen[-1] == result["env_steps"] < 640
    resumed = guerdon.train(resume=tmp_path / "run", display="none")
    assert resumed["stop_reason"] == "max_steps"
    assert resumed["env_steps"] >= 640


def test_the_callback_of_the_config_is_called_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("named.py").write_text("seen = []\n\n\ndef note(step, *_):\n    seen.append(step)\n")
    run = {"max_steps": 64, "dir": "run", "callback": "named.py:note"}
    seen = []
    options = SHORT | {"run": run, "callback": lambda step, *_: seen.append(step)}
    guerdon.train("cartpole_ppo", **options)
    named = imports.loaded(Path("named.py"))
    assert named.seen == seen != []


def test_keys_that_are_no_words_are_passed_on():
    values = {"env": {"id": "CartPole-v1", "kwargs": {"a-b": 1}}}
    assert [*as_overrides(values)] == ["env.id='CartPole-v1'", "env.kwargs={a-b:1}"]
    assert compose(None, as_overrides(values)).env.kwargs == {"a-b": 1}


def test_functions_are_passed_by_name(tmp_path):
    options = SHORT | {"run": {"max_steps": 64, "dir": tmp_path / "run"}}
    reward = {"type": "function", "target": angle}
    guerdon.train(env="cartpole", reward=reward, **options)
    target = sources.read(tmp_path / "run")["reward"]["terms"]["function"]["target"]
    assert target == "tests.test_api:angle"
    with pytest.raises(ValueError, match="cannot be found by name: define it in a file"):
        guerdon.train(env="cartpole", reward=reward | {"target": lambda _: 0}, **options)


def angle(batch):
    return batch.obs_next[..., 2]


def test_values_with_quotes_and_commas_are_kept(tmp_path):
    name = "it's a, [b] \\ {c: ${d"
    options = SHORT | {"run": {"max_steps": 64, "dir": tmp_path / "run", "name": name}}
    with pytest.raises(ValueError, match="cannot be composed"):  # "${d" is an interpolation
        guerdon.train("cartpole_ppo", **options)
    options["run"]["name"] = name = name.partition("$")[0]
    result = guerdon.train("cartpole_ppo", **options)
    assert sources.read(result.run_dir)["run"]["name"] == name


# --- evaluation


@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", lambda: gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1"),
     make_vec("CartPole-v1", 2)],
    ids=["id", "function", "environment", "vector"],
)  # fmt: skip
def test_a_policy_is_evaluated_in_any_kind_of_environment(env, imitated):
    found = guerdon.evaluate(imitated.policy, env, episodes=2, seed=1)
    assert len(found["returns"]) == found["episodes"] == 2
    assert found["return_mean"] == np.mean(found["returns"]) == found["length_mean"]
    assert found["learned_return_mean"] is None
    assert guerdon.evaluate(imitated.policy, env, episodes=2, seed=1) == found


def test_an_evaluation_shows_the_learned_return(imitated):
    found = guerdon.evaluate(imitated.policy, "guerdon/CartPoleFixed-v0", 2, reward=imitated.reward)
    assert found["learned_return_mean"] != found["return_mean"]


# --- rewards


def test_a_loaded_reward_scores_as_the_final_one(imitated):
    reward = guerdon.load_reward(imitated.run_dir)
    played = collect_run(imitated.run_dir, 2)
    rows = played.episodes[0]
    np.testing.assert_array_equal(reward.score(rows), imitated.reward.score(rows))
    labelled = reward.label(played)
    assert isinstance(labelled, Demonstrations)
    np.testing.assert_array_equal(labelled.episodes[0].rew, reward.score(rows))
    np.testing.assert_array_equal(labelled.episodes[0].obs, rows.obs)
    assert (labelled.episodes[0].rew != rows.rew).any()


def test_the_environments_reward_is_not_loaded(tmp_path):
    options = SHORT | {"run": {"max_steps": 64, "dir": tmp_path / "run"}}
    result = guerdon.train("cartpole_ppo", **options)
    with pytest.raises(ValueError, match="is the environment's"):
        guerdon.load_reward(result.run_dir)


def test_a_wrapped_environment_pays_the_learned_reward(imitated):
    reward = imitated.reward
    env = reward.wrap(gymnasium.make("guerdon/CartPoleFixed-v0", disable_env_checker=True))
    rows, done = [], False
    obs, _ = env.reset(seed=0)
    while not done:
        act = env.action_space.sample()
        after, rew, terminated, truncated, info = env.step(act)
        rows.append((obs, act, rew, info["env_reward"], terminated, truncated, after))
        obs, done = after, terminated or truncated
    names = ("obs", "act", "paid", "rew", "terminated", "truncated", "obs_next")
    batch = Batch(dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True)))
    assert_close(batch.paid, reward.score(batch))
    assert set(batch.rew.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("name", "data"),
    [("gail", [DATA]), ("pwil", [DATA]), ("pdeil", [DATA]), ("rnd", []), ("icm", []), ("ngu", [])],
)
def test_the_return_of_a_wrapped_environment_is_the_learned_return(name, data, tmp_path):
    options = SHORT | {"run": {"max_steps": 128, "dir": tmp_path / "run"}}
    result = guerdon.train("cartpole_fixed_ppo_gail", f"reward={name}", *data, **options)
    env = gymnasium.make("guerdon/CartPoleFixed-v0")
    plain = guerdon.evaluate(result.policy, env, 3, reward=result.reward)
    wrapped = guerdon.evaluate(result.policy, result.reward.wrap(env), 3)
    assert wrapped["lengths"] == plain["lengths"]
    assert wrapped["return_mean"] == pytest.approx(plain["learned_return_mean"], rel=1e-4)


@pytest.mark.parametrize("preset", ["cartpole_fixed_dqn_sqil", "bitflip_dqn_her"])
def test_a_reward_that_needs_a_replay_buffer_wraps_nothing(preset, tmp_path):
    options = {"collect": {"warmup_steps": 8}, "run": {"max_steps": 64, "dir": tmp_path / "run"}}
    reward = guerdon.train(preset, **options, eval={"episodes": 1}, display="none").reward
    with pytest.raises(TypeError, match="cannot score single steps"):
        reward.wrap(Corridor())


# --- plots


def test_a_plot_is_a_figure_and_a_file(imitated, tmp_path):
    figure = guerdon.plot([imitated.run_dir], out=tmp_path / "curves.png")
    assert len(figure.axes[0].lines) == 1
    assert (tmp_path / "curves.png").stat().st_size > 1_000
    assert guerdon.plot(str(imitated.run_dir), "reward/eval_return").axes[0].get_ylabel()
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows


# --- printing


def test_large_objects_are_printed_in_a_few_lines(imitated):
    demonstrations = load_demonstrations("zoo:cartpole_fixed")
    assert repr(demonstrations) == (
        "Demonstrations(10 episodes, 5,000 steps, env_id='guerdon/CartPoleFixed-v0')"
    )
    assert len(repr(demonstrations.transitions())) < 400
    assert "obs: float32 array of shape (5000, 4)," in repr(demonstrations.transitions())
    assert repr(imitated.reward) == "Reward(gail)"
    frames = Trajectory({"front": np.zeros((9, 3, 8, 8), np.uint8)}, np.zeros(9, np.float32), False)
    assert repr(frames) == "Trajectory(9 frames of front)"

"""Wrong calls of the public functions: errors that say what was expected and what was given."""

import re
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import guerdon
from guerdon.data import Batch
from guerdon.policy import create_policy
from guerdon.reward import Setting, make_reward

CARTPOLE = gymnasium.make("CartPole-v1")
SPACES = CARTPOLE.observation_space, CARTPOLE.action_space
OBS = np.zeros((3, 4), np.float32)
ROWS = {"obs": OBS, "act": np.array([0, 1, 0]), "obs_next": OBS, "rew": np.zeros(3, np.float32)}


def policy():
    return create_policy({"type": "ppo"}, *SPACES)


def reward():
    return make_reward({"type": "icm"}, Setting(*SPACES))


def train(*arguments, **options):
    with tempfile.TemporaryDirectory() as folder:
        run = {"max_steps": 64, "dir": f"{folder}/run"}
        return guerdon.train(*arguments, **{"run": run, "display": "none", **options})


def predict(obs):
    return policy().predict(obs)


def score(**changes):
    return reward().score({**ROWS, **changes})


def evaluate(*arguments, **options):
    return guerdon.evaluate(policy(), *arguments, **options)


def compare(*rewards, **options):
    return guerdon.compare_rewards(*rewards, on="zoo:cartpole", **options)


NUMBERS = "float32 numbers of shape (4,)"
PENDULUM = "the observations of this environment are float32 numbers of shape (3,), but the policy"
CALLS = {
    # --- Policy.predict
    "another shape": (lambda: predict(np.zeros(5)), "has the shape (5,), but its space (4,)"),
    "other rows": (lambda: predict(np.zeros((3, 5))), "has the shape (5,), but its space (4,)"),
    "a further axis": (lambda: predict(np.zeros((2, 3, 4))), "has the shape (3, 4), but its"),
    "a number": (lambda: predict(1.0), "has the shape (), but its space (4,)"),
    "nothing": (lambda: predict(None), f"is NoneType None, but has to be {NUMBERS}"),
    "text": (lambda: predict(np.array(["a"] * 4)), f"but has to be {NUMBERS}"),
    "a dictionary": (lambda: predict({"obs": OBS}), "is dict of keys (obs), but has to be"),
    "a batch": (lambda: predict(Batch(obs=OBS)), "is Batch of keys (obs), but has to be"),
    "lists of other lengths": (lambda: predict([[0.0, 0.0], [0.0]]), f"has to be {NUMBERS}"),
    "of reset": (lambda: predict(CARTPOLE.reset()), "is a pair, as reset() returns it"),
    "nan": (lambda: predict(np.full(4, np.nan)), "is nan at index (0, 0), not a finite number"),
    "too large": (lambda: predict(np.full(4, 1e39)), "is inf at index (0, 0), not a finite"),
    # --- guerdon.evaluate
    "no episodes": (lambda: evaluate("CartPole-v1", 0), "episodes is 0: give a whole number, 1"),
    "text as episodes": (lambda: evaluate("CartPole-v1", "5"), "episodes is '5': give a whole"),
    "half an episode": (lambda: evaluate("CartPole-v1", 0.5), "episodes is 0.5: give a whole"),
    "no environment": (lambda: evaluate(None), "the environment is None: give an id such as"),
    "a vector": (lambda: evaluate(gymnasium.make_vec("CartPole-v1")), "give an id such as"),
    "another environment": (lambda: evaluate("Pendulum-v1"), PENDULUM),
    "another instance": (lambda: evaluate(gymnasium.make("Pendulum-v1")), PENDULUM),
    "a path as policy": (lambda: guerdon.evaluate("run", "CartPole-v1"), "guerdon.load_policy(RUN"),
    "a path as reward": (lambda: evaluate("CartPole-v1", reward="run"), "guerdon.load_reward(RUN)"),
    "a negative seed": (lambda: evaluate("CartPole-v1", seed=-1), "seed is -1: give a whole numbe"),
    "no episodes of a run": (lambda: guerdon.evaluate_run("run", episodes=0), "episodes is 0: giv"),
    # --- guerdon.load_policy, guerdon.load_reward
    "no run": (lambda: guerdon.load_policy(None), "not as NoneType None: that of a result"),
    "a dictionary as run": (lambda: guerdon.load_policy({"a": 1}), "is result.run_dir"),
    "no run of a reward": (lambda: guerdon.load_reward(None), "is result.run_dir"),
    # --- Reward.score, Reward.label, Reward.wrap
    "no rewards": (
        lambda: reward().score(Batch(obs=OBS, act=ROWS["act"], obs_next=OBS)),
        "the transitions have no 'rew', only obs, act, obs_next: add the environment's rewards, or",
    ),
    "no actions": (lambda: reward().score(Batch(obs=OBS, rew=ROWS["rew"])), "have no 'act', only"),
    "an array": (lambda: reward().score(OBS), "transitions are a Batch or a dictionary of fields"),
    "no transitions": (lambda: score(rew=np.zeros(0)), "there are no transitions: 'rew' has the"),
    "observations of another shape": (lambda: score(obs=OBS[:, :3]), "obs has the shape (3,), but"),
    "fewer actions": (lambda: score(act=np.array([0, 1])), "act is int64 array of shape (2,), but"),
    "fractional actions": (lambda: score(act=np.full(3, 0.5)), "act has the value 0.5, but has to"),
    "unknown actions": (lambda: score(act=np.full(3, 7)), "act is 7 in row 0, which is outside"),
    "nan to score": (lambda: score(obs=OBS * np.nan), "obs is nan at index (0, 0), not a finite"),
    "ends of other rows": (lambda: score(terminated=np.zeros(5)), "terminated is float64 array of"),
    "half an end": (lambda: score(truncated=np.full(3, 0.5)), "truncated has the value 0.5, but"),
    "parts": (lambda: score(obs={"a": OBS}), f"obs is Batch of keys (a), but has to be {NUMBERS}"),
    "a name to label": (lambda: reward().label("zoo:cartpole"), "guerdon.data.load_demonstrations"),
    "an id to wrap": (lambda: reward().wrap("CartPole-v1"), "make it with gymnasium.make(ID)"),
    "another environment to wrap": (lambda: reward().wrap(gymnasium.make("Pendulum-v1")), PENDULUM),
    # --- guerdon.plot, guerdon.compare_rewards
    "no run to plot": (lambda: guerdon.plot(None), "not as NoneType None: that of a result"),
    "a number to plot": (lambda: guerdon.plot(3), "a run is given as the path of its directory"),
    "an unknown center": (lambda: guerdon.plot("run", center="median"), "choose from iqm, mean"),
    "a list to compare": (lambda: compare(["a", "b"]), "two rewards or more to compare, one argu"),
    "nothing to compare": (lambda: compare("env", None), "a run is given as the path of its"),
    "a policy to compare": (lambda: compare("env", policy()), "PPO is a policy, which is no rewar"),
    "text as noise": (lambda: compare("env", reward(), noise="a"), "noise is 'a': give a list of"),
    "one level of noise": (lambda: compare("env", reward(), noise=0.5), "noise is 0.5: give a lis"),
    "no samples": (lambda: compare("env", reward(), samples=0), "samples is 0: give a whole numbe"),
    "a large gamma": (lambda: compare("env", reward(), gamma=2.0), "gamma is 2.0: give a discount"),
    # --- guerdon.train
    "a misspelt section": (lambda: train("cartpole_ppo", polcy="sac"), "did you mean 'policy'?"),
    "a misspelt argument": (lambda: train("cartpole_ppo", resum="a"), "did you mean 'resume'?"),
    "an option of a section": (
        lambda: train("cartpole_ppo", learning_rate=1e-3),
        "unknown key 'learning_rate': did you mean 'policy.learning_rate'? (the options of a secti",
    ),
    "an environment": (lambda: train(env=CARTPOLE), "give an id (env='CartPole-v1'), a class, or"),
    "a number as override": (lambda: train("cartpole_ppo", 5), "int 5 is neither 'key=value' nor"),
    "a policy": (lambda: train("cartpole_ppo", policy=policy()), "policy is a PPO: give a name or"),
    "a reward": (lambda: train("cartpole_ppo", reward=reward()), "from_reward=RUN takes the rewar"),
    "a policy as weights": (
        lambda: train("cartpole_ppo", policy={"init_from": policy()}),
        "an option cannot be a PPO: give a number, a text such as a path, a list",
    ),
    "an id as preset": (lambda: train("CartPole-v1"), "is chosen with env.id=ID"),
    "a function": (lambda: train("cartpole_ppo", reward=lambda _: 0), "'target': FUNCTION}"),
    "a number as callback": (lambda: train("cartpole_ppo", callback=3), "the callback is 3: give"),
    "no demonstrations": (
        lambda: train(env="acrobot", policy="ppo", reward="gail"),
        "set 'expert_data_path'; name a folder that `guerdon collect RUN --episodes 20 --out FOLDE",
    ),
    "no demonstrations for bc": (
        lambda: train(env="acrobot", policy="bc"),
        "set 'policy.expert_data_path'; name a folder that `guerdon collect RUN --episodes 20",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, message = CALLS[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)) as error:
        call()
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


FILES = {
    "reward.checkpoint_path": (
        {"reward": {"type": "rnd", "checkpoint_path": "nothing"}},
        "'reward.checkpoint_path': nothing has no reward: give a run that has learned one",
    ),
    "policy.init_from": (
        {"policy": {"init_from": "nothing"}},
        "'policy.init_from': there is no checkpoint of a run in nothing/checkpoints; name the",
    ),
    "expert_data_path": (
        {"reward": {"type": "gail", "expert_data_path": "nothing"}},
        "at nothing ('expert_data_path'): name a folder that `guerdon collect RUN",
    ),
}


@pytest.mark.parametrize("key", FILES)
def test_a_missing_file_is_named_with_its_key(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options, message = FILES[key]
    with pytest.raises(FileNotFoundError, match=re.escape(message)):
        train(env="cartpole", **options)
    assert not list(Path().iterdir())


def test_what_can_be_predicted_and_scored():
    """Lists, tensors, and other dtypes with the same values."""
    made = policy()
    act = made.predict(OBS[0])
    for obs in ([0.0, 0.0, 0.0, 0.0], np.zeros(4), torch.zeros(4), np.zeros(4, int)):
        assert made.predict(obs) == act
    assert made.predict(OBS.astype(np.float64)).shape == (3,)
    model = reward()
    expected = model.score(Batch(ROWS))
    other = {**ROWS, "act": ROWS["act"].astype(float)}
    np.testing.assert_array_equal(model.score(other), expected)
    tensors = Batch(ROWS).to_torch()
    np.testing.assert_array_equal(model.score(tensors), expected)
    function = make_reward({"type": "function", "target": lambda batch: 1.0 - batch.terminated})
    assert function.score(ROWS).tolist() == [1.0, 1.0, 1.0]  # no end is marked
    one = model.score({key: value[0] for key, value in ROWS.items()})
    assert one.shape == ()

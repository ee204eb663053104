"""Behaviour cloning: its losses, held-out demonstrations, and use by other policies."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.config import ConfigError, compose, explain
from guerdon.data import Batch, Demonstrations
from guerdon.policy import create_policy
from guerdon.training.run import train
from tests.rounding import assert_close

VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)
THREE = spaces.Discrete(3, start=1)
ARM = spaces.Box(np.float32([-2.0, 0.0]), np.float32([2.0, 4.0]))


class Fixed(torch.nn.Module):
    """Answers with numbers that a test chose."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = {name: torch.tensor(value) for name, value in outputs.items()}

    def forward(self, _):
        return self.outputs


def made(action_space, outputs=None, **options):
    policy = create_policy({"type": "bc", **options}, VECTOR, action_space)
    if outputs is not None:
        policy.model = Fixed(outputs)
    return policy


def demonstrations(lengths, act=None):
    """Episodes whose observations count the rows."""
    episodes, row = [], 0
    for length in lengths:
        obs = np.arange(row, row + length, dtype=np.float32)[:, None].repeat(2, 1)
        episodes.append(
            Batch(
                obs=obs,
                act=np.ones(length, np.int64) if act is None else act[row : row + length],
                rew=np.zeros(length),
                terminated=np.zeros(length, bool),
                truncated=np.arange(length) == length - 1,
                obs_next=obs + 1,
            )
        )
        row += length
    return Demonstrations(episodes)


def test_discrete_actions_have_a_cross_entropy_and_an_accuracy():
    outputs = {"logit": np.log(np.float32([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))}
    batch = Batch(obs=torch.zeros(2, 2), act=torch.tensor([1, 2]))  # the first is 1
    errors = made(THREE, outputs).errors(batch)
    assert float(errors["loss"]) == pytest.approx(-(np.log(0.5) + np.log(0.1)) / 2, rel=1e-5)
    assert float(errors["accuracy"]) == 0.5


def test_continuous_actions_have_a_squared_error():
    batch = Batch(obs=torch.zeros(1, 2), act=torch.tensor([[1.0, 3.0]]))
    plain = made(ARM, {"mu": np.float32([[2.0, 0.0]]), "log_std": np.zeros((1, 2), np.float32)})
    assert float(plain.errors(batch)["loss"]) == pytest.approx((1.0 + 9.0) / 2)
    # In [-1, 1] the actions are 0.5 and 0.5.
    outputs = {"mu": np.arctanh(np.float32([[0.0, 0.75]]))}
    squashed = made(ARM, outputs, squash=True)
    assert float(squashed.errors(batch)["loss"]) == pytest.approx((0.25 + 0.0625) / 2)
    assert_close(squashed.predict(np.zeros(2, np.float32)), [0.0, 3.5])


def test_whole_episodes_are_held_out():
    policy = made(THREE, holdout=0.3)
    policy.load_expert_data(demonstrations([3, 4, 2, 5]))
    rows = [set(part.obs[:, 0].astype(int).tolist()) for part in (policy.fitted, policy.held_out)]
    assert rows[0] | rows[1] == set(range(14))
    assert not rows[0] & rows[1]
    assert rows[1] in ({0, 1, 2}, {3, 4, 5, 6}, {7, 8}, {9, 10, 11, 12, 13})
    everything = made(THREE, holdout=0)
    everything.load_expert_data(demonstrations([3, 4]))
    assert (len(everything.fitted), len(everything.held_out)) == (7, 0)
    assert everything.validate() == {}


def test_the_metrics_of_held_out_demonstrations_are_means_over_their_rows():
    outputs = {"logit": np.zeros((1, 3), np.float32)}
    policy = made(THREE, outputs, holdout=0.5)
    policy.load_expert_data(demonstrations([4, 4]))
    policy.model.outputs["logit"] = torch.zeros(4, 3)
    found = policy.validate()
    assert float(found["holdout/loss"]) == pytest.approx(np.log(3), rel=1e-5)
    assert float(found["holdout/accuracy"]) == 1.0  # the first of equal ones


def test_it_learns_from_the_part_that_the_options_select():
    policy = made(THREE, holdout=0, episodes=2, subsample=4)
    policy.load_expert_data(demonstrations([8, 8, 8]))
    rows = policy.fitted.obs[:, 0].astype(int)
    assert len(rows) == 4
    assert (np.diff(rows)[[0, 2]] == 4).all()
    assert rows.max() < 16


def test_demonstrations_of_another_task_are_refused():
    with pytest.raises(ValueError, match="act of the demonstrations is 0 in row 0"):
        made(THREE).load_expert_data(demonstrations([3], np.zeros(3, np.int64)))
    with pytest.raises(ValueError, match=r"set 'policy.expert_data_path'"):
        made(THREE).load_expert_data()
    with pytest.raises(ConfigError, match=r"'policy.squash' has no effect, since actions are in a"):
        made(THREE, squash=True)


def test_a_reward_is_refused_and_explained():
    with pytest.raises(ConfigError, match="'reward' is set, but bc learns from no reward"):
        compose("cartpole_fixed_bc", ["reward=constant"])
    with pytest.raises(ConfigError, match="'reward' is set, but bc learns from no reward"):
        compose("cartpole_fixed_bc", ["reward.scale=2"])
    with pytest.raises(ConfigError, match=r"'collect.n_step' is 8, but bc does not read it"):
        compose("cartpole_fixed_bc", ["collect.n_step=8"])
    assert explain(compose("cartpole_fixed_bc")) == "no reward is used → expert actions"


def run(folder, source, *overrides):
    return train(source, *overrides, f"run.dir={folder}", seed=1, display="none")


SHORT = ("run.max_steps=300", "eval.every=300", "eval.episodes=2")
SAME = ("policy.learning_rate=1e-30", "eval.episodes=2", "run.max_steps=64")
OFF_POLICY = (
    *SAME,
    "learn.batch_size=16",
    "collect.n_step=8",
    "collect.warmup_steps=32",
    "collect.buffer_size=100",
)
STARTED = {
    "ppo": (*SAME, "policy.anneal=false", "collect.n_step=64", "learn.batch_size=64"),
    "a2c": (*SAME, "collect.n_step=64"),
    "impala": (*SAME, "collect.n_step=64"),
    "dqn": (*OFF_POLICY, "policy.model={activation: tanh}"),
    "sac": (*OFF_POLICY, "policy.model={activation: tanh, hidden: [64, 64]}"),
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clone") / "run"
    summary = run(folder, "cartpole_fixed_bc", *SHORT)
    assert summary["env_steps"] == 0
    assert summary["updates"] == 300
    return folder, summary


@pytest.mark.parametrize("policy", STARTED)
def test_other_policies_can_start_with_a_clone(policy, clone, tmp_path):
    folder, cloned = clone
    options = ("env=cartpole_fixed", f"policy={policy}", f"policy.init_from={folder}")
    started = run(tmp_path / "run", None, *options, *STARTED[policy])
    shown = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32) * 0.05
    np.testing.assert_array_equal(started.policy.predict(shown), cloned.policy.predict(shown))
    if policy == "dqn":
        weights = started.policy.target.state_dict()
        torch.testing.assert_close(weights, started.policy.model.state_dict())


NETWORK = "{hidden: [16], activation: relu, orthogonal: false}"


@pytest.fixture(scope="module")
def squashed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squashed") / "run"
    return run(folder, "pendulum_bc", *SHORT, "policy.squash=true", f"policy.model={NETWORK}")


@pytest.mark.usefixtures("rounding")
@pytest.mark.parametrize("preset", ["sac", "td3", "ddpg", "iqlearn"])
def test_policies_with_bounded_actions_can_start_with_a_squashed_clone(preset, squashed, tmp_path):
    options = (f"policy.model={NETWORK}", f"policy.init_from={squashed.run_dir}")
    started = run(tmp_path / "run", f"pendulum_{preset}", *options, *OFF_POLICY)
    shown = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    expected = squashed.policy.predict(shown)
    assert_close(started.policy.predict(shown), expected)
    if preset in ("td3", "ddpg"):
        weights = started.policy.actor_target.state_dict()
        torch.testing.assert_close(weights, started.policy.actor.state_dict())


@pytest.mark.parametrize("preset", ["pendulum_td3", "pendulum_iqlearn"])
def test_the_options_that_a_clone_needs_are_printed_and_fit(preset, tmp_path):
    start = f"policy.init_from={tmp_path / 'clone'}"
    run(tmp_path / "clone", "pendulum_bc", *SHORT)
    with pytest.raises(ValueError, match="; clone with ") as caught:
        run(tmp_path / "run", preset, start, *OFF_POLICY)
    needed = str(caught.value).partition("; clone with ")[2].split()
    assert needed == [
        "policy.model.hidden=[256,256]", "policy.model.activation=relu", "policy.squash=true"
    ]  # fmt: skip
    start = f"policy.init_from={tmp_path / 'other'}"
    run(tmp_path / "other", "pendulum_bc", *SHORT, *needed)
    assert run(tmp_path / "run", preset, start, *OFF_POLICY)["updates"]


def test_a_clone_that_does_not_fit_is_named(clone, tmp_path):
    start = f"policy.init_from={clone[0]}"
    with pytest.raises(ValueError, match="does not fit dqn: its activation is tanh, here relu"):
        run(tmp_path / "run", None, "env=cartpole_fixed", "policy=dqn", start, *OFF_POLICY)
    with pytest.raises(ValueError, match=r"does not fit ppo: .* is \(64, 4\) there and \(8, 4\)"):
        run(tmp_path / "run", "cartpole_fixed_ppo", start, "policy.model.hidden=[8]")
    same = ("policy.model={hidden: [64, 64], activation: tanh}", *OFF_POLICY)
    with pytest.raises(ValueError, match="does not fit iqlearn: it acts by its critics"):
        run(tmp_path / "run", "cartpole_fixed_iqlearn", start, *same)
    assert not (tmp_path / "run").exists()


def test_it_clones_an_expert_of_cartpole_in_seconds(clone):
    assert clone[1]["eval_return_mean"] > 450

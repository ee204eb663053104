"""Dataset aggregation: who acts, what is labelled, and which experts there are."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from guerdon.data import Batch
from guerdon.envs import make_vec
from guerdon.envs.experts import balance, swing_up
from guerdon.policy import Policy, create_policy
from guerdon.training.evaluation import evaluate
from guerdon.training.experts import find_expert
from guerdon.training.run import train

VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)
FOUR = spaces.Discrete(4)


def made(expert, action_space=FOUR, **options):
    policy = create_policy({"type": "dagger", **options}, VECTOR, action_space)
    policy.expert = expert
    return policy


def three(obs):
    return np.full(len(obs), 3)


@pytest.mark.parametrize(("steps", "share"), [(0, 1.0), (500, 0.75), (2_000, 0.0), (9_000, 0.0)])
def test_the_share_of_the_expert_falls_linearly(steps, share):
    policy = made(three, beta_steps=2_000)
    with torch.no_grad():  # the policy itself would always choose 0
        policy.model.head.linear.bias.copy_(torch.tensor([9.0, 0.0, 0.0, 0.0]))
    policy.advance(steps, 0.0)
    output = policy(Batch(obs=np.zeros((4_000, 2), np.float32)))
    assert np.mean(output.act == 3) == pytest.approx(share, abs=0.03)
    assert set(output.act.tolist()) <= {0, 3}
    np.testing.assert_array_equal(output.policy.expert, 3)  # whoever acts
    random = policy.random_output(Batch(obs=np.zeros((2, 2), np.float32)), np.array([1, 2]))
    assert (random.act.tolist(), random.policy.expert.tolist()) == ([1, 2], [3, 3])


def test_the_expert_is_not_asked_when_the_policy_is_tested():
    policy = made(None)
    obs = np.zeros((3, 2), np.float32)
    with policy.testing():
        assert "policy" not in policy(Batch(obs=obs))
    assert policy.predict(obs).shape == (3,)
    assert policy.predict(obs, deterministic=False).shape == (3,)


def test_it_learns_what_the_expert_would_have_done():
    policy = made(three, max_grad_norm=None)
    batch = Batch(
        obs=torch.zeros(1, 2), act=torch.tensor([0]), policy=Batch(expert=torch.tensor([3]))
    )
    metrics = policy.learn(batch)
    probability = 0.25  # of a new network, nearly
    assert float(metrics["train/loss"]) == pytest.approx(-np.log(probability), abs=0.05)
    assert float(policy.learn(batch)["train/loss"]) < float(metrics["train/loss"])


@pytest.mark.parametrize(
    "expert", [lambda obs: np.zeros((len(obs), 1)), lambda _: 3, lambda obs: np.ones(len(obs)) / 2]
)
def test_an_expert_that_returns_something_else_is_named(expert):
    with pytest.raises(ValueError, match=r"returned .* for 5 observations: it has to return int64"):
        made(expert)(Batch(obs=np.zeros((5, 2), np.float32)))


def test_without_an_expert_nothing_is_made(tmp_path):
    with pytest.raises(ValueError, match=r"dagger asks an expert: set 'policy.expert'"):
        train(None, "env=cartpole", "policy=dagger", f"run.dir={tmp_path / 'run'}", display="none")
    assert not (tmp_path / "run").exists()


QUICK = ("run.max_steps=256", "eval.episodes=2", "eval.every=256")


def test_experts_are_functions_runs_and_presets(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "mine.py"
    file.write_text("def answer(obs):\n    return (obs[:, 2] + obs[:, 3] > 0).astype(int)\n")
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    answer = find_expert(f"{file}:answer")
    np.testing.assert_array_equal(answer(obs), obs[:, 2] + obs[:, 3] > 0)
    clone = ("cartpole_fixed_bc", *QUICK, f"run.dir={tmp_path / 'clone'}")
    run = train(*clone, seed=0, display="none")
    np.testing.assert_array_equal(find_expert(str(run.run_dir))(obs), run.policy.predict(obs))
    preset = tmp_path / "tiny.yaml"
    preset.write_text(
        "env: cartpole_fixed\npolicy: {type: bc, expert_data_path: 'zoo:cartpole_fixed'}\n"
        "run: {max_steps: 200}\neval: {every: 200, episodes: 1}\n"
    )
    for i, expert in enumerate((f"{file}:answer", run.run_dir, f"expert:{preset}?episodes=1")):
        options = ("env=cartpole_fixed", "policy=dagger", f"policy.expert='{expert}'", *QUICK)
        options = (*options, f"run.dir={tmp_path / str(i)}")
        summary = train(None, *options, display="none", seed=0)
        assert summary["env_steps"] == 256


@pytest.mark.parametrize(
    ("preset", "steps", "least"), [("cartpole_fixed", 4_000, 475), ("lunarlander", 10_000, 200)]
)
def test_it_learns_from_a_rule(tmp_path, preset, steps, least):
    if preset == "lunarlander":
        pytest.importorskip("Box2D")
    budget = (f"run.max_steps={steps}", f"eval.every={steps}", f"run.dir={tmp_path / 'run'}")
    assert train(f"{preset}_dagger", *budget, seed=0, display="none")["eval_return_mean"] > least


@pytest.mark.parametrize(
    ("env_id", "rule", "least"),
    [("guerdon/CartPoleFixed-v0", balance, 500), ("Pendulum-v1", swing_up, -200)],
)
def test_the_rules_solve_their_tasks(env_id, rule, least):
    class Ruled(Policy):
        def forward(self, batch, *_):
            return Batch(act=rule(batch.obs))

    env = make_vec(env_id, 20)
    policy = Ruled({}, env.observation_space, env.action_space)
    assert np.mean(evaluate(policy, env, 40, seed=3).returns) >= least

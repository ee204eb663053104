"""Evaluations change nothing that is learned, and the run's own reward selects the best policy."""

import copy
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import guerdon
from guerdon.cli import app
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.parts import Seeds
from guerdon.training.replay import evaluate_run
from tests.training.running import leaves, same
from tests.training.test_noise_law import (
    CURIOSITY,
    FAST,
    IMITATION,
    REWARDS,
    files,  # noqa: F401 - a fixture
    fill_paths,
    make_config,
    uses_camera,
)

ENV = {"terms": {"env": {}}}
CASES = {
    "env": ("ppo", ENV),
    "env_dqn": ("dqn_prioritized", ENV),
    "env_sac": ("sac", ENV),
    "pwil": ("dqn", REWARDS["pwil"]),
    "pwil_ppo": ("ppo", REWARDS["pwil"]),
    "ngu": ("ppo", {"terms": {"ngu": CURIOSITY, "env": {}}}),
    "gail": ("sac_discrete", REWARDS["gail"]),
    "gail_normalized": ("ppo", REWARDS["gail_normalized"]),
    "classifier": ("ppo_continuous", REWARDS["classifier"]),
    "classifier_online": (
        "ppo",
        {
            "terms": {
                "classifier": {"min_precision": 0.0, "min_recall": 0.0, "terminate": "online"}
            },
            "checkpoint_path": REWARDS["classifier"]["checkpoint_path"],
        },
    ),
}


def state_of(run):
    """Everything that is learned, by path; alarms are about evaluations."""
    (*_, last) = checkpoint_steps(run / "checkpoints")
    state, _ = load_checkpoint(run / "checkpoints", last)
    return leaves({name: state[name] for name in state.keys() - {"monitor", "evaluator", "alarms"}})


@pytest.mark.parametrize("name", CASES)
def test_runs_that_differ_in_their_evaluations_learn_the_same(name, files, tmp_path):  # noqa: F811
    policy, reward = CASES[name]
    camera = uses_camera(name)
    kind = "classifier" if camera else "gail"
    section = fill_paths(copy.deepcopy(reward), files(policy, kind))
    states = []
    for every in (32, 100, 10_000):
        config = make_config(policy, section, tmp_path / str(every), camera=camera)
        config["eval"] = {"every": every, "episodes": 3, "n_envs": 2}
        summary = guerdon.train(config, display="none")
        assert summary["episodes"] >= 10
        states.append(state_of(tmp_path / str(every)))
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert [key for key in state if not same(state[key], states[0][key])] == []


@pytest.mark.parametrize("name", ["gail", "rnd", "pwil", "ngu", "classifier"])
def test_a_later_evaluation_finds_the_learned_return_of_the_training(name, files, tmp_path):  # noqa: F811
    policy, run = FAST[name], tmp_path / "run"
    section = fill_paths(copy.deepcopy(REWARDS[name]), files(policy, name))
    config = make_config(policy, section, run, camera=uses_camera(name))
    config["eval"] = {"every": 64, "episodes": 3}
    steps = guerdon.train(config, seed=0, display="none")["env_steps"]
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    seed = np.random.SeedSequence([Seeds.of(0).evaluate, steps, False]).generate_state(1)[0]
    found = evaluate_run(run, checkpoint="latest", episodes=3, seed=int(seed))
    assert found["learned_return_mean"] == lines_of(run)[steps]["reward/eval_return"]
    assert found["return_mean"] == lines_of(run)[steps]["eval/mean_reward"]
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    shown = CliRunner().invoke(app, ["eval", str(run), "--episodes", "1"]).output
    assert "learned return" in shown


def lines_of(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines if "eval/mean_reward" in line}


def trained(tmp_path, policy, reward, **evaluation):
    config = make_config(policy, reward, tmp_path / "run")
    config["eval"] = {"every": 32, "episodes": 2, **evaluation}
    summary = guerdon.train(config, display="none")
    assert load_checkpoint(tmp_path / "run" / "best")[1] == summary["best_step"]
    return summary, lines_of(tmp_path / "run")


def test_a_frozen_reward_selects_the_policy_with_the_highest_learned_return(tmp_path):
    summary, lines = trained(tmp_path, "ppo", REWARDS["function"])
    learned = {step: line["reward/eval_return"] for step, line in lines.items()}
    assert len({*learned.values()}) > 2
    assert learned[summary["best_step"]] == max(learned.values())
    assert summary["best_eval_return_mean"] == lines[summary["best_step"]]["eval/mean_reward"]


def test_the_environment_selects_if_the_user_says_so(tmp_path):
    summary, lines = trained(tmp_path, "ppo", REWARDS["function"], select_by="env")
    true = {step: line["eval/mean_reward"] for step, line in lines.items()}
    assert len({*true.values()}) > 2
    assert true[summary["best_step"]] == max(true.values())


def test_a_constant_reward_selects_the_last_policy(tmp_path):
    summary, lines = trained(tmp_path, "ppo", {"terms": {"constant": {"value": 0.0}}})
    assert summary["best_step"] == max(lines)


def test_a_target_is_a_return_of_the_reward_that_selects(tmp_path):
    reward = {"terms": {"constant": {"value": 100.0}}}
    summary, _ = trained(tmp_path, "ppo", reward, target_return=90.0)
    assert summary["stop_reason"] == "target_return"
    assert summary["env_steps"] == 32
    assert summary["eval_return_mean"] < 90


@pytest.mark.parametrize(
    "change",
    [
        "reward.scale=0.01",
        "reward.clip=[0,0.01]",
        "reward.terms.constant.weight=0.01",
        "eval.select_by=env",
    ],
)
def test_a_resumed_run_does_not_compare_scores_of_different_rewards(change, tmp_path):
    before, _ = trained(tmp_path, "ppo", {"terms": {"constant": {"value": 100.0}}})
    run, steps = tmp_path / "run", before["env_steps"] + 64
    changes = [change, f"run.max_steps={steps}", "eval.target_return=90"]
    after = guerdon.train(None, *changes, resume=run, display="none")
    assert after["stop_reason"] == "max_steps"
    assert load_checkpoint(run / "checkpoints")[0]["evaluator"]["best"]["score"] < 90


def test_a_target_is_refused_if_the_reward_is_trained_beside_the_policy(files, tmp_path):  # noqa: F811
    reward = fill_paths({"terms": {"gail": IMITATION}}, files("ppo", "gail"))
    with pytest.raises(ValueError, match=r"'eval.target_return' is set, .* eval.select_by=env"):
        trained(tmp_path, "ppo", reward, target_return=90.0)
    assert not (tmp_path / "run").exists()
    trained(tmp_path, "ppo", reward, target_return=90.0, select_by="env")

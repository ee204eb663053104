"""Predicted success beside true success."""

import json

import numpy as np
import pytest

from guerdon.envs import make_vec
from guerdon.envs.rows import reported_success
from guerdon.policy import create_policy
from guerdon.reward import Reward, Term
from guerdon.training import evaluation as evaluation_module
from guerdon.training import experts
from guerdon.training.audit import Audit
from guerdon.training.evaluation import evaluate, evaluation_metrics
from guerdon.training.replay import evaluate_run
from guerdon.training.run import train
from tests.reward.seeing import ID, FirstPixel, config_of, reader, write_fit
from tests.rounding import assert_close
from tests.training.running import metrics_of


def predicted(success, held=None, ends=True):
    """Columns of the frames of an episode: predicted, held, and after the first held success."""
    success = np.array(success, bool)
    held = success if held is None else np.array(held, bool)
    after = ends & (np.cumsum(held) - held > 0)
    return success, held, after


def audited(*episodes):
    """From pairs of predicted and true success of frames."""
    audit = Audit()
    for success, true in episodes:
        audit.add(*predicted(success), np.array(true, np.float32))
    return audit


# --- by hand


def test_it_counts_episodes_and_the_frames_that_the_learner_reads():
    audit = audited(
        ([0, 0, 1, 1], [0, 0, 1, 0]),  # a true success in its third frame; the fourth comes after
        ([0, 1, 0, 0], [0, 0, 0, 1]),  # a false one in its second; the true one comes after
        ([0, 0, 0, 0], [0, 1, 1, 0]),  # two successes that are not seen
        ([0, 0, 0, 0], [0, 0, 0, 0]),
    )
    assert audit.claimed == [True, True, False, False]
    assert audit.confirmed == [True, False, False, False]
    assert audit.once == [True, True, True, False]
    # True: 1 seen and 2 not. False: 1 seen, and 2 + 1 + 2 + 4 not.
    np.testing.assert_array_equal(audit.frames, [[9, 1], [2, 1]])
    assert audit.metrics() == {
        "reward/success_rate": 0.5,
        "eval/success_at_prediction": 0.25,
        "eval/success_once": 0.75,
        "reward/false_positive_rate": 1 / 10,
        "reward/false_negative_rate": 2 / 3,
    }
    assert audit.false_claims == 0.25


def test_a_success_has_to_be_held_to_be_claimed():
    audit = Audit()
    audit.add(*predicted([1, 0, 1, 1], held=[0, 0, 0, 1]), np.array([0, 0, 0, 1.0]))
    assert audit.confirmed == [True]
    np.testing.assert_array_equal(audit.frames, [[1, 2], [0, 1]])


def test_rates_of_nothing_are_left_out():
    assert Audit().metrics() == {}
    assert Audit().warnings() == []
    assert "reward/false_negative_rate" not in audited(([0, 1], [0, 0])).metrics()
    assert "reward/false_positive_rate" not in audited(([1], [1])).metrics()


def test_without_true_success_only_predictions_are_counted():
    audit = audited(([1, 0], [np.nan, 1]), ([0, 1], [0, 1]))
    assert audit.claimed == [True, True]
    assert audit.confirmed == audit.checked == [True]
    alone = audited(([1, 0], [np.nan, np.nan]))
    assert alone.metrics() == {"reward/success_rate": 1.0}
    assert alone.warnings() == []


def test_an_episode_without_an_end_is_evaluated_at_its_last_frame():
    audit = Audit()
    audit.add(*predicted([0, 1, 1, 1], ends=False), np.array([0, 1, 0, 0.0]))
    audit.add(*predicted([1, 1, 0, 0], ends=False), np.array([1, 1, 0, 0.0]))
    assert audit.claimed == [True, False]
    assert audit.confirmed == [False, False]
    np.testing.assert_array_equal(audit.frames, [[3, 2], [0, 3]])
    assert "cheats" in audit.warnings()[0]


def test_an_environment_that_ends_at_success_is_warned_about():
    audit = Audit()
    audit.add(*predicted([0, 1]), np.array([0, 1.0]), terminated=True)
    assert "the environment ends episodes at success" in audit.warnings()[0]
    other = Audit()
    other.add(*predicted([0, 0]), np.array([0, 0.0]), terminated=True)  # it fell, say
    assert other.warnings() == []


def test_false_predicted_success_is_warned_about():
    honest, cheat = ([0, 1], [0, 1]), ([0, 1], [0, 0])
    assert audited(*[honest] * 5, cheat).warnings() == []  # one of six
    (sentence,) = audited(*[honest] * 4, cheat).warnings()  # one of five
    assert sentence == (
        "the policy cheats its reward: predicted success 100%, true success 80%; refit the "
        "classifier during training with 'reward.cotrain=true', or collect such frames as "
        "failures and fit it again"
    )


def test_missed_success_is_warned_about():
    (sentence,) = audited(*[([0, 0], [0, 1])] * 4).warnings()
    assert sentence.startswith("no success is predicted, but 100% of episodes have one: collect ")
    assert audited(([1, 0], [1, 0]), *[([0, 0], [0, 1])] * 3).warnings() == []
    assert audited(*[([0, 0], [0, 0])] * 4).warnings() == []


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"success": np.array([True, False, True])}, [1, 0, 1]),
        ({"success": np.array([1, 1, 0]), "_success": np.array([1, 0, 1], bool)}, [1, np.nan, 0]),
        ({"success": np.zeros(3), "_success": np.zeros(3, bool)}, [np.nan] * 3),
        ({"success": True}, [1, 1, 1]),
        ({"is_lost": np.ones(3)}, [np.nan] * 3),
        ({"is_success": np.array([1, 0, 1])}, [1, 0, 1]),
        ({"success": np.ones(3), "success_frame": np.array([1, 0, 0])}, [1, 1, 1]),
        ({"success": None, "is_success": [True, False, True]}, [1, 0, 1]),
        (
            {
                "is_success": np.ones(3),
                "success": np.zeros(3),
                "_success": np.array([1, 0, 1], bool),
            },
            [0, 1, 0],
        ),
    ],
)
def test_true_success_is_read_from_info(info, expected):
    np.testing.assert_array_equal(reported_success(info, 3), expected)


# --- in an evaluation


def lamp_policy(env):
    config = {"type": "ppo", "model": {"hidden": [8], "keys": ["state"]}}
    return create_policy(config, env.observation_space, env.action_space, seed=2)


def played(model, **kwargs):
    env = make_vec(ID, 2, kwargs=kwargs)
    reward = Reward({"classifier": Term(model, 1.0)})
    result = evaluate(lamp_policy(env), env, 30, deterministic=False, seed=1, reward=reward)
    return result, evaluation_metrics(result)


def test_a_perfect_classifier():
    result, metrics = played(reader(FirstPixel(), threshold=150 / 255))
    assert 0.1 < metrics["reward/success_rate"] < 1.0
    assert metrics["eval/success_at_prediction"] == metrics["reward/success_rate"]
    assert metrics["eval/success_once"] == metrics["reward/success_rate"]
    assert metrics["reward/false_positive_rate"] == metrics["reward/false_negative_rate"] == 0.0
    assert metrics["reward/eval_return"] == metrics["reward/success_rate"]
    assert result.audit.warnings() == []
    # Later frames count as well for what the environment calls a success.
    assert metrics["eval/success_rate"] != metrics["eval/success_at_prediction"]


def test_a_classifier_with_a_low_threshold():
    result, metrics = played(reader(threshold=0.001))
    assert metrics["reward/success_rate"] == 1.0
    assert metrics["eval/success_at_prediction"] < 0.2
    assert metrics["reward/false_positive_rate"] > 0.5
    assert "cheats" in result.audit.warnings()[0]


def test_a_classifier_that_predicts_no_success():
    result, metrics = played(reader(FirstPixel(lambda value: 0 * value)))
    assert metrics["reward/success_rate"] == metrics["reward/eval_return"] == 0.0
    assert metrics["reward/false_negative_rate"] == 1.0
    assert [warning[:24] for warning in result.audit.warnings()] == ["no success is predicted,"]


def test_frames_are_scored_once():
    member = FirstPixel()
    result, _ = played(reader(member))
    assert sum(member.frames) == sum(result.lengths)


@pytest.mark.parametrize(
    "options",
    [
        {"hold": 2},
        {"reward_type": "continuous"},
        {"reward_mode": "per_step"},
        {"terminate": "never"},
        {"terminate": "online"},
    ],
    ids=str,
)
def test_returns_do_not_depend_on_how_many_frames_are_scored_at_once(options, monkeypatch):
    one, metrics = played(reader(**options))
    monkeypatch.setattr(evaluation_module, "_CHUNK", 5)
    other, same_metrics = played(reader(**options))
    assert_close(one.learned, other.learned)
    assert metrics == pytest.approx(same_metrics)
    assert len(set(one.learned)) > 1


def test_true_success_at_the_end_alone_is_not_enough():
    from tests.collect.showing import Showing

    class Late(Showing):
        def step(self, action):
            obs, rew, terminated, truncated, info = super().step(action)
            if not (terminated or truncated):
                info.pop("success")
            return obs, rew, terminated, truncated, info

    env = make_vec(lambda: Late(lengths=(3,)), 1, backend="base")
    reward = Reward({"classifier": Term(reader(), 1.0)})
    policy = create_policy(
        {"type": "ppo", "model": {"keys": ["state"]}}, env.observation_space, env.action_space
    )
    result = evaluate(policy, env, 2, reward=reward)
    assert len(result.learned) == 2
    assert list(result.audit.metrics()) == ["reward/success_rate"]


# --- in a run


def test_a_run_warns_of_false_predicted_success(tmp_path):
    fit = write_fit(tmp_path / "fit", threshold=0.001)  # every frame is a success
    summary = train(config_of(tmp_path / "run", fit), display="none")
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    warned = [line for line in lines if "the policy cheats its reward" in line]
    assert [line.split()[3] for line in warned] == ["64:", "128:"]
    assert "predicted success 100%, true success 0%;" in warned[-1]
    assert summary["eval_model_success_rate"] == 1.0
    assert summary["eval_success_at_prediction"] == 0.0
    assert summary["eval_success_once"] >= summary["eval_success_rate"]
    on_disk = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert on_disk["eval_model_success_rate"] == 1.0
    evaluated = [line for line in metrics_of(tmp_path / "run") if "eval/mean_reward" in line]
    assert len(evaluated) == 2
    assert all(line["reward/success_rate"] == 1.0 for line in evaluated)


def test_an_evaluation_of_a_run_trains_no_expert(tmp_path, monkeypatch):
    fit = write_fit(tmp_path / "fit", threshold=0.5)
    train(config_of(tmp_path / "run", fit), display="none")
    monkeypatch.setattr(experts, "make_experts", None)
    assert evaluate_run(tmp_path / "run", episodes=2)["audit"] is not None


def test_a_run_that_is_resumed_at_its_end_keeps_its_results(tmp_path):
    fit = write_fit(tmp_path / "fit", threshold=0.5)
    before = train(config_of(tmp_path / "run", fit), display="none")
    after = train(resume=tmp_path / "run", display="none")
    names = [name for name in before if name.startswith("eval_")]
    assert "eval_model_success_rate" in names
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


def test_without_true_success_the_summary_has_the_predicted_one(tmp_path):
    fit = write_fit(tmp_path / "fit", threshold=0.001)
    config = config_of(tmp_path / "run", fit)
    config["env"]["kwargs"]["tells"] = False
    summary = train(config, display="none")
    assert summary["eval_model_success_rate"] == 1.0
    assert "eval_success_rate" not in summary


def test_a_run_without_false_successes_has_no_warning(tmp_path):
    fit = write_fit(tmp_path / "fit", threshold=0.999)  # no frame is
    summary = train(config_of(tmp_path / "run", fit), display="none")
    assert "cheats" not in (tmp_path / "run" / "log.txt").read_text()
    assert summary["eval_model_success_rate"] == 0.0

"""Alarms about learned rewards, which never see the true return."""

import json
import re

import numpy as np
import pytest
import torch

from guerdon.data import Batch
from guerdon.lab.report import write_report
from guerdon.reward import REWARDS, RewardModel, register_reward_model
from guerdon.reward.ood import Reference
from guerdon.training import alarms as rules
from guerdon.training.alarms import Familiarity, History, alarms, findings
from guerdon.training.callback import Callback
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint
from guerdon.training.run import _rewind, train
from guerdon.training.run_folder import RunFolder
from tests.training.running import metrics_of


def series(learned, **lines):
    steps = range(100, 100 * len(learned) + 1, 100)
    named = {"reward/eval_return": learned} | {f"reward/x/{k}": v for k, v in lines.items()}
    return {name: list(zip(steps, line, strict=False)) for name, line in named.items()}


def found(learned, **lines):
    return [(alarm.term, alarm.rule) for alarm in findings(series(learned, **lines))]


@pytest.mark.parametrize(
    ("rule", "limit"),
    [("ood_paid", rules.PAID), ("shift", rules.SHIFT), ("disagreement", rules.DISAGREEMENT)],
)
def test_a_rule_finds_a_median_of_three_evaluations_that_is_at_the_limit(rule, limit):
    low, returns = limit - 0.01, [1.0, 2.0, 3.0, 4.0]
    assert found(returns, **{rule: [low, limit, limit, limit]}) == [("x", rule)]
    assert found(returns, **{rule: [limit, limit, low, low]}) == []
    assert found(returns, **{rule: [low, limit, low, 9.0]}) == [("x", rule)]
    assert found(returns[:2], **{rule: [limit, limit]}) == []


def test_what_is_found_at_several_evaluations_in_a_row_is_an_alarm():
    first = rules.EVALUATIONS + rules.HELD - 1
    far = [rules.SHIFT] * first
    assert len(alarms(series([1.0] * first, shift=far))) == 1
    assert alarms(series([1.0] * (first - 1), shift=far)) == []
    near = [0.0] * 3 + far  # the median of three is at the limit from the fifth on
    assert alarms(series([1.0] * (first + 1), shift=near)) == []
    assert len(alarms(series([1.0] * (first + 2), shift=near))) == 1
    # Another rule at each evaluation is none.
    parts = {"shift": [9.0, 9.0, 9.0, 9.0, 9.0, 0.0, 0.0], "ood_paid": [0.0] * 3 + [1.0] * 4}
    assert found([1.0] * 7, **parts) == [("x", "ood_paid")]
    assert alarms(series([1.0] * 7, **parts)) == []


def test_a_value_that_is_missing_at_the_newest_evaluations_is_no_alarm():
    assert found([1.0] * 6, shift=[9.0] * 3) == []  # of the first three of six evaluations


def test_the_return_has_to_rise_while_transitions_become_unlike_the_data():
    far = [0.1, 0.1, 0.5, 0.5, 0.5]
    assert found([1.0, 2.0, 3.0, 4.0, 5.0], ood_share=far) == [("x", "ood_share")]
    assert found([5.0, 4.0, 3.0, 2.0, 1.0], ood_share=far) == []
    assert found([1.0, 2.0, 3.0, 4.0, 5.0], ood_share=[0.1, 0.1, 0.3, 0.5, 0.5]) == []
    assert found([1.0, 2.0, 3.0, 4.0, 5.0], ood_share=[0.9] * 5) == []  # `ood_paid` is for that


def test_novelty_that_wears_off_is_no_alarm():
    left, returns = rules.NOVELTY, [1.0] * 16
    assert found(returns, novelty=[1.0] * 12 + [left] * 4) == [("x", "novelty")]
    assert found(returns, novelty=[1.0] * 12 + [left, left, left / 2, left]) == []
    assert found(returns[:8], novelty=[1.0] * 8) == []  # too early


def test_the_text_has_what_was_seen():
    (alarm,) = findings(series([1.0] * 3, ood_paid=[0.5, 0.9, 0.75]))
    assert alarm.text == (  # the median
        "x: 75% of the policy's transitions are unlike the data that the reward was fitted to, but "
        "paid like it"
    )
    (alarm,) = findings(series([1.0, 2.0, 3.0, 4.0, 5.0], ood_share=[0.1, 0.2, 0.5, 0.5, 0.6]))
    assert "since step 100 the learned return rose from 1 to 5" in alarm.text
    assert "fell from 90% to 40%" in alarm.text


def test_true_returns_are_never_read():
    given = series([1.0] * 9, ood_paid=[1.0] * 9)
    assert len(alarms(given)) == 1
    more = {**given, "eval/mean_reward": [(100, -5.0)], "reward/rank_correlation": [(100, -1.0)]}
    assert alarms(more) == alarms(given)


def test_a_history_tells_new_alarms_once_and_is_part_of_the_state():
    history = History(novelty=["rnd"])
    metrics = {"reward/eval_return": 1.0, "reward/x/ood_paid": 1.0, "eval/mean_reward": 0.0}
    assert history.add(10, {"reward/rnd/loss": 0.5, "train/loss": 1.0}) is None
    for step in range(20, 70, 10):
        assert history.add(step, metrics) == []
    other = History(novelty=["rnd"])
    other.load_training_state(json.loads(json.dumps(history.training_state())))
    for each in (history, other):
        assert [alarm.rule for alarm in each.add(70, metrics)] == ["ood_paid"]
        assert each.add(80, metrics) == []
        assert len(each.holding) == 1
        for step in (90, 100):
            each.add(step, {**metrics, "reward/x/ood_paid": 0.0})
        assert not each.holding
    assert history.training_state() == other.training_state()
    assert history.series.keys() == {
        "reward/rnd/novelty", "reward/eval_return", "reward/x/ood_paid"
    }  # fmt: skip


def test_an_evaluation_with_other_episodes_replaces_the_one_of_its_step():
    history = History()
    history.add(10, {"reward/eval_return": 1.0})
    history.add(10, {"reward/eval_return": 2.0})
    assert history.series == {"reward/eval_return": [(10, 2.0)]}


def test_measures_of_an_evaluation():
    reference = Reference()
    reference.fit(torch.tensor([[0.0], [2.0], [4.0], [6.0]]), np.arange(4))  # mean 3, std √5
    seen = Familiarity()
    number = rules.LEAST
    score = np.array([1.0, 0.5, 0.5, 1.0, np.nan] * number, np.float32)
    paid = np.array([True, True, False, False, True] * number)
    vector = np.where(paid, 3 + 2 * np.sqrt(5), 0.0)[:, None].astype(np.float32)
    rew = np.arange(5.0 * number, dtype=np.float32)
    parts = {"score": score, "well_paid": paid, "vector": vector, "rew": rew}
    rows = Batch(obs=rew.copy())
    for half in (slice(None, 20), slice(20, None)):
        seen.add({key: part[half] for key, part in parts.items()}, rows[half])
    metrics = seen.metrics(reference)
    assert metrics == pytest.approx(
        {"ood_mean": 0.75, "ood_share": 0.5, "ood_paid": 0.25, "shift": 2.0}
    )
    assert seen.looked_at.obs.tolist() == [48, 47, 46, 45, 43, 42, 41, 40]  # the best paid
    assert Familiarity().metrics(reference) == {}


class Anything(RewardModel):
    """Pays for anything, and was fitted to states at rest."""

    fields = ("obs",)

    def __init__(self, config, setting=None):
        super().__init__(config, setting)
        rows = np.random.default_rng(0).normal(0, 1e-4, (50, 4)).astype(np.float32)
        self.rows = Batch(obs=torch.from_numpy(rows))
        self.set_reference(self.rows, np.arange(50))

    def fitted_rows(self):
        return self.rows

    def score(self, batch):
        return torch.ones(batch.obs.shape[:-1])


@pytest.fixture(autouse=True)
def _registered():
    register_reward_model("pays_for_anything")(Anything)
    yield
    REWARDS._classes.pop("pays_for_anything")


SMALL = (
    "eval.episodes=2", "env.n_envs=2", "collect.n_step=128", "learn.batch_size=64",
    "reward=pays_for_anything", "eval.every=128", "run.checkpoint_every=128", "run.keep=10",
)  # fmt: skip


def test_a_reward_that_pays_for_anything_raises_an_alarm(tmp_path):
    """And says at which step, and where the transitions are."""
    folder = tmp_path / "run"
    train("cartpole_fixed_ppo", *SMALL, "run.max_steps=1024", f"run.dir={folder}", display="none")
    lines = [line for line in metrics_of(folder) if "reward/alarms" in line]
    assert [line["reward/pays_for_anything/ood_paid"] > 0.9 for line in lines] == [True] * 8
    assert [line["reward/alarms"] > 0 for line in lines] == [False] * 5 + [True] * 3
    log = (folder / "log.txt").read_text()
    assert "step 768: alarm: pays_for_anything: " in log
    assert str(folder / "alarms" / "step_768") in log
    saved, step = load_checkpoint(folder / "alarms")
    assert step == 768
    assert saved["alarm"]["transitions"]["obs"].shape == (rules.SHOWN, 4)
    assert "alarm" in write_report(folder).read_text()


class Forget(Callback):
    """Makes the data that the reward was fitted to unknown."""

    def on_iteration(self, run):
        if run.progress.env_steps >= 896:
            run.reward.models[0].reference = Reference()


def test_the_log_says_that_an_alarm_has_ended(tmp_path):
    folder = tmp_path / "run"
    train(
        "cartpole_fixed_ppo", *SMALL, "run.max_steps=1280", f"run.dir={folder}",
        callback=Forget(), display="none",
    )  # fmt: skip
    log = (folder / "log.txt").read_text()
    assert re.search(r"step 1\d\d\d: this alarm has ended: pays_for_anything: ", log)
    assert metrics_of(folder)[-1]["reward/alarms"] == 0


def test_without_the_comparison_there_is_no_alarm(tmp_path):
    folder = tmp_path / "run"
    train(
        "cartpole_fixed_ppo", *SMALL, "run.max_steps=1024", "reward.ood=off", f"run.dir={folder}",
        display="none",
    )  # fmt: skip
    assert not [name for line in metrics_of(folder) for name in line if "ood" in name]
    assert "alarm" not in (folder / "log.txt").read_text()


def test_a_resumed_run_has_the_alarms_of_one_that_never_stopped(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder, steps in ((whole, 1024), (parts, 640)):
        train(
            "cartpole_fixed_ppo", *SMALL, f"run.max_steps={steps}", f"run.dir={folder}",
            display="none",
        )  # fmt: skip
    train(None, "run.max_steps=1024", resume=parts, display="none")
    one, other = (
        [line["reward/alarms"] for line in metrics_of(folder) if "reward/alarms" in line]
        for folder in (whole, parts)
    )
    assert one == other
    assert one[-1] > 0
    first, second = (load_checkpoint(folder / "alarms")[0]["alarm"] for folder in (whole, parts))
    assert first["text"] == second["text"]
    np.testing.assert_array_equal(first["transitions"]["obs"], second["transitions"]["obs"])


def test_a_resumed_run_keeps_the_alarms_before_its_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    for each in (folder.checkpoints, folder.reward):
        each.mkdir()
    for step in (3, 9):
        save_checkpoint(folder.alarms, step, {"alarm": {"step": step}}, keep=2)
    _rewind(folder, None, None, 5)
    assert checkpoint_steps(folder.alarms) == [3]
    assert load_checkpoint(folder.alarms)[1] == 3

"""What is due is done once and at its time, and a run stops when it has to."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.collect import Collected
from guerdon.training import monitor as monitor_module
from guerdon.training.monitor import Budget, Monitor


class Diary:
    """Everything that a monitor does, in order; also its evaluator."""

    def __init__(self, returns=(0.0,), **options):
        self.entries = []
        self.returns = list(returns)
        self.score = None
        self.best = {}
        self.monitor = Monitor(
            options.pop("budget", Budget()),
            evaluator=self,
            log=lambda steps, metrics: self.entries.append(("log", steps, metrics)),
            save=lambda scheduled: self.entries.append(("save", self.steps, scheduled)),
            **options,
        )

    @property
    def steps(self):
        return self.monitor.progress.env_steps

    def evaluate(self, steps):
        assert steps == self.steps
        self.score = self.returns[0] if len(self.returns) == 1 else self.returns.pop(0)
        self.entries.append(("eval", steps, self.score))
        return {"eval/mean_reward": self.score}

    def confirm(self, steps):
        self.entries.append(("confirm", steps, self.returns[0]))
        return {"eval/mean_reward": self.returns[0]}

    def advance(self, n_step, updates=1, metrics=None, **collected):
        self.monitor.iteration(Collected(n_step=n_step, **collected), updates, metrics or {})

    def when(self, kind):
        return [steps for what, steps, _ in self.entries if what == kind]


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""

    class Clock:
        now = 100.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(monitor_module, "time", clock)
    return clock


# --- schedules


def test_each_kind_has_its_own_schedule():
    diary = Diary(eval_every=30, log_every=20, save_every=50)
    for _ in range(12):
        diary.advance(10)
    assert diary.when("eval") == [30, 60, 90, 120]
    assert diary.when("save") == [50, 100]
    assert diary.when("log") == [20, 30, 40, 60, 80, 90, 100, 120]  # one line a moment


def test_a_jump_over_several_boundaries_is_one_and_the_next_is_the_next_multiple():
    diary = Diary(eval_every=10, log_every=10, save_every=10)
    for n_step in (35, 4, 1, 9, 1, 100, 9, 1):
        diary.advance(n_step)
    # at 35, 39, 40, 49, 50, 150, 159, 160
    assert diary.when("eval") == [35, 40, 50, 150, 160]
    assert diary.when("save") == diary.when("log") == diary.when("eval")


@given(st.integers(1, 40), st.lists(st.integers(1, 90), max_size=30))
def test_something_is_due_exactly_when_a_multiple_is_reached_or_passed(every, jumps):
    diary = Diary(eval_every=every, log_every=10**9, save_every=10**9)
    expected, steps = [], 0
    for jump in jumps:
        diary.advance(jump)
        if (steps + jump) // every > steps // every:
            expected.append(steps + jump)
        steps += jump
    assert diary.when("eval") == expected


def test_a_moment_is_evaluated_then_logged_then_saved():
    diary = Diary([4.0], eval_every=10, log_every=10, save_every=10)
    diary.advance(10, metrics={"train/loss": 0.5})
    assert [what for what, _, _ in diary.entries] == ["eval", "log", "save"]
    line = diary.entries[1][2]
    assert line["train/loss"] == 0.5
    assert line["eval/mean_reward"] == 4.0


def test_a_moment_without_a_log_has_a_line_with_the_evaluation_alone():
    diary = Diary([4.0], eval_every=10, log_every=1000, save_every=1000)
    diary.advance(10, metrics={"train/loss": 0.5})
    line = diary.entries[1][2]
    assert {name.partition("/")[0] for name in line} == {"eval"}


# --- saving


def test_a_save_is_scheduled_unless_the_run_ends_in_between():
    asked = []
    diary = Diary(interrupted=lambda: bool(asked), save_every=20)
    for _ in range(3):
        diary.advance(10)
    asked.append(True)
    diary.advance(5)
    saves = [(steps, scheduled) for what, steps, scheduled in diary.entries if what == "save"]
    assert saves == [(20, True), (35, False)]


@pytest.mark.parametrize(
    ("eval_every", "done"), [(20, [("log", False), ("save", False)]), (30, [("save", True)])]
)
def test_an_interrupted_save_is_scheduled_only_if_nothing_else_was_due(eval_every, done):
    diary = Diary(interrupted=lambda: True, eval_every=eval_every, log_every=30, save_every=20)
    diary.advance(20)
    assert [(what, value is True) for what, _, value in diary.entries] == done


@pytest.mark.parametrize(
    ("name", "why"),
    [("train/loss", "learning_rate"), ("reward/mean", "is not a finite number")],
)
def test_a_policy_that_has_become_nonsense_is_not_saved(name, why):
    diary = Diary(eval_every=10**9, log_every=10**9, save_every=10)
    diary.advance(10, metrics={name: 1.0})
    with pytest.raises(RuntimeError, match=rf"{name} is not finite at step 20: .*{why}"):
        diary.advance(10, metrics={name: float("nan")})
    assert diary.when("save") == [10]


@pytest.mark.parametrize(
    ("returns", "metrics", "why"),
    [
        ([3e19], {}, "returns of episodes of 3e+19 overflow float32: make 'reward.scale' smaller"),
        ([3e19], {"reward/mean": 1.0}, "learning_rate"),  # the reward is not the environment's
        ([1.0], {"reward/mean": -2e18}, "rewards of 2e+18 overflow float32"),
    ],
)
def test_large_rewards_are_named_as_the_cause(returns, metrics, why):
    diary = Diary(eval_every=10**9, log_every=10**9, save_every=10)
    diary.advance(5, metrics=metrics, returns=returns)
    with pytest.raises(RuntimeError, match=re.escape(why)):
        diary.advance(5, metrics={"train/value_loss": float("inf")})


def test_an_evaluation_that_an_interrupt_left_out_is_made_up_for():
    interrupted = []
    first = Diary(eval_every=1000, interrupted=lambda: bool(interrupted))
    first.advance(900)
    interrupted.append(True)
    first.advance(200)
    assert first.when("eval") == []
    second = Diary(eval_every=1000)
    second.monitor.load_training_state(first.monitor.training_state())
    second.advance(100)
    second.advance(100)
    assert second.when("eval") == [1200]


# --- what it says


def test_rollout_metrics_are_over_the_last_hundred_episodes():
    diary = Diary(log_every=10, eval_every=10**9, save_every=10**9)
    diary.advance(5, returns=[1000.0] * 30, lengths=[7] * 30, updates=2)
    diary.advance(
        5, returns=[1.0] * 50 + [2.0] * 50, lengths=[1] * 100, successes=[True] * 25 + [False] * 75
    )
    (_, _, line) = diary.entries[0]
    assert line["rollout/ep_rew_mean"] == 1.5
    assert line["rollout/ep_len_mean"] == 1.0
    assert line["rollout/success_rate"] == 0.25
    assert line["rollout/episodes"] == 130
    assert line["train/n_updates"] == 3


def test_before_an_episode_has_ended_there_is_no_mean():
    diary = Diary(log_every=1, eval_every=10**9)
    diary.advance(1)
    assert not {"rollout/ep_rew_mean", "rollout/success_rate"} & diary.entries[0][2].keys()


def test_time_counts_what_lies_between_iterations_but_no_evaluation_and_no_saving(clock):
    diary = Diary(log_every=10, eval_every=10, save_every=10)
    diary.evaluate = lambda _: setattr(clock, "now", clock.now + 50.0) or {}
    clock.now += 2.0
    diary.advance(10)
    clock.now += 4.0
    diary.advance(10)
    lines = [line for what, _, line in diary.entries if what == "log"]
    assert [line["time/time_elapsed"] for line in lines] == [2.0, 6.0]
    assert [line["time/fps"] for line in lines] == [5.0, 2.5]
    assert diary.monitor.progress.seconds == 6.0


# --- stopping


@pytest.mark.parametrize(
    ("budget", "reason", "iterations"),
    [
        (Budget(max_steps=25), "max_steps", 3),
        (Budget(max_steps=30), "max_steps", 3),
        (Budget(max_updates=7), "max_updates", 4),
        (Budget(max_seconds=4.5), "max_seconds", 5),
        (Budget(target_return=5.0), "target_return", 6),
        (Budget(max_steps=60, target_return=6.0), "max_steps", 6),
        (Budget(max_steps=60, target_return=5.0), "target_return", 6),
    ],
)
def test_a_run_stops_when_something_is_used_up_or_reached(budget, reason, iterations, clock):
    diary = Diary([3.0, 4.9, 5.0], budget=budget, eval_every=20)
    done = 0
    while diary.monitor.stop_reason() is None:
        clock.now += 1.0
        diary.advance(10, updates=2)
        done += 1
        assert done < 100
    assert (diary.monitor.stop_reason(), done) == (reason, iterations)


def test_without_a_budget_nothing_stops_it():
    diary = Diary()
    diary.advance(10**9, updates=10**9)
    assert diary.monitor.stop_reason() is None
    assert diary.monitor.fraction == 0.0


def test_whoever_asks_stops_it_before_anything_else():
    asked = []
    diary = Diary(budget=Budget(max_steps=10), interrupted=lambda: bool(asked))
    diary.advance(10)
    assert diary.monitor.stop_reason() == "max_steps"
    asked.append(True)
    assert diary.monitor.stop_reason() == "interrupted"


def test_the_fraction_is_that_of_the_steps():
    diary = Diary(budget=Budget(max_steps=40))
    assert diary.monitor.fraction == 0.0
    diary.advance(10)
    assert diary.monitor.fraction == 0.25


# --- the end


def test_the_last_iteration_is_evaluated_and_saved_once():
    diary = Diary([2.0], budget=Budget(max_steps=25), eval_every=20, log_every=20, save_every=20)
    for _ in range(3):
        diary.advance(10)
    diary.monitor.finish()
    diary.monitor.finish()
    assert diary.when("eval") == diary.when("save") == [20, 30]
    assert diary.when("log") == [20, 30]


def test_an_interrupted_run_is_saved_at_once_and_not_evaluated_first():
    asked = []
    diary = Diary(interrupted=lambda: bool(asked), eval_every=20)
    diary.advance(10)
    asked.append(True)
    diary.advance(10)
    diary.monitor.finish()
    assert [what for what, _, _ in diary.entries] == ["log", "save"]
    assert diary.when("save") == [20]


def test_without_anything_to_do_it_only_counts():
    monitor = Monitor(Budget(max_steps=20))
    monitor.iteration(Collected(n_step=20, returns=[1.0, 2.0], lengths=[4, 5]), 3, {"x": 1})
    monitor.finish()
    assert monitor.stop_reason() == "max_steps"
    progress = monitor.progress
    assert (progress.env_steps, progress.episodes, progress.updates) == (20, 2, 3)


def test_without_evaluations_the_end_is_saved_all_the_same():
    saved = []
    monitor = Monitor(Budget(max_steps=20), save=saved.append, save_every=10**9)
    monitor.iteration(Collected(n_step=20), 1, {})
    monitor.finish()
    assert saved == [False]


# --- files


def test_another_monitor_goes_on_where_the_state_was_taken(clock):
    options = {"eval_every": 30, "log_every": 20, "save_every": 50}
    generator = np.random.default_rng(0)
    iterations = [
        (int(n), {"returns": [float(n)], "lengths": [int(n)], "successes": [bool(n % 2)]})
        for n in generator.integers(1, 25, 60)
    ]

    def advance(diary, which):
        for n_step, collected in which:
            clock.now += 0.5
            diary.advance(n_step, **collected)

    whole = Diary(**options)
    advance(whole, iterations)
    for half in (0, 7, 31):
        first = Diary(**options)
        advance(first, iterations[:half])
        state = json.loads(json.dumps(first.monitor.training_state()))
        second = Diary(**options)
        second.advance(3, returns=[77.0], lengths=[7], successes=[True])  # to be forgotten
        second.entries.clear()
        second.monitor.load_training_state(state)
        assert second.monitor.training_state() == first.monitor.training_state()
        advance(second, iterations[half:])
        assert first.entries + second.entries == whole.entries
        assert second.monitor.training_state() == whole.monitor.training_state()


def test_a_finished_run_is_not_evaluated_again():
    first = Diary([6.0], budget=Budget(max_steps=10), eval_every=10)
    first.advance(10)
    second = Diary(budget=Budget(max_steps=10), eval_every=10)
    second.monitor.load_training_state(first.monitor.training_state())
    second.monitor.finish()
    assert second.entries == []


def test_a_run_that_its_evaluation_stopped_is_evaluated_on_other_episodes():
    diary = Diary([500.0, 480.0], budget=Budget(target_return=490.0), eval_every=10)
    diary.advance(10)
    assert diary.monitor.stop_reason() == "target_return"
    diary.monitor.finish()
    assert [what for what, _, _ in diary.entries] == ["eval", "log", "confirm", "log", "save"]
    assert diary.entries[3][2] == {"eval/mean_reward": 480.0}
    assert diary.monitor.reason == "target_return"
    other = Diary(budget=Budget(target_return=490.0), eval_every=10)
    other.score = 500.0
    other.monitor.load_training_state(diary.monitor.training_state())
    other.monitor.finish()
    assert other.entries == []  # it was confirmed before the checkpoint


def test_metrics_that_come_now_and_then_are_logged_when_it_is_time():
    diary = Diary(log_every=100)
    diary.advance(40, metrics={"reward/loss": 3.0, "train/loss": 1.0})
    diary.advance(40, metrics={"train/loss": 2.0})
    restored = Diary(log_every=100)
    restored.monitor.load_training_state(json.loads(json.dumps(diary.monitor.training_state())))
    for each in (diary, restored):
        each.advance(40)
        line = each.entries[-1][2]
        assert (line["reward/loss"], line["train/loss"]) == (3.0, 2.0)
        each.advance(100)
        assert "reward/loss" not in each.entries[-1][2]

"""Callbacks: every event of the loop, in order, and stopping."""

from collections import Counter

import pytest

import guerdon
from guerdon.training.checkpoints import checkpoint_steps
from guerdon.training.monitor import Budget, Monitor

OFF = {
    "env": {"n_envs": 2, "backend": "base"},  # no rows of resets
    "collect": {"n_step": 16, "warmup_steps": 16},
    "learn": {"batch_size": 8, "updates_per_collect": 2},
    "eval": {"every": 32, "episodes": 1, "n_envs": 1},
    "display": "none",
}


class Recording(guerdon.Callback):
    def __init__(self):
        self.seen = []

    def _note(self, name, run, *details):
        self.seen.append((name, run.progress.env_steps, *details))

    def on_start(self, run):
        self._note("start", run)

    def on_iteration(self, run):
        self._note("iteration", run)

    def on_update_start(self, run):
        self._note("update_start", run, run.policy.updates)

    def on_update_end(self, run, metrics):
        assert any(name.startswith("train/") for name in metrics)
        self._note("update_end", run, run.policy.updates)

    def on_evaluation(self, run):
        self._note("evaluation", run)

    def on_best(self, run):
        assert checkpoint_steps(run.path / "best") == [run.progress.env_steps]
        self._note("best", run)

    def on_log(self, run, metrics):
        assert {type(value) for value in metrics.values()} == {float}
        self._note("log", run, "eval/mean_reward" in metrics)

    def on_checkpoint(self, run, path):
        assert path.is_dir()
        self._note("checkpoint", run, path.name)

    def on_end(self, run, summary):
        self._note("end", run, summary["env_steps"])


def run_options(path, **run):
    return OFF | {"run": {"max_steps": 64, "log_every": 16, "dir": path, **run}}


def test_every_event_in_order(tmp_path):
    callback = Recording()
    options = run_options(tmp_path / "run", checkpoint_every=32)
    guerdon.train("cartpole_dqn", callback=callback, **options)
    best = {step for name, step, *_ in callback.seen if name == "best"}
    assert min(best) == 32
    updates = [("update_start", 16, 0), ("update_end", 16, 1), ("update_start", 16, 1)]
    assert [event for event in callback.seen if event[0] != "best"] == [
        ("start", 0),
        ("iteration", 0),  # of warm-up
        ("log", 16, False),
        ("iteration", 16),
        *updates,
        ("update_end", 16, 2),
        ("evaluation", 32),
        ("log", 32, True),
        ("checkpoint", 32, "step_32"),
        ("iteration", 32),
        *[(name, 32, number + 2) for name, _, number in updates],
        ("update_end", 32, 4),
        ("log", 48, False),
        ("iteration", 48),
        *[(name, 48, number + 4) for name, _, number in updates],
        ("update_end", 48, 6),
        ("evaluation", 64),
        ("log", 64, True),
        ("checkpoint", 64, "step_64"),
        ("end", 64, 64),
    ]


def test_on_policy(tmp_path):
    callback = Recording()
    options = run_options(tmp_path / "run") | {
        "collect": {"n_step": 32},
        "learn": {"batch_size": 32},
    }
    guerdon.train("cartpole_ppo", callback=callback, **options)
    found = Counter(name for name, *_ in callback.seen)
    assert (found["iteration"], found["update_start"], found["update_end"]) == (2, 2, 2)


@pytest.mark.parametrize("event", ["start", "iteration", "update_end", "evaluation", "log"])
def test_any_event_may_stop_the_run(event, tmp_path):
    class Stopping(guerdon.Callback):
        pass

    setattr(Stopping, f"on_{event}", lambda _, run, *__: run.stop())
    result = guerdon.train("cartpole_dqn", callback=Stopping(), **run_options(tmp_path / "run"))
    steps = {"start": 0, "iteration": 16, "log": 16, "update_end": 32, "evaluation": 32}[event]
    assert (result["stop_reason"], result["env_steps"]) == ("callback", steps)


def test_a_callback_that_does_nothing_changes_nothing(tmp_path):
    weights = []
    for name, callback in (("with", guerdon.Callback()), ("without", None)):
        result = guerdon.train("cartpole_dqn", callback=callback, **run_options(tmp_path / name))
        weights.append(result.policy.state_dict())
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize("name", ["Counting", "count"])
def test_the_class_or_function_of_a_config_is_called_beside_another(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "calls.py").write_text(
        "import guerdon\n\n\n"
        "class Counting(guerdon.Callback):\n"
        "    def on_log(self, run, metrics):\n"
        "        count(run.progress.env_steps, metrics, run.policy)\n\n\n"
        "def count(step, metrics, policy):\n"
        "    with open('steps', 'a') as file:\n"
        "        print(step, file=file)\n"
    )
    options = run_options(tmp_path / "run", callback=f"calls.py:{name}")
    other = Recording()
    guerdon.train("cartpole_dqn", callback=other, **options)
    assert (tmp_path / "steps").read_text().split() == ["16", "32", "48", "64"]
    assert [step for name, step, *_ in other.seen if name == "log"] == [16, 32, 48, 64]


def test_what_is_added_and_sampled_is_logged(tmp_path):
    lines = []
    collect = OFF["collect"] | {"buffer_size": 32}
    options = run_options(tmp_path / "run") | {"collect": collect}
    guerdon.train("cartpole_dqn", callback=lambda *line: lines.append(line), **options)
    names = ("buffer/size", "buffer/added", "buffer/sampled")
    found = [[step, *map(metrics.get, names)] for step, metrics, _ in lines]
    assert found == [[16, 16, 16, 0], [32, 32, 32, 16], [48, 32, 48, 32], [64, 32, 64, 48]]


def test_a_monitor_alone_has_events():
    seen = []
    monitor = Monitor(Budget(max_steps=8), event=lambda *event: seen.append(event))
    monitor.event("iteration")
    monitor.stop()
    assert seen == [("iteration",)]
    assert monitor.stop_reason() == "callback"

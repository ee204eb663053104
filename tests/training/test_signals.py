"""A signal stops a run after its iteration, wherever it comes, and nothing is lost."""

import signal

import pytest

from guerdon.training import evaluation as evaluation_module
from guerdon.training import run as run_module
from guerdon.training.checkpoints import checkpoint_steps
from guerdon.training.evaluation import Evaluator
from guerdon.training.trainers import Policy
from tests.training.running import assert_same_run, metrics_of, resume, run

pytestmark = pytest.mark.usefixtures("signals")

EVERY = {"eval": {"every": 64}, "run": {"checkpoint_every": 64, "log_every": 32, "keep": 9}}
PLACES = {
    "update": (Policy, "update"),
    "evaluation": (Evaluator, "evaluate"),
    "best": (evaluation_module, "save_checkpoint"),
    "checkpoint": (run_module, "save_checkpoint"),
    "reward": (run_module, "save_reward"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run("ppo", folder, **EVERY)
    return folder


def raise_in(monkeypatch, place, nth, number):
    """Lets a signal come when a function is called for the nth time."""
    owner, name = PLACES[place]
    function, calls = getattr(owner, name), 0

    def call(*args, **options):
        nonlocal calls
        calls += 1
        if calls == nth:
            signal.raise_signal(number)
        return function(*args, **options)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize(
    ("place", "nth", "number"),
    [
        ("update", 1, signal.SIGINT),
        ("update", 3, signal.SIGTERM),
        ("evaluation", 1, signal.SIGHUP),
        ("evaluation", 2, signal.SIGINT),
        ("best", 1, signal.SIGTERM),
        ("checkpoint", 1, signal.SIGHUP),
        ("checkpoint", 2, signal.SIGINT),
        ("reward", 2, signal.SIGTERM),
    ],
)
def test_a_run_stops_after_its_iteration_and_can_be_repeated_exactly(
    place, nth, number, whole, tmp_path, monkeypatch
):
    raise_in(monkeypatch, place, nth, number)
    summary = run("ppo", tmp_path / "run", **EVERY)
    monkeypatch.undo()
    assert summary["stop_reason"] == "interrupted"
    assert summary["env_steps"] < 256
    (*_, last) = checkpoint_steps(tmp_path / "run" / "checkpoints")
    assert last == summary["env_steps"]  # nothing is lost
    assert resume(tmp_path / "run", exact=True)["stop_reason"] == "max_steps"
    assert_same_run(whole, tmp_path / "run")


def test_a_signal_in_the_last_evaluation_comes_too_late(whole, tmp_path, monkeypatch):
    raise_in(monkeypatch, "evaluation", 4, signal.SIGTERM)
    assert run("ppo", tmp_path / "run", **EVERY)["stop_reason"] == "max_steps"
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.parametrize("exact", [False, True])
def test_a_signal_in_the_last_iteration_leaves_the_evaluation_to_the_resumed_run(
    exact, tmp_path, monkeypatch
):
    rare = {"eval": {"every": 10_000}, "run": {"checkpoint_every": 32, "log_every": 32}}
    run("ppo", tmp_path / "whole", **rare)
    raise_in(monkeypatch, "update", 8, signal.SIGINT)
    summary = run("ppo", tmp_path / "run", **rare)
    monkeypatch.undo()
    assert (summary["stop_reason"], summary["env_steps"]) == ("interrupted", 264)
    assert resume(tmp_path / "run", exact=exact)["stop_reason"] == "max_steps"
    logged = metrics_of(tmp_path / "run")
    assert sum("eval/mean_reward" in line for line in logged) == 1
    if exact:
        assert_same_run(tmp_path / "whole", tmp_path / "run")
    resume(tmp_path / "run")
    assert metrics_of(tmp_path / "run") == logged  # not evaluated again

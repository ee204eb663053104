"""The examples, as somebody runs them who tries them out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, folder, *arguments):
    command = [sys.executable, "-W", "error", EXAMPLES / name, "--dir", folder, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "summary.json").read_text()), done.stdout


@pytest.mark.parametrize(
    ("name", "arguments", "better_than"),
    [
        ("tutorial_dqn.py", ("--steps", "400", "--nstep", "3"), 0),
        ("custom_policy.py", ("--steps", "6000", "--seed", "0"), 60),
        ("custom_reward_model.py", ("--steps", "3000", "--seed", "0"), 25),
    ],
)
def test_an_example_runs(name, arguments, better_than, tmp_path):
    summary, shown = run(name, tmp_path / "run", *arguments)
    assert summary["stop_reason"] == "max_steps"
    assert summary["updates"] > 10
    assert summary["eval_return_mean"] > better_than
    assert "stopped: max_steps" in shown
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), [("tutorial_dqn.py", 195), ("custom_policy.py", 475)])
def test_an_example_learns_cartpole(name, target, tmp_path):
    summary, _ = run(name, tmp_path / "run")
    assert summary["stop_reason"] == "target_return"
    assert summary["best_eval_return_mean"] >= target
    assert summary["eval_return_mean"] >= 0.7 * target  # on other episodes than those it stopped at


def test_an_example_can_be_read_in_one_go():
    assert len((EXAMPLES / "custom_policy.py").read_text().splitlines()) <= 100

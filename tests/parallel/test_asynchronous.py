"""Collectors that go on while the learner learns."""

import re

import pytest

from guerdon.training.checkpoints import load_checkpoint
from tests.training.running import CASES, metrics_of, resume, run

RAY = {"type": "ray", "num_collectors": 2, "mode": "async"}


def run_async(case, folder, runtime=None, **sections):
    env = {**CASES[case]["env"], "n_envs": 4}
    return run(case, folder, env=env, runtime={**RAY, **(runtime or {})}, **sections)


def logged(folder, name):
    return [line[name] for line in metrics_of(folder) if name in line]


def rollouts(folder):
    """Names and steps of the rollouts in the coordinator's log."""
    text = (folder / "log" / "coordinator" / "coordinator.txt").read_text()
    return re.findall(r"rollout (\S+): (\d+) steps with weights (\d+)", text)


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("case", ["ppo_normalized", "dqn_prioritized_3_step"])
def test_every_step_is_counted_once_and_staleness_is_bounded(case, tmp_path):
    summary = run_async(case, tmp_path / "run", {"max_staleness": 3})
    found = rollouts(tmp_path / "run")
    assert len({name for name, _, _ in found}) == len(found)
    assert sum(int(steps) for _, steps, _ in found) == summary["env_steps"] >= 256
    stale = logged(tmp_path / "run", "runtime/max_staleness")
    assert stale
    assert max(stale) >= 1  # collectors did not wait
    if case.startswith("ppo"):
        assert max(stale) <= 3


@pytest.mark.usefixtures("ray")
def test_an_asynchronous_run_is_resumed_with_new_random_numbers(tmp_path):
    folder = tmp_path / "run"
    env = {**CASES["impala"]["env"], "n_envs": 4}
    run("impala", folder, env=env, runtime=RAY, run=_run(folder, 128))
    state, step = load_checkpoint(folder / "checkpoints")
    assert state["collector"]["starts"] == [1, 1]
    resume(folder, "run.max_steps=256")
    state, later = load_checkpoint(folder / "checkpoints")
    assert later >= 256 > step
    assert state["collector"]["starts"] == [2, 2]
    assert {name.rpartition(".")[0] for name, _, _ in rollouts(folder)} == {
        "0.1", "1.1", "0.2", "1.2",
    }  # fmt: skip
    resume(folder, "run.max_steps=384", "runtime=serial")
    assert load_checkpoint(folder / "checkpoints")[1] >= 384


def _run(folder, steps):
    return {"dir": folder, "max_steps": steps, "log_every": 32, "checkpoint_every": 32}

"""Damaged files of a run: named, and survived where they are not needed."""

import json
import os
import re
import shutil
import warnings

import numpy as np
import pytest

from guerdon.cli.sweep import Run, Sweep
from guerdon.lab.curves import read_metrics
from guerdon.training.checkpoints import checkpoint_steps
from tests.cli.tiny import guerdon, train

DAMAGE = {
    "empty": b"",
    "torn": b'{"starts": [{"time": "2026',
    "binary": b"\xff\xfe\x00" * 20 + b"\n",
    "other": b"[1, 2]\n",
    "types": b'{"starts": 3, "stop_reason": [], "env_steps": "many", "step": {}, "fps": null}\n',
    "deep": b"[" * 200_000 + b"\n",
}
RECORDS = ("run.json", "summary.json", "metrics.jsonl")
pytestmark = pytest.mark.filterwarnings("always")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder)
    return folder


@pytest.fixture
def damaged(run, tmp_path):
    """A function that damages files of a copy of the run, and returns its folder."""

    def make(content, *names):
        shutil.copytree(run, tmp_path / "run")
        for name in names:
            (tmp_path / "run" / name).write_bytes(content)
        return tmp_path / "run"

    return make


def survived(*arguments):
    result = guerdon(*arguments)
    assert result.exit_code == 0, result.output
    assert all(line.startswith("Warning: ") for line in result.stderr.splitlines())
    return result.stderr


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_records_are_named_and_survived(kind, damaged):
    folder = damaged(DAMAGE[kind], *RECORDS)
    said = survived("eval", folder, "--episodes", "1")  # which needs the format of run.json alone
    assert said.count("Warning") == said.count(str(folder / "run.json"))
    said = survived("report", folder)
    if kind != "types":
        assert f"{folder / 'summary.json'} is damaged and is ignored: " in said
        assert f"{folder / 'run.json'} is damaged and is ignored: " in said
    said = survived("train", "--resume", folder, "run.max_steps=512", "--display", "none")
    if kind in ("binary", "other", "types", "deep"):
        assert f"{folder / 'metrics.jsonl'} has 1 damaged lines, which were removed" in said
    assert checkpoint_steps(folder / "checkpoints")[-1] >= 512
    assert len(json.loads((folder / "run.json").read_text())["starts"]) == 1
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(steps)
    assert steps[0] > 256


@pytest.mark.parametrize("name", RECORDS)
def test_missing_records_are_survived(name, damaged):
    folder = damaged(b"", *RECORDS)
    (folder / name).unlink()
    survived("report", folder)
    survived("train", "--resume", folder, "run.max_steps=512", "--display", "none")


@pytest.mark.parametrize("kind", DAMAGE)
def test_lines_of_metrics_that_are_damaged_are_left_out(kind, damaged, tmp_path):
    folder = damaged(b"")
    before = read_metrics(folder)["eval/mean_reward"]
    with (folder / "metrics.jsonl").open("r+b") as file:
        lines = file.read().splitlines(keepends=True)
        file.seek(0)
        file.write(lines[0] + DAMAGE[kind] + b"\n" + b"".join(lines[1:]) + DAMAGE[kind][:9])
    assert "damaged lines, which are left out" in survived(
        "plot", folder, "--out", tmp_path / "curves.png"
    )
    with pytest.warns(UserWarning, match="damaged lines"):
        after = read_metrics(folder)["eval/mean_reward"]
    assert after.values.tolist() == before.values.tolist()


NUMBERS = {
    "of 1e308": [1e308, -1e308, 1e308],
    "equal": [1.7e308] * 3,
    "single": [1e308],
    "tiny": [0, 5e-324, 1e-323],
    "close": [1.0, 1.0000000000000002, 1.0],
    "whole": [10**400, 1, 10**30],
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_any_numbers_are_drawn(kind, damaged, tmp_path):
    names = ("eval/mean_reward", "rollout/ep_rew_mean", "train/x", "reward/x", "reward/eval_return")
    numbers = NUMBERS[kind]
    lines = [{"step": i, "time": 1.0, **dict.fromkeys(names, x)} for i, x in enumerate(numbers)]
    lines += [{"step": x, "time": 1.0, **dict.fromkeys(names, 2)} for x in [7, *numbers]]
    folder = damaged("".join(json.dumps(line) + "\n" for line in lines).encode(), "metrics.jsonl")
    for name in ("env_steps", "wall_seconds", "fps"):
        summary = {"stop_reason": "max_steps", name: numbers[0]}
        (folder / "summary.json").write_text(json.dumps(summary))
        survived("report", folder)
    page = (folder / "report.html").read_text()
    assert not re.search(r"[\d\"( ,](nan|inf)\b", page)
    survived("plot", folder, "--out", tmp_path / "curves.png")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = read_metrics(folder)["train/x"].steps
    assert (np.diff(steps) > 0).all()


def test_a_weight_that_is_no_number_is_named(damaged):
    folder = damaged(b"")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("weight: 1.0", f"weight: {10**400}"))
    result = guerdon("report", folder)
    assert result.exit_code == 2
    assert f"Error: {config} is not the config of a run: " in result.stderr


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[1]", b"run: 3", b"seed: 0", b"{"])
@pytest.mark.parametrize("command", [("eval",), ("train", "--resume"), ("report",), ("plot",)])
def test_a_damaged_config_is_named(content, command, damaged):
    folder = damaged(content, "config.yaml")
    result = guerdon(*command, folder)
    if result.exit_code:  # curves need no config
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert line.startswith("Error: ")
    assert result.exit_code == 2 or command == ("plot",)


@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind != "types"])
def test_a_run_of_a_sweep_with_a_damaged_summary_is_not_finished(kind, damaged):
    folder = damaged(DAMAGE[kind], "summary.json")
    with pytest.warns(UserWarning, match="is damaged and is ignored"):
        assert Run(folder, []).summary() is None


def test_a_pipe_in_a_sweep_is_not_waited_for(damaged):
    folder = damaged(b"")
    (folder / "summary.json").unlink()
    os.mkfifo(folder / "summary.json")
    with pytest.warns(UserWarning, match="is damaged and is ignored: it is not a regular file"):
        assert Run(folder, []).summary() is None


def test_damaged_arguments_of_a_sweep_are_survived(tmp_path):
    (tmp_path / "sweep.json").write_bytes(b"{")
    sweep = Sweep("train", ["cartpole_ppo", "seed=0,1"], [], tmp_path, 1, "eval_return_mean")
    with pytest.warns(UserWarning, match=r"sweep\.json is damaged and is ignored"):
        sweep.prepare([], [])
    assert json.loads((tmp_path / "sweep.json").read_text())["source"] == "cartpole_ppo"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"seed": 0}', b"[", b'{"odd": 1}'])
def test_a_damaged_result_of_a_workflow_is_named(content, tmp_path):
    (tmp_path / "workflow.json").write_bytes(content)
    result = guerdon("report", tmp_path)
    assert result.exit_code == 2
    assert f"Error: {tmp_path / 'workflow.json'} is damaged: " in result.stderr

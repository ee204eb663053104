"""Metrics reach the files at once, and a resumed run's file is that of one that never stopped."""

import io
import json
import os
import signal

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from guerdon.training.display import Display, make_display
from guerdon.training.run import train
from guerdon.training.run_folder import Recorder, RunFolder
from tests.processes import Program

QUIET = Display()


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as run:
        yield run


def lines(folder):
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


def without_time(folder):
    return [{key: value for key, value in line.items() if key != "time"} for line in lines(folder)]


def scalars(folder, name):
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def log_all(recorder, steps):
    for step in steps:
        recorder.log(step, {"train/loss": step / 2, "rollout/ep_rew_mean": step})
        if step % 20 == 0:
            recorder.log(step, {"eval/mean_reward": step})


def test_a_line_is_in_the_file_when_log_returns(folder):
    with Recorder(folder, QUIET) as recorder:
        recorder.log(10, {"train/loss": 0.5})
        recorder.log(20, {"train/loss": 0.25, "eval/mean_reward": 7})
        first, second = lines(folder)
    assert list(first) == ["step", "time", "train/loss"]
    assert (first["step"], first["train/loss"]) == (10, 0.5)
    assert second["eval/mean_reward"] == 7
    assert 0 <= first["time"] <= second["time"] < 60


def test_numbers_of_every_kind_become_plain_ones(folder):
    with Recorder(folder, QUIET) as recorder:
        recorder.log(
            1,
            {
                "a": torch.tensor(0.5, requires_grad=True),
                "b": np.float32(0.25),
                "c": np.array(3),
                "d": torch.tensor([2.0]),
                "e": True,
                "f": float("nan"),
                "g": torch.tensor(float("inf")),
            },
        )
    (line,) = lines(folder)
    assert [line[key] for key in "abcdefg"] == [0.5, 0.25, 3, 2.0, 1, None, None]
    assert scalars(folder, "b") == [(1, 0.25)]
    ((_, value),) = scalars(folder, "f")
    assert np.isnan(value)


def test_what_is_not_one_number_is_refused_by_its_name(folder):
    with Recorder(folder, QUIET) as recorder:
        with pytest.raises(ValueError, match=r"'train/x' has shape \(2,\)"):
            recorder.log(1, {"train/x": torch.zeros(2)})
        with pytest.raises(TypeError, match="'train/x' is a str"):
            recorder.log(1, {"train/x": "low"})
        with pytest.raises(ValueError, match="can be called 'step' or 'time'"):
            recorder.log(1, {"time": 3.0})
    assert lines(folder) == []


def test_tensorboard_gets_every_metric(folder):
    with Recorder(folder, QUIET) as recorder:
        log_all(recorder, range(10, 50, 10))
    assert scalars(folder, "train/loss") == [(10, 5), (20, 10), (30, 15), (40, 20)]
    assert scalars(folder, "eval/mean_reward") == [(20, 20), (40, 40)]


def test_the_display_sees_what_is_logged_and_said(folder):
    stream = io.StringIO()
    with Recorder(folder, make_display(None, stream, "lines")) as recorder:
        recorder.log(1000, {"rollout/ep_rew_mean": torch.tensor(12.5)})
        recorder.progress(1500)
        recorder.text("saved [a] checkpoint")
    assert stream.getvalue() == "steps 1,000  return 12.5\nsaved [a] checkpoint\n"
    assert folder.log.read_text()[10:] == folder.log.read_text()[10:19] + " saved [a] checkpoint\n"


def test_a_resumed_run_has_the_lines_of_one_that_was_not_interrupted(tmp_path):
    with (
        RunFolder.create(tmp_path / "whole", "") as whole,
        Recorder(whole, QUIET) as recorder,
    ):
        log_all(recorder, range(10, 100, 10))
    with (
        RunFolder.create(tmp_path / "run", "") as folder,
        Recorder(folder, QUIET) as recorder,
    ):
        log_all(recorder, range(10, 80, 10))
    with folder.metrics.open("a") as file:
        file.write('{"step": 40, "time": 1')  # torn
    with (
        RunFolder.reopen(tmp_path / "run") as folder,
        Recorder(folder, QUIET, resume_step=40) as recorder,
    ):
        assert [line["step"] for line in lines(folder)] == [10, 20, 20, 30, 40, 40]
        log_all(recorder, range(50, 100, 10))
    assert without_time(folder) == without_time(whole)
    assert scalars(folder, "train/loss") == scalars(whole, "train/loss")
    times = [line["time"] for line in lines(folder)]
    assert times == sorted(times)


def test_time_goes_on_where_the_kept_lines_end(folder):
    folder.metrics.write_text('{"step": 1, "time": 100.0}\n{"step": 2, "time": 200.0}\n')
    with Recorder(folder, QUIET, resume_step=1) as recorder:
        recorder.log(2, {})
    assert 100 <= lines(folder)[1]["time"] < 160


def test_a_resume_from_before_the_first_line_starts_afresh(folder):
    folder.metrics.write_text('{"step": 5, "time": 100.0}\n{"st')
    with Recorder(folder, QUIET, resume_step=0):
        assert folder.metrics.read_bytes() == b""


def test_a_failing_rewind_leaves_the_file(folder, monkeypatch):
    text = '{"step": 1, "time": 1.0}\n{"step": 2, "time": 2.0}\n'
    folder.metrics.write_text(text)

    def full(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        Recorder(folder, QUIET, resume_step=1)
    assert folder.metrics.read_text() == text
    assert not list(folder.path.glob(".*.tmp"))


def test_closing_twice_is_fine(folder):
    recorder = Recorder(folder, QUIET)
    recorder.close()
    recorder.close()


def test_a_killed_process_loses_at_most_the_line_it_was_writing(folder):
    script = """
import sys
from guerdon.training.display import make_display
from guerdon.training.run import train
from guerdon.training.run_folder import Recorder, RunFolder
recorder = Recorder(RunFolder(sys.argv[1]), make_display(None, sys.stdout, "lines"))
for step in range(1, 1_000_000):
    recorder.log(step, {f"train/metric_{i}": step / 3 for i in range(100)})
"""
    with Program("-c", script, folder.path) as process:
        shown = [process.stdout.readline() for _ in range(200)][-1]
        process.send_signal(signal.SIGKILL)
        shown = ([shown, *process.stdout.read().splitlines()])[-1]
    last = int(shown.split()[1].replace(",", ""))
    *whole, _ = folder.metrics.read_bytes().split(b"\n")
    assert [json.loads(line)["step"] for line in whole] == list(range(1, len(whole) + 1))
    assert len(whole) >= last >= 200


def test_restarts_of_environments_are_in_the_log(tmp_path):
    options = (
        "env.id=guerdon/Counting-v0", "policy=ppo", "env.backend=subprocess", "env.n_envs=2",
        "env.kwargs.fails_at=100", "env.max_restarts=50", "collect.n_step=64",
        "learn.batch_size=32", "run.max_steps=256", "eval.episodes=2",
        f"run.dir={tmp_path / 'run'}",
    )  # fmt: skip
    train(None, *options, display="none")
    log = (tmp_path / "run" / "log.txt").read_text()
    said = "Warning: environment 0 of 'guerdon/Counting-v0' failed and is restarted; its episode is"
    assert f"{said} lost: RuntimeError: Counting fails at step 100 (option fails_at)\n" in log
    assert "Traceback" in log

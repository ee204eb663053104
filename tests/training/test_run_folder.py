"""A run's folder belongs to one run and to one process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import guerdon
from guerdon.training.run_folder import RunFolder, make_folder, write_json
from tests.processes import Program

SUMMARY = {"env_steps": 100, "fps": 66.7, "eval_return_mean": 9.0, "stop_reason": "steps"}

# Holds a run, says so, and waits; with a child of its own that would inherit a lock.
HOLDER = """
import os, sys, time
from guerdon.training.run_folder import RunFolder
folder = RunFolder.reopen(sys.argv[1])
child = os.fork()
if child:
    sys.stdout.write(f"{child}\\n")
    sys.stdout.flush()
time.sleep(60)
"""


def test_a_new_run_has_its_files_and_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["guerdon", "train", "a b"])
    with RunFolder.create(tmp_path / "a" / "run", "seed: 3\n") as run:
        names = {path.name for path in run.path.iterdir()}
    assert names == {
        *("config.yaml", "metrics.jsonl", "log.txt", "run.json", ".lock"),
        *("tb", "checkpoints", "reward", "videos"),
    }
    assert run.config.read_text() == "seed: 3\n"
    (start,) = run.starts()
    assert start["command"] == "guerdon train 'a b'"
    assert (start["guerdon"], start["torch"]) == (guerdon.__version__, torch.__version__)
    assert start["process"] == os.getpid()


def test_the_git_hash_is_that_of_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "someone@example.org")
    with RunFolder.create("before", "") as run:
        assert run.starts()[0]["git"] is None
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    with RunFolder.create("after", "") as run:
        assert run.starts()[0]["git"] == done.stdout.strip()


def test_a_folder_that_holds_a_run_is_refused_by_a_new_one(tmp_path):
    RunFolder.create(tmp_path, "seed: 1").close()
    with pytest.raises(FileExistsError, match=f"already holds a run.*--resume {tmp_path}"):
        RunFolder.create(tmp_path, "seed: 2")
    assert RunFolder(tmp_path).config.read_text() == "seed: 1"
    RunFolder.reopen(tmp_path).close()  # the refusal left no lock


def test_a_run_that_was_killed_before_its_config_was_written_can_be_started_again(tmp_path):
    RunFolder.create(tmp_path, "").close()
    (tmp_path / "config.yaml").unlink()
    with RunFolder.create(tmp_path, "seed: 2") as run:
        assert run.config.read_text() == "seed: 2"


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            FileNotFoundError, match=r"is not a run directory: it has no config\.yaml"
        ):
            RunFolder.reopen(path)
    assert list(tmp_path.iterdir()) == []


def test_resuming_adds_a_start_and_takes_the_summary_away(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["first"])
    with RunFolder.create(tmp_path, "") as run:
        run.write_summary(SUMMARY)
    monkeypatch.setattr(sys, "argv", ["second"])
    with RunFolder.reopen(tmp_path) as run:
        assert [start["command"] for start in run.starts()] == ["first", "second"]
        assert run.summary.exists()  # it may yet fail to go on
        run.write_config("seed: 1\n")
        assert run.config.read_text() == "seed: 1\n"
        assert not run.summary.exists()


def test_a_summary_has_null_for_what_is_not_finite(tmp_path):
    run = RunFolder(tmp_path)
    run.write_summary(
        {
            **SUMMARY,
            "eval_return_mean": float("nan"),
            "eval_return_std": np.float32(0.5),
            "fps": torch.tensor(float("inf")),
        }
    )
    assert json.loads(run.summary.read_text()) == {
        "env_steps": 100,
        "fps": None,
        "eval_return_mean": None,
        "stop_reason": "steps",
        "eval_return_std": 0.5,
    }


def test_one_process_cannot_write_a_run_twice(tmp_path):
    with RunFolder.create(tmp_path, ""):
        (tmp_path.parent / "link").symlink_to(tmp_path)
        for path in (tmp_path, tmp_path.parent / "link"):
            with pytest.raises(RuntimeError, match="written by this process already"):
                RunFolder.reopen(path)
    RunFolder.reopen(tmp_path).close()


def test_a_run_is_locked_while_its_process_lives_and_free_when_it_was_killed(tmp_path):
    RunFolder.create(tmp_path, "").close()
    with Program("-c", HOLDER, tmp_path) as holder:
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(RuntimeError, match=f"is being written by process {holder.pid} on"):
                RunFolder.reopen(tmp_path)
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            os.kill(child, 0)  # it lives on, and does not keep the lock
            RunFolder.reopen(tmp_path).close()
        finally:
            holder.send_signal(signal.SIGKILL)
            os.kill(child, signal.SIGKILL)


def test_runs_of_one_second_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:  # more collide than in processes
        paths = list(pool.map(lambda _: make_folder("same", 0, tmp_path), range(64)))
    assert len({*paths}) == 64
    assert {*(tmp_path / "same").iterdir()} == {*paths}


def test_the_default_folder_names_preset_time_and_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = make_folder("cartpole_ppo", 3)
    assert path.parent == Path("runs/cartpole_ppo")
    stamp, seed = path.name.rsplit("-", 1)
    assert seed == "3"
    assert abs(time.mktime(time.strptime(stamp, "%Y%m%d-%H%M%S")) - time.time()) < 5


@pytest.mark.parametrize(
    ("name", "folder"), [("ALE/Pong-v5", "ALE_Pong-v5"), ("..", "run"), ("my run", "my_run")]
)
def test_the_default_folder_stays_in_its_root(name, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert re.fullmatch(rf"out/{folder}/\d+-\d+-0", str(make_folder(name, 0, "out")))


def test_the_files_of_a_newer_version_are_refused(tmp_path):
    with RunFolder.create(tmp_path / "run", "seed: 0\n") as run:
        assert json.loads(run.info.read_bytes())["format"] == 1
    write_json(run.info, {**json.loads(run.info.read_bytes()), "format": 2})
    with pytest.raises(ValueError, match="has format 2 and this guerdon reads up to 1: upgrade"):
        RunFolder.reopen(run.path)

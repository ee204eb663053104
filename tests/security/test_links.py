"""A run reads and writes nothing through links in its folder."""

import json
import os
import re
import shutil
import socket

import pytest

from guerdon.lab.report import write_report
from guerdon.parallel.logs import LogFile, files, worker_logger
from guerdon.training.replay import evaluate_run, load_reward
from guerdon.training.reward_files import with_reward_of
from guerdon.training.run import train
from guerdon.training.run_folder import RunFolder
from tests.cli.tiny import BUDGET, guerdon
from tests.training.running import config_of, resume, run

SUB = ("checkpoints", "best", "reward", "tb", "videos", "alarms", "log")
FILES = (
    *(".lock", "config.yaml", "metrics.jsonl", "log.txt", "summary.json", "run.json"),
    *("outputs.jsonl", "checkpoints/latest", "checkpoints/scheduled", "best/latest"),
    *("serve.txt", "log/learner", "log/learner/learner.txt", "alarms/latest", "tb/events"),
    *("reward/step_9", "videos/best.mp4", "videos/.best.mp4"),
    *("checkpoints/step_33", "checkpoints/step_33/state.json", "best/.step_1.tmp"),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    run("ppo", folder, run={"max_steps": 64})
    return folder


def content(folder):
    """All files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def moved(finished, tmp_path):
    """Puts a part of a run elsewhere, and a link in its place; returns the run and the part."""

    def move(name):
        folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
        shutil.copytree(finished, folder)
        part = folder / name
        if part.exists():
            part.rename(elsewhere)
        else:
            elsewhere.write_text("my thesis")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.symlink_to(os.path.relpath(elsewhere, part.parent))
        return folder, elsewhere

    return move


@pytest.mark.parametrize("name", [*SUB, *FILES])
def test_a_link_inside_a_run_is_refused_and_what_it_names_is_untouched(name, moved):
    folder, elsewhere = moved(name)
    before = content(elsewhere) if elsewhere.is_dir() else elsewhere.read_bytes()
    said = rf"^{re.escape(str(folder / name))} is a symbolic link, and a run does not follow links"
    for use in (
        lambda: resume(folder, "run.max_steps=256"),
        lambda: resume(folder, exact=True),
        lambda: evaluate_run(folder, episodes=1),
        lambda: with_reward_of({}, None, [], folder),
        lambda: write_report(folder),
        lambda: load_reward(folder),
    ):
        with pytest.raises(ValueError, match=said):
            use()
    assert (content(elsewhere) if elsewhere.is_dir() else elsewhere.read_bytes()) == before


def test_a_served_reward_is_not_logged_through_a_link(moved):
    folder, elsewhere = moved("serve.txt")
    with socket.create_server(("127.0.0.1", 0)) as used:  # so that a server does not start
        port = used.getsockname()[1]
        result = guerdon("reward", "serve", folder, "--port", port)
    assert result.exit_code == 2
    assert f"Error: {folder / 'serve.txt'} is a symbolic link" in result.stderr
    with pytest.raises(ValueError, match=r"serve\.txt is a symbolic link"):
        LogFile(folder / "serve.txt")
    assert elsewhere.read_text() == "my thesis"


def test_logs_of_workers_are_not_written_through_a_link_that_appears(tmp_path):
    thesis, link = tmp_path / "thesis", tmp_path / "run" / "log" / "learner" / "learner.txt"
    thesis.write_text("my thesis")
    with files(tmp_path / "run", {}):
        link.symlink_to(thesis)
        with pytest.raises(ValueError, match=r"learner\.txt is a symbolic link"):
            worker_logger("learner").info("something")
    assert thesis.read_text() == "my thesis"


@pytest.mark.parametrize("name", [".lock", "log.txt", "metrics.jsonl", "checkpoints", "tb", "log"])
def test_a_new_run_is_not_written_through_links_that_wait_for_it(name, tmp_path):
    folder, thesis = tmp_path / "run", tmp_path / "thesis"
    folder.mkdir()
    thesis.write_text("my thesis")
    (folder / name).symlink_to(thesis)
    with pytest.raises(ValueError, match="is a symbolic link"):
        run("ppo", folder)
    assert thesis.read_text() == "my thesis"


@pytest.mark.parametrize("name", ["checkpoints", "best"])
def test_a_link_that_appears_during_a_run_is_not_followed(name, tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (elsewhere / "step_1").mkdir(parents=True)

    def relink(*_):
        if not (folder / name).is_symlink():
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).symlink_to(elsewhere)

    config = config_of("ppo", folder, run={"max_steps": 256, "log_every": 16})
    with pytest.raises(ValueError, match=f"{name} is a symbolic link"):
        train(config, seed=3, display="none", callback=relink)
    assert [path.name for path in elsewhere.rglob("*")] == ["step_1"]


def test_a_lock_that_is_another_file_too_is_not_overwritten(finished, tmp_path):
    folder, thesis = tmp_path / "run", tmp_path / "thesis"
    shutil.copytree(finished, folder)
    thesis.write_text("my thesis")
    (folder / ".lock").unlink()
    (folder / ".lock").hardlink_to(thesis)
    with RunFolder.reopen(folder), pytest.raises(RuntimeError, match="this process already"):
        RunFolder.reopen(folder)
    assert thesis.read_text() == "my thesis"


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl", "outputs.jsonl"])
@pytest.mark.filterwarnings("ignore:.*log.txt cannot be written. it is a hard link")
def test_what_is_another_file_too_is_not_appended_to(name, finished, tmp_path):
    folder, thesis = tmp_path / "run", tmp_path / "thesis"
    shutil.copytree(finished, folder)
    thesis.write_bytes((folder / name).read_bytes())
    before = thesis.read_bytes()
    (folder / name).unlink()
    (folder / name).hardlink_to(thesis)
    assert resume(folder, "run.max_steps=96")["env_steps"] >= 96
    assert thesis.read_bytes() == before


def test_logs_of_workers_are_not_appended_to_a_hard_link(tmp_path):
    (tmp_path / "thesis").write_text("my thesis")
    (tmp_path / "serve.txt").hardlink_to(tmp_path / "thesis")
    with pytest.raises(OSError, match=r"it is a hard link, so that another file would change"):
        LogFile(tmp_path / "serve.txt")
    assert (tmp_path / "thesis").read_text() == "my thesis"


@pytest.mark.parametrize("name", [".lock", "log.txt", "metrics.jsonl"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=f"{name} is neither a file nor a folder: remove it"):
        resume(folder, "run.max_steps=96")


def test_a_run_may_be_reached_through_a_link(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "real" / "run")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "run")
    summary = resume(tmp_path / "link", "run.max_steps=96")
    assert summary["env_steps"] >= 96
    assert evaluate_run(tmp_path / "link", episodes=1)["step"] > 0


@pytest.mark.parametrize("below", ["data", "data/positive"])
def test_frames_are_not_collected_through_a_link_inside_the_run(below, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "run" / below
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    config = config_of("ppo", tmp_path / "run")
    config["env"] = {"id": "tests.training.test_noise_law:PointEnv", "n_envs": 2}
    config["env"] |= {"max_episode_steps": 10, "kwargs": {"camera": True}}
    config["policy"]["model"]["keys"] = ["state"]
    folders = {"positive_dir": "run/data/positive", "negative_dir": "run/data/negative"}
    config["reward"] = {
        "terms": {"env": {}},
        "collect_data": True,
        "data_collection": {**folders, "image_keys": ["camera"]},
    }
    with pytest.raises(ValueError, match=rf"run/{below} is a symbolic link"):
        train(config, seed=3, display="none")
    assert not list(elsewhere.rglob("*.npz"))


def test_what_another_run_owns_is_not_pruned(finished, tmp_path):
    """As it was found: `checkpoints` of one run leads to those of another."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    shutil.copytree(finished, mine)
    shutil.copytree(finished, theirs)
    before = content(mine)
    shutil.rmtree(theirs / "checkpoints")
    (theirs / "checkpoints").symlink_to(mine / "checkpoints")
    with pytest.raises(ValueError, match="symbolic link"):
        resume(theirs, "run.max_steps=999", "run.keep=1")
    assert content(mine) == before
    assert json.loads((mine / "summary.json").read_text())["stop_reason"] == "max_steps"


@pytest.mark.parametrize("name", ["curves.png", "sweep.json", "seed=1", "seed=0/output.txt"])
def test_a_sweep_is_not_written_through_links_in_its_folder(name, tmp_path):
    folder, thesis = tmp_path / "sweep", tmp_path / "thesis"
    thesis.write_text("my thesis")
    (folder / name).parent.mkdir(parents=True)
    (folder / name).symlink_to(thesis)
    result = guerdon("train", "cartpole_ppo", *BUDGET, "seed=0,1", "--sweep-dir", folder)
    assert result.exit_code == 2
    assert f"Error: {folder / name} is a symbolic link" in result.stderr
    assert thesis.read_text() == "my thesis"

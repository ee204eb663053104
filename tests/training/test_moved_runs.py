"""Runs that are resumed, evaluated and probed from other folders, and after they were moved."""

import json
import re
import shutil
from pathlib import Path

import pytest

from guerdon.config import compose, sources
from guerdon.config.errors import ConfigError
from guerdon.lab.probe import DEMONSTRATIONS as DEMONSTRATED
from guerdon.lab.probe import probe
from guerdon.training.replay import evaluate_run, load_reward
from guerdon.training.run import train
from guerdon.training.run_data import LARGEST
from guerdon.training.run_folder import RunFolder
from tests.training.running import assert_same_run
from tests.training.test_noise_law import (
    DEMONSTRATIONS,
    PREFERENCES,
    REWARDS,
    fill_paths,
    make_config,
    write_expert_files,
)

NAMES = {DEMONSTRATIONS: "demonstrations", PREFERENCES: "preferences.jsonl"}
CASES = {
    "gail": ("ppo", "gail"),
    "sqil": ("sac_discrete", "sqil"),
    "ensemble": ("td3", "ensemble"),
    "preference": ("a2c", "preference"),
    "bc": ("bc", None),
}
LIMIT = {"max_steps": 128, "log_every": 32, "checkpoint_every": 32}
HALF = {**LIMIT, "max_steps": 64}


pytestmark = pytest.mark.usefixtures("place")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working directory; its demonstrations and preferences are named relative to it."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def start(case, folder, run=HALF, **sections):
    """Train in a folder, with relative paths of data."""
    policy, reward = CASES[case]
    section = REWARDS[reward] if reward else {"terms": {"env": {}}}
    config = fill_paths(make_config(policy, section, folder), NAMES)
    if not Path("demonstrations").exists():
        write_expert_files(Path.cwd(), continuous=config["env"]["kwargs"]["continuous"])
    changes = {key: {**config.get(key, {}), **value} for key, value in sections.items()}
    train({**config, **changes, "run": {**run, "dir": str(folder)}}, seed=3, display="none")


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_was_moved_has_its_data(case, place, tmp_path, monkeypatch):
    start(case, "whole", LIMIT)
    start(case, "run")
    (tmp_path / "away").mkdir()
    shutil.move("run", tmp_path / "away" / "moved")
    shutil.move("whole", tmp_path / "whole")
    shutil.rmtree(place)
    place.mkdir()
    monkeypatch.chdir(tmp_path / "away")
    train(None, "run.max_steps=128", resume="moved", display="none")
    assert_same_run(tmp_path / "whole", Path("moved"))
    assert str(place) not in RunFolder("moved").config.read_text()
    assert evaluate_run("moved", episodes=1)["episodes"] == 1
    if case != "bc":
        assert load_reward("moved").terms
    if case == "gail":
        rows = probe(compose("moved"), episodes=2, steps=64, display="none").rows
        assert DEMONSTRATED in [row.name for row in rows]


def test_a_new_run_with_the_config_of_another_has_its_data(place, tmp_path, monkeypatch):
    start("gail", "run")
    shutil.move("run", tmp_path / "run")
    shutil.rmtree("demonstrations")
    train(str(tmp_path / "run" / "config.yaml"), "run.dir=new", display="none")
    monkeypatch.chdir(tmp_path)
    shutil.rmtree("run")
    train(None, "run.max_steps=128", resume=place / "new", display="none")


def test_a_frozen_reward_of_a_moved_run_has_its_preferences(tmp_path):
    start("preference", "run")
    shutil.move("run", tmp_path / "moved")
    Path("preferences.jsonl").unlink()
    config = make_config("a2c", {"terms": {"env": {}}}, "new")
    train({**config, "run": {**HALF, "dir": "new"}}, from_reward=tmp_path / "moved", display="none")


def test_runs_with_different_data_of_one_name_are_different(place):
    start("gail", "one")
    Path("demonstrations").rename("other")
    shutil.copytree("other", "demonstrations")
    start("gail", "same")
    (one,) = (Path("one") / sources.DATA).iterdir()
    (same,) = (Path("same") / sources.DATA).iterdir()
    assert one.name == same.name
    shutil.rmtree("demonstrations")
    write_expert_files(place, continuous=True)
    names = {DEMONSTRATIONS: "demonstrations"}
    config = fill_paths(make_config("ppo_continuous", REWARDS["gail"], "continuous"), names)
    train({**config, "run": {**HALF, "dir": "continuous"}}, display="none")
    (other,) = (Path("continuous") / sources.DATA).iterdir()
    assert other.name != one.name


@pytest.fixture
def large(place, monkeypatch):
    """A run whose demonstrations were too large to be copied, in another working directory."""
    write_expert_files(place, continuous=False)
    Path("demonstrations", "notes.bin").write_bytes(bytes(LARGEST))
    config = fill_paths(make_config("ppo", REWARDS["gail"], "run"), NAMES)
    train({**config, "run": {**HALF, "dir": "run"}}, seed=3, display="none")
    elsewhere = place.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return place / "run"


def test_large_data_is_found_from_every_folder(large, place):
    assert not RunFolder(large).data.exists()
    assert f"expert_data_path: {place}/demonstrations\n" in RunFolder(large).config.read_text()
    train(None, "run.max_steps=128", resume=large, display="none")


def test_large_data_that_is_gone_is_named_with_its_key(large, place):
    shutil.move(place / "demonstrations", place / "there")
    with pytest.raises(FileNotFoundError) as error:
        train(None, "run.max_steps=128", resume=large, display="none")
    assert str(error.value).startswith(f"there are no demonstrations at {place}/demonstrations")
    assert str(error.value).endswith(
        "; of a run, put them back, or write where they are now as "
        "'reward.terms.gail.expert_data_path' in its config.yaml"
    )
    assert evaluate_run(large, episodes=1)["episodes"] == 1
    config = RunFolder(large).config
    config.write_text(config.read_text().replace("place/demonstrations", "place/there"))
    train(None, "run.max_steps=128", resume=large, display="none")


def test_preferences_that_are_gone_are_named_with_their_key():
    start("preference", "run")
    shutil.rmtree(RunFolder("run").data)
    with pytest.raises(
        FileNotFoundError, match=r"^'reward.terms.preference.preferences_path' name"
    ):
        train(None, "run.max_steps=128", resume="run", display="none")


def test_paths_of_other_data_are_absolute(place):
    start("gail", "first")
    options = {"init_from": "first", "type": "ppo"}
    start("gail", "second", policy=options)
    text = RunFolder("second").config.read_text()
    assert f"init_from: {place}/first\n" in text
    positive = {"positive_dir": "good", "negative_dir": "bad", "image_keys": ["camera"]}
    config = make_config("ppo", {"terms": {"env": {}}}, "third", camera=True)
    reward = {"terms": {"env": {}}, "collect_data": True, "data_collection": positive}
    config = {**config, "reward": reward, "run": {**HALF, "dir": "third"}}
    train(config, seed=3, display="none")
    assert f"positive_dir: {place}/good\n" in RunFolder("third").config.read_text()
    assert f"record_path: {place}/" not in text


# --- runs of others


def edit(folder, pattern, new):
    """Edit the config of a run in place."""
    file = RunFolder(folder).config
    text, number = re.subn(pattern, new, file.read_text())
    assert number == 1
    file.write_text(text)


def test_a_name_of_data_in_a_run_leads_not_out_of_it():
    start("gail", "run")
    edit("run", r"run:data/\w+/demonstrations", "run:data/../../demonstrations")
    with pytest.raises(ConfigError, match=r"'run:data/../../demonstrations' is outside of run"):
        train(None, "run.max_steps=128", resume="run", display="none")


def test_data_in_a_run_is_not_reached_through_links(place):
    start("gail", "run")
    (copy,) = RunFolder("run").data.glob("*/demonstrations")
    shutil.rmtree(copy)
    copy.symlink_to(place / "demonstrations")
    with pytest.raises(ValueError, match="demonstrations is a symbolic link"):
        train(None, "run.max_steps=128", resume="run", display="none")


def test_data_that_a_frozen_reward_does_not_read_is_not_copied(tmp_path):
    start("gail", "run")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    edit("run", r"run:data/\w+/demonstrations", str(secret))
    frozen = compose("run", ["reward.checkpoint_path=run", "reward.cotrain=false", "run.dir=new"])
    train(frozen, display="none")
    assert not RunFolder("new").data.exists()
    assert json.loads(RunFolder("new").summary.read_text())["env_steps"] > 0

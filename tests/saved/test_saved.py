"""Files of earlier versions are read; `make.py` wrote those in each folder with its version."""

import json
import shutil
from pathlib import Path

import pytest

import guerdon
from guerdon.data import ReplayBuffer, load_demonstrations, load_preferences
from guerdon.data.frames import read_trajectory
from tests.rounding import assert_close

VERSIONS = sorted(path for path in Path(__file__).parent.glob("[0-9]*") if path.is_dir())


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def saved(request, tmp_path):
    return Path(shutil.copytree(request.param, tmp_path / "saved"))


def test_there_are_files_of_this_version():
    assert guerdon.__version__ in [path.name for path in VERSIONS]


def test_buffers(saved):
    batch, _ = ReplayBuffer.load(saved / "buffer").sample(0)
    assert batch.obs.tolist() == [0, 1, 1, 2, 2, 3]
    assert batch.rew.tolist() == [0, 0, 0.5, 0.5, 1, 1]
    assert batch.terminated.tolist() == [False, False, True, False, False, False]


def test_demonstrations_and_preferences(saved):
    (episode,) = load_demonstrations(saved / "demonstrations").episodes
    (preference,) = load_preferences(saved / "preferences.jsonl")
    assert (preference.pair, preference.label, preference.rater) == ("a", 1.0, "me")
    assert preference.first == episode[:2]
    assert preference.second == episode[2:4]


def test_trajectories(saved):
    trajectory = read_trajectory(saved / "trajectories" / "000000.npz")
    assert trajectory.labels.tolist() == [0, 1]
    assert (trajectory.images["base_camera"] == 7).all()


def test_runs(saved):
    expected = json.loads((saved / "expected.json").read_text())
    (episode,) = load_demonstrations(saved / "demonstrations").episodes
    policy = guerdon.load_policy(saved / "run", "latest")
    assert policy.predict(episode.obs).tolist() == expected["action"]
    rewards = guerdon.load_reward(saved / "run").score(episode)
    assert_close(rewards, expected["rewards"])
    resumed = guerdon.train(resume=saved / "run", run={"max_steps": 128}, display="none")
    assert resumed["env_steps"] >= 128

"""``guerdon collect`` on a real run, and ``guerdon train --from-reward`` on what comes of it."""

import re

import numpy as np
import pytest

from guerdon.config import compose
from guerdon.data import load_demonstrations
from guerdon.training.checkpoints import checkpoint_steps
from tests.cli.tiny import guerdon, train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collect") / "run"
    train(folder)
    return folder


def refused(*arguments):
    result = guerdon(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    return result.output


def test_demonstrations_are_written_and_summed_up(run, tmp_path):
    result = guerdon("collect", run, "--out", tmp_path / "data", "--episodes", 3)
    assert result.exit_code == 0, result.output
    played = load_demonstrations(tmp_path / "data")
    assert len(played) == 3
    assert played.env_id == "CartPole-v1"
    assert re.search(
        rf"wrote 3 episodes \({played.lengths.sum():,} steps, return {played.returns.mean():.2f} ± "
        rf"[\d.]+\) to \S+data",
        result.output,
    )


def test_any_checkpoint_can_play(run, tmp_path):
    first, *_, last = checkpoint_steps(run / "checkpoints")
    for name, checkpoint in (("a", first), ("b", last), ("c", "latest")):
        arguments = ("--out", tmp_path / name, "--episodes", 6, "--checkpoint", checkpoint)
        assert guerdon("collect", run, *arguments).exit_code == 0
    a, b, c = (load_demonstrations(tmp_path / name).transitions() for name in "abc")
    assert b == c
    assert a != b


def test_several_checkpoints_play_into_one_set(run, tmp_path):
    first, *_, last = checkpoint_steps(run / "checkpoints")
    arguments = ("--out", tmp_path / "data", "--episodes", 2)
    result = guerdon("collect", run, *arguments, "--checkpoint", f"{first},{last},best")
    assert result.exit_code == 0, result.output
    played = load_demonstrations(tmp_path / "data")
    assert len(played) == 6
    arguments = ("--out", tmp_path / "first", "--episodes", 2, "--checkpoint", first)
    assert guerdon("collect", run, *arguments).exit_code == 0
    alone = load_demonstrations(tmp_path / "first")
    assert played.episodes[:2] == alone.episodes
    assert "not 'beast'" in refused(
        "collect", run, "--out", tmp_path / "other", "--checkpoint", f"{first},beast"
    )


def test_levels_of_noise_are_kept(run, tmp_path):
    arguments = ("--out", tmp_path / "data", "--episodes", 2, "--noise", "0,0.25,1")
    assert guerdon("collect", run, *arguments).exit_code == 0
    played = load_demonstrations(tmp_path / "data")
    levels = [np.unique(episode.noise).tolist() for episode in played.episodes]
    assert levels == [[0.0]] * 2 + [[0.25]] * 2 + [[1.0]] * 2


def test_demonstrations_are_replaced_only_when_asked_for(run, tmp_path):
    arguments = ("collect", run, "--out", tmp_path / "data", "--episodes")
    assert guerdon(*arguments, 1).exit_code == 0
    assert "has demonstrations: add --overwrite" in refused(*arguments, 2)
    assert len(load_demonstrations(tmp_path / "data")) == 1
    assert guerdon(*arguments, 2, "--overwrite").exit_code == 0
    assert len(load_demonstrations(tmp_path / "data")) == 2


def test_minari_can_be_written(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    arguments = ("collect", run, "--out", "cartpole/mine-v0", "--format", "minari")
    result = guerdon(*arguments, "--episodes", 2)
    assert result.exit_code == 0, result.output
    assert len(load_demonstrations("minari:cartpole/mine-v0")) == 2
    assert "Minari does not take 'cartpole/mine-v0'" in refused(*arguments)
    assert "cannot store the noise level" in refused(*arguments, "--noise", "0,1")


@pytest.mark.parametrize("noise", ["much", "0,2", "-1", ""])
def test_noise_is_a_share(run, noise, tmp_path):
    assert "probabilities between 0 and 1" in refused(
        "collect", run, "--out", tmp_path / "data", f"--noise={noise}"
    )
    assert not (tmp_path / "data").exists()


def test_a_folder_without_a_run_is_named(tmp_path):
    assert "is not a run directory" in refused("collect", tmp_path, "--out", tmp_path / "data")


def test_a_policy_is_trained_on_the_reward_of_a_run(run, tmp_path):
    data = tmp_path / "data"
    assert guerdon("collect", run, "--out", data, "--episodes", 3).exit_code == 0
    train(tmp_path / "gail", "reward=gail", f"reward.expert_data_path={data}", "run.max_steps=128")
    train(tmp_path / "next", "--from-reward", tmp_path / "gail", "run.max_steps=128")
    made = compose(tmp_path / "next")
    assert list(made.reward.terms) == ["gail"]
    assert (made.reward.cotrain, made.run.name) == (False, "cartpole_ppo_gail")
    said = refused("train", "cartpole_ppo", "--from-reward", run)
    assert "has no reward: give a run that has learned one" in said


def test_a_reward_is_probed_before_a_policy_learns_from_it(run, tmp_path):
    data = tmp_path / "data"
    assert guerdon("collect", run, "--out", data, "--episodes", 2).exit_code == 0
    arguments = ("cartpole_ppo", "reward=gail", f"reward.expert_data_path={data}", "--steps", 300)
    result = guerdon("reward", "probe", *arguments, "--episodes", 3)
    assert result.exit_code == 0, result.output
    title, header, *rows, ranking, conclusion = result.stdout.splitlines()
    assert title == "gail\N{MULTIPLICATION SIGN}1 → GAE"
    assert header.split()[:4] == ["per", "step", "per", "episode"]
    kinds = ["demonstrations", "permuted actions", "random actions", "constant actions"]
    assert [re.split(r" {2,}", row)[0] for row in rows] == kinds
    assert ranking.startswith("Demonstrations have")
    assert conclusion.startswith("Survival is rewarded by itself")

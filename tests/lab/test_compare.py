"""Comparisons of rewards whose distances are known."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import guerdon
from guerdon.cli.rewards import compare
from guerdon.data import Batch, Demonstrations, load_demonstrations
from guerdon.lab.compare import compare_rewards
from tests.training.running import config_of

DEMOS = "zoo:pendulum_random"
GAMMA = 0.98


def true(batch):
    """Pendulum's reward, which is minus a cost of angle, velocity and torque."""
    obs, act = np.asarray(batch.obs), np.asarray(batch.act)
    angle = np.arctan2(obs[..., 1], obs[..., 0])
    cost = angle**2 + 0.1 * obs[..., 2] ** 2 + 0.001 * act[..., 0].clip(-2, 2) ** 2
    return -cost.astype(np.float32)


def potential(obs):
    return 200 * np.asarray(obs)[..., 1]


def scaled(batch):
    return 0.1 * true(batch) + 3


def shaped(batch):
    return 2 * true(batch) + GAMMA * potential(batch.obs_next) - potential(batch.obs)


def opposite(batch):
    return -true(batch)


def unrelated(batch):
    """A fixed random function of the transition."""
    parts = np.concatenate([batch.obs, batch.act, batch.obs_next], -1)
    return np.sin(1e3 * parts.sum(-1)).astype(np.float32)


def constant(batch):
    return np.full(batch.rew.shape, 2.0, np.float32)


def test_scale_and_shaping_are_no_difference():
    found = compare_rewards(true, scaled, shaped, opposite, unrelated, on=DEMOS, gamma=GAMMA)
    assert found.names == ["true", "scaled", "shaped", "opposite", "unrelated"]
    first = found.epic_distance[0]
    assert first[:3] == pytest.approx([0, 0, 0], abs=1e-3)
    assert first[3] == pytest.approx(1, abs=1e-3)
    assert first[4] == pytest.approx(np.sqrt(0.5), abs=0.06)
    assert np.allclose(found.epic_distance, np.transpose(found.epic_distance))
    assert found.rank_correlation[0][1] == pytest.approx(1)
    assert found.rank_correlation[0][3] == pytest.approx(-1)
    assert found.notes == []
    assert (found.episodes, found.transitions) == (10, 2_000)


def test_without_canonical_shaping_they_would_differ():
    data = load_demonstrations(DEMOS).transitions()
    assert abs(np.corrcoef(true(data), shaped(data))[0, 1]) < 0.7


def test_the_environment_is_near_its_own_function():
    found = compare_rewards("env", true, unrelated, on=DEMOS)
    assert found.epic_distance[0][1] < 0.1
    assert found.epic_distance[0][2] == pytest.approx(np.sqrt(0.5), abs=0.06)
    assert found.rank_correlation[0][1] == pytest.approx(1, abs=1e-3)
    recorded = load_demonstrations(DEMOS).returns.mean()
    assert found.mean_return[:2] == pytest.approx([recorded] * 2, rel=1e-3)
    (note,) = found.notes
    assert "explains 9" in note or "explains 100" in note


def test_a_constant_has_no_distance_and_names_stay_apart():
    found = compare_rewards(true, constant, constant, on=DEMOS)
    assert found.names == ["true", "constant (1)", "constant (2)"]
    assert found.epic_distance[0] == [pytest.approx(0, abs=1e-6), None, None]
    assert found.rank_correlation[0][1] is None
    assert len([note for note in found.notes if "is constant" in note]) == 2


def test_a_reward_of_the_episode_has_only_a_rank_correlation():
    model = guerdon.reward.make_reward({"type": "function", "target": true, "history": 2})
    found = compare_rewards(true, model, on=DEMOS)
    assert found.epic_distance[0][1] is None
    assert found.rank_correlation[0][1] == pytest.approx(1)
    assert found.notes == [
        "function depends on the episode so far, so that EPIC distance is not defined"
    ]


def test_a_termination_is_no_part_of_the_distance():
    def ends(batch):
        return true(batch) - 100 * np.asarray(batch.terminated)

    episodes = load_demonstrations(DEMOS).episodes
    for episode in episodes:
        last = np.zeros(len(episode), bool)
        last[-1] = True
        episode.terminated, episode.truncated = last, ~last & False
    found = compare_rewards(true, ends, on=Demonstrations(episodes))
    assert found.epic_distance[0][1] == pytest.approx(0, abs=1e-3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    reward = {"type": "red", "expert_data_path": "zoo:cartpole_fixed"}
    for seed in range(2):
        env = {"id": "guerdon/CartPoleFixed-v0"}
        config = config_of("ppo", folder / f"run{seed}", env=env, reward=reward)
        guerdon.train(config, f"seed={seed}", display="none")
    return [str(folder / f"run{seed}") for seed in range(2)]


def test_runs_are_compared_with_a_table_a_file_and_a_picture(runs, tmp_path):
    image = pytest.importorskip("PIL.Image")
    app = typer.Typer()
    app.command()(compare)
    arguments = [*runs, "env", "--episodes", "2", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "3,000 transitions, 6 episodes" in result.output
    assert "EPIC distance" in result.output
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert written["names"] == ["run0", "run1", "env"]
    assert written["epic_distance"][0][0] == pytest.approx(0, abs=1e-6)
    assert 0 < written["epic_distance"][0][1] < 1
    with image.open(tmp_path / "out" / "comparison.png") as picture:
        assert picture.format == "PNG"
        assert len(picture.convert("RGB").getcolors(10**6)) > 50
    again = CliRunner().invoke(app, [*arguments[:-2], "--json"], catch_exceptions=False)
    assert json.loads(again.output) == written


def test_bad_arguments_are_said():
    with pytest.raises(ValueError, match="two rewards or more"):
        compare_rewards(true, on=DEMOS)
    with pytest.raises(ValueError, match="no transitions"):
        compare_rewards("env", true)
    with pytest.raises(FileNotFoundError, match="no demonstrations at nowhere"):
        compare_rewards("env", true, on="nowhere")

    model = guerdon.reward.make_reward(
        {"type": "function", "target": true, "fields": ("obs", "info")}
    )
    with pytest.raises(ValueError, match="reads info, which is not in demonstrations"):
        compare_rewards(model, true, on=DEMOS)


def test_the_result_of_nested_observations():
    rng = np.random.default_rng(0)

    def episode():
        obs = Batch(a=rng.normal(size=(31, 2)), b=rng.normal(size=(31, 1)))
        return Batch(
            obs=obs[:-1], obs_next=obs[1:], act=rng.normal(size=(30, 1)), rew=obs.a[:-1, 0],
            terminated=np.zeros(30, bool), truncated=np.zeros(30, bool),
        )  # fmt: skip

    def first(batch):
        return np.asarray(batch.obs.a)[..., 0]

    found = compare_rewards("env", first, on=Demonstrations([episode() for _ in range(10)]))
    assert found.epic_distance[0][1] < 0.15

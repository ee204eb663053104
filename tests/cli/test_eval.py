"""``guerdon eval`` on a real run."""

import json
import re
import warnings

import pytest

from guerdon.cli.common import checkpoint_of
from guerdon.training.checkpoints import checkpoint_steps
from tests.cli.tiny import damage, guerdon, train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval") / "run"
    train(folder)
    return folder


def evaluated(*arguments):
    result = guerdon("eval", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_people_are_told_the_result_in_two_lines(run):
    found = evaluated(run)
    result = guerdon("eval", run)
    assert result.exit_code == 0, result.output
    title, numbers = result.stdout.splitlines()
    assert title == f"CartPole-v1 · ppo · step {found['step']:,} · 20 episodes · seed 0"
    assert re.fullmatch(
        rf"return {found['return_mean']:.2f} ± {found['return_std']:.2f}   "
        rf"min {min(found['returns']):.2f}   max {max(found['returns']):.2f}   length [\d.]+",
        numbers,
    )


def test_one_episode_is_no_plural(run):
    assert " · 1 episode · " in guerdon("eval", run, "--episodes", 1).stdout


def test_programs_are_told_everything(run):
    found = evaluated(run, "--episodes", 5, "--seed", 9)
    assert found["run"] == str(run)
    assert (found["episodes"], found["seed"]) == (5, 9)
    assert len(found["returns"]) == len(found["lengths"]) == 5
    assert found["return_mean"] == pytest.approx(sum(found["returns"]) / 5)
    assert found["returns"] == found["lengths"]  # CartPole pays 1 a step
    assert found["success_rate"] is None
    assert found["videos"] == []


def test_the_seed_decides(run):
    assert evaluated(run, "--seed", 3) == evaluated(run, "--seed", 3)
    assert evaluated(run, "--seed", 3)["returns"] != evaluated(run, "--seed", 4)["returns"]


def test_success_is_shown_where_the_environment_tells_it(tmp_path):
    (tmp_path / "goals.py").write_text(GOALS)
    file = tmp_path / "goals.yaml"
    file.write_text("env: {id: 'goals:Goal'}\npolicy: ppo\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        train(tmp_path / "run", source=file)
        assert guerdon("eval", tmp_path / "run").stdout.endswith("   success 100%\n")


GOALS = """
import gymnasium
import numpy as np

class Goal(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {"is_success": True}
"""


# --- which checkpoint


def test_any_checkpoint_can_be_named(run):
    first, *_, last = checkpoint_steps(run / "checkpoints")
    assert evaluated(run, "--checkpoint", "latest")["step"] == last
    assert evaluated(run, "--checkpoint", first)["step"] == first
    assert evaluated(run, "--checkpoint", f"step_{first}")["step"] == first
    best = int((run / "best" / "latest").read_text().split()[0].removeprefix("step_"))
    assert evaluated(run)["step"] == best


def test_a_word_that_names_no_checkpoint_is_refused():
    assert checkpoint_of("17") == 17
    with pytest.raises(ValueError, match="'best', 'latest' or a number of steps, not 'bset'"):
        checkpoint_of("bset")


def test_a_step_that_is_not_there_is_refused_with_those_that_are(run):
    steps = checkpoint_steps(run / "checkpoints")
    result = guerdon("eval", run, "--checkpoint", 17)
    assert result.exit_code == 2
    listed = ", ".join(f"step_{step}" for step in steps)
    assert result.stderr == f"Error: there is no step_17 in {run}/checkpoints, only {listed}\n"


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path):
    folder = tmp_path / "run"
    train(folder)
    *_, before, last = checkpoint_steps(folder / "checkpoints")
    damage(folder, last)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = guerdon("eval", folder, "--checkpoint", "latest", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["step"] == before
    assert result.stderr.startswith("Warning: ")
    assert result.stderr.endswith("the checkpoint before it is used\n")


def test_a_folder_without_a_run_is_refused(tmp_path):
    result = guerdon("eval", tmp_path / "nothing")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {tmp_path}/nothing is not a run directory: it has no")


# --- films


def test_the_first_episodes_are_filmed(run):
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    result = guerdon("eval", run, "--episodes", 4, "--video")
    assert result.exit_code == 0, result.output
    films = [run / "videos" / f"episode_{number}.mp4" for number in (1, 2, 3)]
    assert result.stdout.splitlines()[2:] == [f"wrote {film}" for film in films]
    assert sorted((run / "videos").iterdir()) == films


def test_no_more_is_filmed_than_played_and_older_films_go(run):
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    (run / "videos" / "episode_2.mp4").write_text("of another policy")
    found = evaluated(run, "--episodes", 1, "--video")
    assert found["videos"] == [str(run / "videos" / "episode_1.mp4")]
    assert [path.name for path in (run / "videos").iterdir()] == ["episode_1.mp4"]
    evaluated(run)
    assert [path.name for path in (run / "videos").iterdir()] == ["episode_1.mp4"]

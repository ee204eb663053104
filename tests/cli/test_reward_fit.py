"""``guerdon reward fit`` on files in a folder."""

import json
import re
import shlex
import signal

import pytest

from tests.cli.tiny import guerdon, start
from tests.training.picturing import sections, write


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("frames")
    write(root)
    return root


def options(data, save_dir, **changes):
    """Overrides of a fit of a second."""
    values = sections(save_dir, num_epochs=2, **changes)
    model = values.pop("model")
    return [
        *(f"reward.model.{key}={value}" for key, value in model.items()),
        "reward.optim.lr=3e-3",
        *(f"reward.{key}={value}" for key, value in values.items() if key != "optim"),
        f"reward.data.positive_dir={data / 'positive'}",
        f"reward.data.negative_dir={data / 'negative'}",
    ]


def refused(*arguments):
    result = guerdon("reward", "fit", *arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    return " ".join(result.output.split())


def test_a_fit_ends_with_a_table_and_what_to_do_next(data, tmp_path):
    folder = tmp_path / "a fit"
    result = guerdon("reward", "fit", "reach_classifier", *options(data, folder))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("positive: 40 trajectories")
    for name in ("PR-AUC", "precision", "recall", "calibration error", "threshold"):
        assert any(line.startswith(name) for line in lines)
    assert "on 54 frames of 9 test episodes" in result.output
    for kind in ("unchanged", "uniform colours", "occluded", "clipped episodes"):
        assert any(line.startswith(kind) for line in lines)
    assert lines[-2].endswith(
        f"guerdon train reach_ppo reward=classifier reward.checkpoint_path='{folder}'"
    )
    assert lines[-1] == f"report: guerdon report '{tmp_path / 'a fit'}'"


OWN = """
import gymnasium
import numpy as np


class Dot(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        state=gymnasium.spaces.Box(-1, 1, (1,)),
        eye=gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8),
    )
    action_space = gymnasium.spaces.Discrete(2)

    def seen(self):
        image = np.full((16, 16, 3), 90, np.uint8)
        column = 7 + 3 * self.place
        image[6:10, column : column + 3] = 255
        return {"state": np.float32([self.place / 2]), "eye": image}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.seen(), {}

    def step(self, action):
        self.place = int(np.clip(self.place + (1 if action else -1), -2, 2))
        return self.seen(), float(self.place == 2), False, False, {"is_success": self.place == 2}
"""


def following(output):
    """The command that is printed as the next one."""
    (command,) = re.findall(r"next: guerdon (reward fit .*|train .*)$", output, re.MULTILINE)
    return shlex.split(command)


def test_the_printed_commands_lead_through_the_stages_with_an_environment_of_ones_own(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dots.py").write_text(OWN)
    collected = guerdon(
        "train", "env.id=dots.py:Dot", "env.max_episode_steps=5", "env.n_envs=4", "policy=ppo",
        "policy.model.keys=[state]", "collect.n_step=200", "learn.batch_size=100",
        "run.max_steps=600", "eval.episodes=2", "reward.collect_data=true",
        "reward.data_collection.image_keys=[eye]",
        "reward.data_collection.positive_dir=my data/positive",
        "reward.data_collection.negative_dir=my data/negative",
    )  # fmt: skip
    assert collected.exit_code == 0, collected.output
    command = following(collected.output)
    assert f"reward.data.positive_dir={tmp_path / 'my data' / 'positive'}" in command
    fitted = guerdon(*command)
    assert fitted.exit_code == 0, fitted.output
    command = following(fitted.output)
    assert "env.id=dots.py:Dot" in command
    assert "policy.model.keys=[state]" in command
    learned = guerdon(*command)
    assert learned.exit_code == 0, learned.output
    assert "predicted success" in learned.output


def test_json_is_the_result_alone(data, tmp_path):
    result = guerdon("reward", "fit", *options(data, tmp_path / "fit"), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "fit" / "summary.json").read_text())
    assert found["data"]["frames"] == 360


def test_a_folder_is_used_again_only_when_asked(data, tmp_path):
    arguments = options(data, tmp_path / "fit", save_interval=100)
    assert guerdon("reward", "fit", *arguments).exit_code == 0
    assert "already holds a fit" in refused(*arguments)
    assert guerdon("reward", "fit", *arguments, "--overwrite").exit_code == 0


def test_mistakes_are_sentences(data, tmp_path):
    given = options(data, tmp_path / "fit")
    assert "did you mean 'lr'" in refused(*given, "reward.optim.lrr=1")
    assert "did you mean 'reach_classifier'" in refused("reach_clasifier")
    assert "there is no folder" in refused(*given, f"reward.data.negative_dir={tmp_path}/none")
    other = refused(*given, "reward.model.image_size=[3,64,64]")
    assert "of 'base_camera' of [3, 32, 32], not [3, 64, 64]; set 'reward.model.image_" in other
    swapped = refused(*given, "reward.model.image_size=[64,64,3]")
    assert (
        "'reward.model.image_size' is [64, 64, 3]: channels come first, so write [3, 64" in swapped
    )
    frozen = refused(*given, "reward.model.freeze_encoder=true")
    assert "set reward.model.freeze_encoder=false or name" in frozen
    assert not (tmp_path / "fit").exists()


def test_ctrl_c_saves_and_says_so(data, tmp_path):
    folder = tmp_path / "fit"
    arguments = [*options(data, folder), "reward.num_epochs=100000", "reward.log_interval=1"]
    with start("reward", "fit", *arguments) as process:
        next(line for line in process.stdout if line.startswith("steps "))
        process.send_signal(signal.SIGINT)
        output = process.stdout.read()
    assert process.returncode == 130
    assert "interrupted after" in output
    assert (folder / "best").is_file()

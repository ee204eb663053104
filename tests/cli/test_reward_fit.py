"""``guerdon reward fit`` on files in a folder."""

import json
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
    assert "on 72 frames of 12 held-out episodes" in result.output
    assert lines[-2].endswith(
        f"guerdon train reach_ppo reward=classifier reward.checkpoint_path='{folder}'"
    )
    assert lines[-1] == f"report: guerdon report '{tmp_path / 'a fit'}'"


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

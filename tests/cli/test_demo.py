"""``guerdon demo``: it runs the three stages for real, and what it says is in the folder."""

import json
import re
import time

import pytest
import torch
from typer.testing import CliRunner

from guerdon.cli import app, rewards
from guerdon.training.fit_files import load_classifier
from tests.training import staging


def demo(*arguments):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


@pytest.fixture
def tiny(monkeypatch):
    """The same stages, but shorter."""
    for name in rewards.DEMO:
        monkeypatch.setitem(rewards.DEMO, name, getattr(staging, name.upper()))


def numbers(text, name):
    """What stands behind a name in the table."""
    (values,) = re.findall(rf"^ *{re.escape(name)} +(\S.*?) *$", text, flags=re.MULTILINE)
    return values


@pytest.mark.usefixtures("tiny")
def test_the_demo_goes_through_all_stages_and_shows_what_came_of_them(tmp_path):
    out = tmp_path / "demo folder"
    result = demo("--out", out, "--seed", 1)
    assert result.exit_code == 0, result.output
    stages = [result.output.index(f"{number} of 3: ") for number in (1, 2, 3)]
    assert stages == sorted(stages)
    found = json.loads((out / "workflow.json").read_text())
    assert found["seed"] == 1
    assert numbers(result.output, "Classifier on test episodes: PR-AUC") == (
        f"{found['fit']['pr_auc']:.3f}"
    )
    steps = f"{found['learn']['env_steps']:,} steps"
    assert numbers(result.output, f"classifier alone, {steps}") == (
        f"{found['learn']['eval_success_rate']:.0%}"
    )
    said = " ".join(result.output.split())
    assert f"The report is {out / 'report.html'}" in said
    assert f"guerdon eval '{out / 'learn'}' --video" in said
    assert f"reward.checkpoint_path='{out / 'classifier'}'" in said
    assert "A reward learned from images" in (out / "report.html").read_text()


@pytest.mark.usefixtures("tiny")
def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    result = demo("--out", tmp_path)
    assert result.exit_code == 2
    assert "is not empty: name a new folder" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.usefixtures("tiny")
def test_without_a_folder_it_makes_one(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = demo()
    assert result.exit_code == 0, result.output
    (folder,) = tmp_path.glob("guerdon_demo_*")
    assert (folder / "report.html").is_file()


def blank_success(folder, levels=9):
    """The highest probability of success of uniform images, over a grid of colours."""
    members, meta = load_classifier(folder)
    values = torch.linspace(0, 255, levels).round().to(torch.uint8)
    colours = torch.cartesian_prod(values, values, values)[:, :, None, None]
    highest = 0.0
    for part in colours.split(128):
        with torch.no_grad():
            images = {"base_camera": part.expand(-1, 3, 64, 64)}
            logits = torch.stack([member(images) for member in members])
        probability = torch.sigmoid(logits / meta["temperature"]).mean(0)
        highest = max(highest, float(probability.max()))
    return highest


@pytest.mark.slow
def test_the_demo_keeps_its_promises(tmp_path):
    start = time.process_time()
    result = demo("--out", tmp_path / "demo")
    seconds = time.process_time() - start  # of one thread: the machine may be busy
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "demo" / "workflow.json").read_text())
    assert found["fit"]["pr_auc"] >= 0.98
    assert blank_success(tmp_path / "demo" / "classifier") < 0.05
    own, learned = (found[stage]["eval_success_rate"] for stage in ("collect", "learn"))
    assert learned >= 0.9
    assert learned >= own - 0.05
    assert found["learn"]["eval_success_at_prediction"] >= 0.85  # 0.92 with this seed
    assert seconds < 180

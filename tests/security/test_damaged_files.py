"""Damaged files of a run: named, and survived where they are not needed."""

import json
import os
import re
import shutil
import warnings

import numpy as np
import pytest
import torch

from guerdon.cli.errors import sentence_of
from guerdon.cli.sweep import Run, Sweep
from guerdon.compat.rlinf.checkpoint import as_fit, as_safetensors
from guerdon.config.errors import ConfigError
from guerdon.data.unpickle import load_weights
from guerdon.lab.curves import read_metrics
from guerdon.training.alarms import History
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint
from guerdon.training.fit_files import load_classifier
from tests.cli.tiny import guerdon, train
from tests.security import kinds

DAMAGE = {
    "empty": b"",
    "torn": b'{"starts": [{"time": "2026',
    "binary": b"\xff\xfe\x00" * 20 + b"\n",
    "other": b"[1, 2]\n",
    "types": b'{"starts": 3, "stop_reason": [], "env_steps": "many", "step": {}, "fps": null}\n',
    "deep": b"[" * 200_000 + b"\n",
}
RECORDS = ("run.json", "summary.json", "metrics.jsonl")
pytestmark = pytest.mark.filterwarnings("always")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder)
    return folder


@pytest.fixture
def damaged(run, tmp_path):
    """A function that damages files of a copy of the run, and returns its folder."""

    def make(content, *names):
        shutil.copytree(run, tmp_path / "run")
        for name in names:
            (tmp_path / "run" / name).write_bytes(content)
        return tmp_path / "run"

    return make


def survived(*arguments):
    result = guerdon(*arguments)
    assert result.exit_code == 0, result.output
    assert all(line.startswith("Warning: ") for line in result.stderr.splitlines())
    return result.stderr


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_records_are_named_and_survived(kind, damaged):
    folder = damaged(DAMAGE[kind], *RECORDS)
    said = survived("eval", folder, "--episodes", "1")  # which needs the format of run.json alone
    assert said.count("Warning") == said.count(str(folder / "run.json"))
    said = survived("report", folder)
    if kind != "types":
        assert f"{folder / 'summary.json'} is damaged and is ignored: " in said
        assert f"{folder / 'run.json'} is damaged and is ignored: " in said
    said = survived("train", "--resume", folder, "run.max_steps=512", "--display", "none")
    if kind in ("binary", "other", "types", "deep"):
        assert f"{folder / 'metrics.jsonl'} has 1 damaged lines, which were removed" in said
    assert checkpoint_steps(folder / "checkpoints")[-1] >= 512
    assert len(json.loads((folder / "run.json").read_text())["starts"]) == 1
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(steps)
    assert steps[0] > 256


@pytest.mark.parametrize("name", RECORDS)
def test_missing_records_are_survived(name, damaged):
    folder = damaged(b"", *RECORDS)
    (folder / name).unlink()
    survived("report", folder)
    survived("train", "--resume", folder, "run.max_steps=512", "--display", "none")


@pytest.mark.parametrize("kind", DAMAGE)
def test_lines_of_metrics_that_are_damaged_are_left_out(kind, damaged, tmp_path):
    folder = damaged(b"")
    before = read_metrics(folder)["eval/mean_reward"]
    with (folder / "metrics.jsonl").open("r+b") as file:
        lines = file.read().splitlines(keepends=True)
        file.seek(0)
        file.write(lines[0] + DAMAGE[kind] + b"\n" + b"".join(lines[1:]) + DAMAGE[kind][:9])
    assert "damaged lines, which are left out" in survived(
        "plot", folder, "--out", tmp_path / "curves.png"
    )
    with pytest.warns(UserWarning, match="damaged lines"):
        after = read_metrics(folder)["eval/mean_reward"]
    assert after.values.tolist() == before.values.tolist()


NUMBERS = {
    "of 1e308": [1e308, -1e308, 1e308],
    "equal": [1.7e308] * 3,
    "single": [1e308],
    "tiny": [0, 5e-324, 1e-323],
    "close": [1.0, 1.0000000000000002, 1.0],
    "whole": [10**400, 1, 10**30],
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_any_numbers_are_drawn(kind, damaged, tmp_path):
    names = ("eval/mean_reward", "rollout/ep_rew_mean", "train/x", "reward/x", "reward/eval_return")
    numbers = NUMBERS[kind]
    lines = [{"step": i, "time": 1.0, **dict.fromkeys(names, x)} for i, x in enumerate(numbers)]
    lines += [{"step": x, "time": 1.0, **dict.fromkeys(names, 2)} for x in [7, *numbers]]
    folder = damaged("".join(json.dumps(line) + "\n" for line in lines).encode(), "metrics.jsonl")
    for name in ("env_steps", "wall_seconds", "fps"):
        summary = {"stop_reason": "max_steps", name: numbers[0]}
        (folder / "summary.json").write_text(json.dumps(summary))
        survived("report", folder)
    page = (folder / "report.html").read_text()
    assert not re.search(r"[\d\"( ,](nan|inf)\b", page)
    survived("plot", folder, "--out", tmp_path / "curves.png")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = read_metrics(folder)["train/x"].steps
    assert (np.diff(steps) > 0).all()


def test_a_weight_that_is_no_number_is_named(damaged):
    folder = damaged(b"")
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("weight: 1.0", f"weight: {10**400}"))
    result = guerdon("report", folder)
    assert result.exit_code == 2
    assert f"Error: {config} is not the config of a run: " in result.stderr


@pytest.mark.parametrize("path", ["{a: 1}", "3", "[x]"])
def test_a_checkpoint_path_that_is_no_text_is_survived(path, damaged):
    config = damaged(b"") / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("checkpoint_path: null", f"checkpoint_path: {path}"))
    assert config.read_text() != text
    survived("report", config.parent)


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[1]", b"run: 3", b"seed: 0", b"{"])
@pytest.mark.parametrize("command", [("eval",), ("train", "--resume"), ("report",), ("plot",)])
def test_a_damaged_config_is_named(content, command, damaged):
    folder = damaged(content, "config.yaml")
    result = guerdon(*command, folder)
    if result.exit_code:  # curves need no config
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert line.startswith("Error: ")
    assert result.exit_code == 2 or command == ("plot",)


@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind != "types"])
def test_a_run_of_a_sweep_with_a_damaged_summary_is_not_finished(kind, damaged):
    folder = damaged(DAMAGE[kind], "summary.json")
    with pytest.warns(UserWarning, match="is damaged and is ignored"):
        assert Run(folder, []).summary() is None


def test_a_pipe_in_a_sweep_is_not_waited_for(damaged):
    folder = damaged(b"")
    (folder / "summary.json").unlink()
    os.mkfifo(folder / "summary.json")
    with pytest.warns(UserWarning, match="is damaged and is ignored: it is not a regular file"):
        assert Run(folder, []).summary() is None


def test_damaged_arguments_of_a_sweep_are_survived(tmp_path):
    (tmp_path / "sweep.json").write_bytes(b"{")
    sweep = Sweep("train", ["cartpole_ppo", "seed=0,1"], [], tmp_path, 1, "eval_return_mean")
    with pytest.warns(UserWarning, match=r"sweep\.json is damaged and is ignored"):
        sweep.prepare([], [])
    assert json.loads((tmp_path / "sweep.json").read_text())["source"] == "cartpole_ppo"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"seed": 0}', b"[", b'{"odd": 1}'])
def test_a_damaged_result_of_a_workflow_is_named(content, tmp_path):
    (tmp_path / "workflow.json").write_bytes(content)
    result = guerdon("report", tmp_path)
    assert result.exit_code == 2
    assert f"Error: {tmp_path / 'workflow.json'} is damaged: " in result.stderr


@pytest.mark.parametrize("kind", NUMBERS)
def test_alarms_take_any_numbers(kind):
    history = History(["rnd"])
    names = ("ood_paid", "ood_share", "shift", "disagreement")
    for step, value in enumerate((NUMBERS[kind] + [0.0, 0.0, 0.0]) * 9):
        number = float(min(value, 1.7e308))
        line = dict.fromkeys((f"reward/gail/{name}" for name in names), number)
        history.add(step, {**line, "reward/rnd/loss": number, "reward/eval_return": number})
    assert History(["rnd"]).add(0, {"reward/rnd/loss": 0.0, "reward/eval_return": 0.0}) == []


def test_a_bonus_without_any_error_is_no_alarm():
    history = History(["rnd"])
    for step in range(20):
        assert not history.add(step, {"reward/rnd/loss": 0.0, "reward/eval_return": 1.0})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    kinds.make_fit_with_test(folder)
    return folder / "fit"


@pytest.mark.parametrize(
    "change",
    [
        {"probes": [{}]},
        {"probes": [3]},
        {"probes": [{"kind": ["x"]}]},
        {"labels": {}},
        {"labels": {"checked": "many"}},
        {"warnings": [3, None]},
    ],
)
def test_a_damaged_summary_of_a_fit_is_named(change, fitted, tmp_path):
    folder = tmp_path / "fit"
    shutil.copytree(fitted, folder)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | change))
    result = guerdon("report", folder)
    assert result.exit_code == ("warnings" not in change) * 2, result.output
    assert result.stderr.startswith(f"Error: {folder} is damaged: ") or "warnings" in change


@pytest.mark.parametrize("shape", [(2, 0, 3, 3), (2, 3, 0, 0), (2, 1, 1, 1), (2, 3, 5, 5)])
@pytest.mark.parametrize("text", ["an alarm", None])
def test_alarms_of_any_images_are_shown_or_named(shape, text, tmp_path):
    kinds.make_alarms(tmp_path)
    state, step = load_checkpoint(tmp_path / "run" / "alarms")
    state["alarm"]["transitions"]["obs_next"] = np.zeros(shape, np.uint8)
    if text is None:
        del state["alarm"]["text"]
    save_checkpoint(tmp_path / "run" / "alarms", step, state, keep=9)
    survived("report", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("cannot be shown") == (0 in shape or text is None)


WRONG = {
    "text": "x",
    "a list": [1],
    "no tensors": {"conv1.weight": [1], "classifier.0.weight": 3},
    "no weights": {"model_state_dict": 3, "guerdon": {}},
    "no model": {"model_state_dict": {}, "guerdon": {"held_out": {}, "model": 3}},
    "no step": {"global_step": [], "model_state_dict": {}, "guerdon": {"held_out": {}}},
    "no numbers": {"held_out": 3, "guerdon": {"held_out": {"logits": 1}}},
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("read", [as_fit, as_safetensors])
def test_other_contents_of_a_pt_file_are_named(name, read, tmp_path):
    torch.save(WRONG[name], tmp_path / "mine.pt")
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "mine.pt"))) as caught:
        read(tmp_path / "mine.pt")
    assert sentence_of(caught.value)


def test_half_precision_weights_of_a_pt_file_are_read(tmp_path):
    kinds.make_pt_classifier(tmp_path)
    saved = load_weights(tmp_path / "mine.pt")
    saved["model_state_dict"] = {
        name: each.half() if each.is_floating_point() else each
        for name, each in saved["model_state_dict"].items()
    }
    torch.save(saved, tmp_path / "mine.pt")
    (member,), _ = load_classifier(as_fit(tmp_path / "mine.pt"))
    assert all(each.dtype == torch.float32 for each in member.parameters())


@pytest.mark.parametrize(
    "code", [3, [], ["x"], {"colorsys": 3}, {"colorsys": []}, {"colorsys": {"file": "x"}}]
)
def test_a_damaged_record_of_trust_trusts_nothing(code, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    kinds.make_record(tmp_path)
    kinds.read_record(tmp_path)
    (record,) = (tmp_path / "state").rglob("*.json")
    record.write_text(json.dumps({"format": 1, "code": code}))
    with pytest.raises(ConfigError, match="would run this code: colorsys"):
        kinds.read_record(tmp_path)


@pytest.mark.parametrize("pair", [[1], {"a": 1}, 3, None])
def test_a_pair_of_another_type_is_survived_when_a_run_is_resumed(pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kinds.make_journal(tmp_path / "case")
    with (tmp_path / "case" / "preferences.jsonl").open("a") as file:
        file.write(json.dumps({"pair": pair}) + "\n")
    kinds.read_journal(tmp_path / "case")
    assert len((tmp_path / "case" / "preferences.jsonl").read_text().splitlines()) == 1


def test_a_line_of_a_sweep_that_was_not_finished_is_left_out(tmp_path):
    kinds.make_sweep(tmp_path)
    log = tmp_path / "sweep" / "optuna.log"
    log.write_bytes(log.read_bytes()[:-20])
    for _ in range(2):
        kinds.read_sweep(tmp_path)
    assert all(json.loads(line) for line in log.read_text().splitlines())

"""A fit that is killed or stopped and then resumed, and one that replaces another."""

import json
import shutil
import signal

import numpy as np
import pytest
import torch

from guerdon.data.files import set_aside
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.fit import fit, read_frames
from guerdon.training.fit_files import (
    STATE,
    begin_folder,
    compose_fit,
    load_classifier,
    resumed_config,
    unfinished_folder,
)
from tests.processes import Program
from tests.training.picturing import LENGTH, config, frames, write

OPTIONS = {"num_epochs": 6, "save_interval": 25, "log_interval": 1, "keep": 1, "members": 2}
EARLY = {**OPTIONS, "num_epochs": 60, "save_interval": 6, "patience": 1,
         "data": {"check_labels": True}}  # fmt: skip
SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from guerdon.training.fit import fit
from guerdon.training.fit_files import resumed_config
from tests.training.picturing import config, frames
from tests.training import test_fit_resume
folder, how, options = sys.argv[1:]
new = config(folder, **getattr(test_fit_resume, options))
given = resumed_config(folder) if how == "resume" else new
fit(given, frames=frames(), display="lines", resume=how == "resume", overwrite=how == "overwrite")
"""


def started(folder, how="new", options="OPTIONS"):
    return Program("-c", SCRIPT, folder, how, options)


def stopped(folder, step, number, how="new", options="OPTIONS"):
    """Sends a signal to a fit after a step."""
    with started(folder, how, options) as process:
        next(line for line in process.stdout if line.startswith(f"steps {step} "))
        process.send_signal(number)
        process.stdout.read()
    return process


def resumed(folder, data=None):
    given = resumed_config(folder)
    return fit(given, frames=data or frames(), display="none", resume=True)


def content(folder):
    """All that a fit leaves, except for the time that it took."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["time"], line["time/fps"]
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("seconds", "save_dir"):
        del summary[key]
    states = {step: load_checkpoint(folder, step)[0] for step in checkpoint_steps(folder)}
    pointers = {name: (folder / name).read_text() for name in ("best", "latest")}
    return lines, summary, states, pointers, sorted(path.name for path in folder.iterdir())


def assert_same(one, other):
    """Compares nested values, arrays bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
    if isinstance(one, dict | list | tuple):
        assert len(one) == len(other)
        for key in one if isinstance(one, dict) else range(len(one)):
            assert_same(one[key], other[key])
    elif isinstance(one, torch.Tensor | np.ndarray):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    else:
        assert one == other


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A fit that nothing stopped."""
    folder = tmp_path_factory.mktemp("fit") / "whole"
    result = fit(config(folder, **OPTIONS), frames=frames(), display="none")
    assert result["stop_reason"] == "finished"
    return content(folder)


# --- resuming


@pytest.mark.parametrize("steps", [[3], [14, 30, 40]])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_fit_that_is_resumed_is_the_same_bit_for_bit(tmp_path, whole, steps, number):
    folder = tmp_path / "fit"
    for place, step in enumerate(steps):
        process = stopped(folder, step, number, "resume" if place else "new")
        assert process.returncode == (-number if number == signal.SIGKILL else 0)
        if number == signal.SIGINT:
            load_classifier(folder)
    assert resumed(folder)["stop_reason"] == "finished"
    assert_same(content(folder), whole)


def test_a_fit_that_stops_early_does_so_after_a_kill_too(tmp_path):
    whole = fit(config(tmp_path / "whole", **EARLY), frames=frames(), display="none")
    assert whole["stop_reason"] == "no_improvement"
    assert whole["steps"] == whole["best_step"] + 6
    stopped(tmp_path / "fit", whole["steps"] - 2, signal.SIGKILL, options="EARLY")
    assert resumed(tmp_path / "fit")["stop_reason"] == "no_improvement"
    assert_same(content(tmp_path / "fit"), content(tmp_path / "whole"))


def test_a_fit_names_data_that_is_found_from_every_folder(tmp_path, monkeypatch):
    write(tmp_path / "data", 12)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    data = {"positive_dir": "data/positive", "negative_dir": "data/negative"}
    fit(config("fit", num_epochs=1, data=data), display="none")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(read_frames(compose_fit("../fit/fit.yaml")).labels) == 12 * LENGTH


def test_a_fit_says_how_it_is_resumed(tmp_path):
    with started(tmp_path / "my fit") as process:
        line = next(line for line in process.stdout if "resume" in line)
        process.send_signal(signal.SIGKILL)
    command = f"guerdon reward fit --resume '{tmp_path}/my fit'"
    assert line == f"saved after each epoch; if it is stopped, continue with: {command}\n"


def test_a_finished_fit_is_not_resumed(tmp_path):
    fit(config(tmp_path / "fit", num_epochs=1), frames=frames(), display="none")
    with pytest.raises(ValueError, match="is finished, so there is nothing to resume"):
        resumed_config(tmp_path / "fit")
    with pytest.raises(FileNotFoundError, match="is not the folder of a fit"):
        resumed_config(tmp_path)


def test_what_a_fit_is_made_of_cannot_change(tmp_path):
    folder = tmp_path / "fit"
    stopped(folder, 30, signal.SIGKILL)
    with pytest.raises(ValueError, match=r"the frames changed since the fit in .* began: undo"):
        resumed(folder, frames(seed=1))
    text = (folder / "fit.yaml").read_text()
    (folder / "fit.yaml").write_text(text.replace("lr: 0.003", "lr: 0.1"))
    with pytest.raises(ValueError, match=r"the config in fit\.yaml changed since the fit"):
        resumed(folder)


def test_an_unfinished_fit_is_not_mixed_with_another(tmp_path):
    stopped(tmp_path / "fit", 14, signal.SIGKILL)
    assert not checkpoint_steps(tmp_path / "fit")
    with pytest.raises(FileExistsError, match=r"already holds a fit: .* finish it with --resume"):
        fit(config(tmp_path / "fit", **OPTIONS), frames=frames(), display="none")


# --- replacing


@pytest.fixture
def older(tmp_path):
    """The folder of an older fit with a file of the user, and its classifier."""
    folder = tmp_path / "fit"
    fit(config(folder, "seed=1", num_epochs=1), frames=frames(), display="none")
    (folder / "notes.txt").write_text("mine")
    (folder / "plots").mkdir()
    (folder / "plots" / "one.txt").write_text("mine, too")
    return folder


def test_a_fit_that_is_killed_has_replaced_nothing(tmp_path, older, whole):
    before, summary = content(older), (older / "summary.json").read_bytes()
    stopped(older, 30, signal.SIGKILL, "overwrite")
    assert_same(content(older), before)
    assert (older / "summary.json").read_bytes() == summary
    resumed(older)
    *found, names = content(older)
    assert_same(found, list(whole[:-1]))
    assert names == sorted([*whole[-1], "notes.txt", "plots"])
    assert (older / "plots" / "one.txt").read_text() == "mine, too"
    assert [*tmp_path.iterdir()] == [older]


def test_a_second_attempt_begins_anew(tmp_path, older):
    stopped(older, 30, signal.SIGKILL, "overwrite")
    new = config(older, num_epochs=2)
    result = fit(new, frames=frames(), display="none", overwrite=True)
    assert checkpoint_steps(older)[-1] == result["steps"]
    assert [*tmp_path.iterdir()] == [older]


def test_an_abandoned_attempt_is_not_resumed_instead_of_a_new_fit(tmp_path):
    folder = tmp_path / "fit"
    (begin_folder(config(folder, "seed=1"), overwrite=False).path / STATE).mkdir()
    assert begin_folder(config(folder, "seed=2"), overwrite=True).path != folder
    shutil.rmtree(folder)  # by the user
    begin_folder(config(folder, "seed=3"), overwrite=False)
    assert unfinished_folder(folder).path == folder
    assert resumed_config(folder).seed == 3
    assert [*tmp_path.iterdir()] == [folder]


def test_a_kill_between_both_renames_loses_neither_fit(older, whole):
    stopped(older, 30, signal.SIGKILL, "overwrite")
    before = load_classifier(older)[1]["seed"]
    older.rename(set_aside(older))
    assert load_classifier(older)[1]["seed"] == before
    older.rename(set_aside(older))
    resumed(older)
    assert_same(content(older)[:-1], whole[:-1])


def test_a_finished_fit_holds_no_state(tmp_path):
    stopped(tmp_path / "fit", 30, signal.SIGKILL)
    assert (tmp_path / "fit" / STATE).is_dir()
    shutil.rmtree(tmp_path / "fit" / "tb")
    resumed(tmp_path / "fit")
    assert not (tmp_path / "fit" / STATE).exists()

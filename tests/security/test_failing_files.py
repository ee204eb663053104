"""Files that cannot be written: one sentence in every command, and a run goes on if it can."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.display import Display
from guerdon.training.run_folder import Recorder, RunFolder
from tests.cli.tiny import BUDGET, guerdon, train
from tests.processes import Program
from tests.training.picturing import sections, write

PLACES = {
    "full": "No space left on device",
    "read_only": "Read-only file system",
    "file": r"Not a directory|File exists",
    "long": "File name too long",
}
COMMANDS = {
    "train": ("train", "cartpole_ppo", *BUDGET, "run.dir={place}/new", "--display", "none"),
    "grid": ("train", "cartpole_ppo", *BUDGET, "seed=0,1", "--sweep-dir", "{place}/new"),
    "collect": ("collect", "{run}", "--episodes", "1", "--out", "{place}/new"),
    "plot": ("plot", "{run}", "--out", "{place}/new.png"),
    "report": ("report", "{run}", "--out", "{place}/new.html"),
    "fit": ("reward", "fit", "reward.save_dir={place}/new", "{data}"),
    "resume": ("train", "--resume", "{place}"),
    "eval": ("eval", "{place}"),
    "probe": ("reward", "probe", "{place}/new.yaml"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("frames")
    write(root, 12)
    return root


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_of_the_system_is_one_sentence(command, place, run, data, request):
    where = request.getfixturevalue(place)
    arguments = [each.format(run=run, place=where, data="{data}") for each in COMMANDS[command]]
    if command == "fit":
        model = sections("")["model"]
        options = [f"reward.model.{key}={value}" for key, value in model.items()]
        folders = [f"reward.data.{kind}_dir={data / kind}" for kind in ("positive", "negative")]
        arguments[-1:] = [*options, *folders]
    result = guerdon(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit), result.exception
    (line,) = result.stderr.splitlines()
    reads = command in ("resume", "eval", "probe") and place != "long"
    pattern = "is not a run directory|there is no config" if reads else PLACES[place]
    assert str(where) in line
    assert any(text in line for text in pattern.split("|")), line


# --- recording


def log_ten(folder):
    with Recorder(folder, Display()) as recorder:
        for step in range(10):
            recorder.log(step, {"train/loss": step})
            recorder.text(f"step {step}")


def log(recorder, steps):
    for step in steps:
        recorder.log(step, {f"train/metric_{i}": step for i in range(20)})


def broken(folder, name):
    """Puts a folder in the place of a file, or a file in the place of a folder."""
    path = folder.path / name
    if path.is_dir():
        path.rmdir()
        path.write_text("")
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize("name", ["metrics.jsonl", "log.txt", "tb"])
def test_a_record_that_cannot_be_written_is_told_once(tmp_path, name):
    with RunFolder.create(tmp_path / "run", "") as folder:
        broken(folder, name)
        with pytest.warns(
            UserWarning, match=f"{name}.* cannot be written: .*the run contin"
        ) as said:
            log_ten(folder)
        assert len(said) == 1
        if name != "metrics.jsonl":
            assert len(folder.metrics.read_text().splitlines()) == 10
        if name != "log.txt":
            assert "Warning: " in folder.log.read_text()


def test_records_after_a_full_disk_are_whole(disk):
    with RunFolder.create(disk.path / "run", "") as folder, Recorder(folder, Display()) as recorder:
        recorder.log(0, {"train/loss": 0})
        disk.set("size=24k")
        with pytest.warns(UserWarning, match="No space left on device; the run continues") as said:
            log(recorder, range(1, 400))
        assert 1 <= len(said) <= 3
        disk.set("size=8m")
        recorder.log(400, {"train/loss": 400})
    steps = [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()]
    assert steps[0] == 0
    assert steps[-1] == 400
    assert 2 < len(steps) < 400
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [0, 400]


SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"


def test_a_run_goes_on_without_its_records(tmp_path):
    folder = tmp_path / "run"
    more = (
        "eval.every=4096",
        "policy.model.hidden=[4]",
        "run.max_steps=4096",
        "run.checkpoint_every=2048",
    )
    arguments = ["train", "cartpole_ppo", *BUDGET, *more, f"run.dir={folder}"]
    code = f"{SMALL_FILES}; from guerdon.cli import main; main()"
    with Program("-c", code, *arguments, "--display", "none") as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    lines = errors.splitlines()
    for file, line in zip(("metrics.jsonl", "tb/"), lines, strict=True):
        assert line.startswith(f"Warning: {folder}/{file}")
        assert line.endswith(" cannot be written: File too large; the run continues")
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert 0 < metrics[-1]["step"] < 4096
    assert load_checkpoint(folder / "checkpoints")[1] >= 4096
    assert json.loads((folder / "summary.json").read_text())["stop_reason"] == "max_steps"


@pytest.mark.filterwarnings("always")
def test_a_full_disk_costs_the_checkpoints_that_do_not_fit(disk):
    folder = disk.path / "run"
    disk.set("size=300k")
    arguments = ("train", "cartpole_ppo", *BUDGET, f"run.dir={folder}", "run.max_steps=512")
    result = guerdon(*arguments, "--display", "none")
    assert result.exit_code == 2
    *warned, error = result.stderr.splitlines()
    assert warned
    for line in warned:
        assert line.startswith("Warning: cannot save the checkpoint ")
        assert "No space left on device" in line
    assert error.startswith("Error: cannot save the checkpoint ")
    assert error.endswith(f"free some space, then continue with --resume {folder}")
    (step,) = checkpoint_steps(folder / "checkpoints")
    assert load_checkpoint(folder / "checkpoints")[1] == step == 128
    disk.set("size=8m")
    result = guerdon("train", "--resume", folder, "--display", "none")
    assert result.exit_code == 0, result.output
    whole = disk.path / "whole"
    train(whole, "run.max_steps=512")
    final, other = (load_checkpoint(path / "checkpoints")[0]["policy"] for path in (folder, whole))
    for name, weights in final["module"].items():
        assert weights.equal(other["module"][name])

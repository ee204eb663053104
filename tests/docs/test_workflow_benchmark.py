"""The benchmark of the reward workflow compares equal work, and its page says what it found."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from guerdon.data.frames import Trajectory, write_trajectory
from guerdon.nn.classifier import ClassifierConfig

ROOT = Path(__file__).parents[2]
ROUNDS = [{"reading": 1.0, "batches": 10.0}, {"reading": 1.0, "batches": 11.0}]
RESULT = {
    "machine": {
        "date": "2026-01-02T03:04:05+00:00",
        "cpu": "a processor",
        "cores": 2,
        "load_before": 0.1,
        "packages": {"numpy": "1", "torch": "2"},
    },
    "settings": {
        "trajectories": 4,
        "frames": 200,
        "n_envs": 64,
        "batch_size": 32,
        "steps": 7,
        "run_steps": 2048,
    },
    "tabletop": {"fast": [50_000.0, 60_000.0, 10_000.0], "slow": [49_000.0, 49_999.0, 70_000.0]},
    "loading": {"plain": ROUNDS, "npz": [{"reading": 1.0, "batches": 0.5}] * 2},
    "fit": {
        "plain": [{"seconds": 9.0, "loading": 4.0}],
        "npz": [{"seconds": 5.0, "loading": 1.0, "validating": 0.5}],
        "augmented": [{"seconds": 6.6, "loading": 1.0, "validating": 0.5}],
    },
    "runs": {"env": [300.0, 100.0], "npz": [150.0, 50.0], "npy": [100.0, 40.0]}
    | {"classifier": [60.0, 10.0]},
    "bytes": {"npz": 1234.0, "npy": 56789.0},
}


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_the_page_is_made_of_its_file():
    import workflow

    if not workflow.RESULTS.exists():
        assert not workflow.PAGE.exists()
        return
    assert workflow.PAGE.read_text() == workflow.page(json.loads(workflow.RESULTS.read_text()))


def test_the_plain_loop_gives_every_frame_with_its_label(tmp_path):
    from workflow_plain import plain_loader

    images = np.arange(5 * 3 * 2 * 2, dtype=np.uint8).reshape(5, 3, 2, 2)
    labels = np.array([0, 0, 1, 1, 0], np.float32)
    sides = [tmp_path / "positive", tmp_path / "negative"]
    write_trajectory(sides[0], Trajectory({"eye": images}, labels, True), format="npy")
    dark = Trajectory({"eye": images[:2] + 100}, labels[:2], False)
    write_trajectory(sides[1], dark, format="npy")
    batches = list(plain_loader(sides, "eye", 2, seed=0))
    assert [len(given) for _, given in batches] == [2, 2, 2, 1]
    shown = {
        tuple(np.rint(image.numpy() * 255).astype(int).flatten()): float(label)
        for frames, given in batches
        for image, label in zip(frames, given, strict=True)
    }
    whole = np.concatenate([images, images[:2] + 100]).reshape(7, -1)
    wanted = np.concatenate([labels, labels[:2]])
    assert shown == {tuple(x): y for x, y in zip(whole.tolist(), wanted.tolist(), strict=True)}


def test_the_plain_fit_takes_as_many_steps_as_it_is_told():
    from workflow_plain import plain_fit

    taken = []

    class Loader:
        def __iter__(self):
            for number in range(2):
                taken.append(number)
                yield torch.zeros(2, 3, 16, 16), torch.tensor([0.0, 1.0])

    config = ClassifierConfig(image_size=[3, 16, 16], width=4, hidden_dim=8)
    seconds = plain_fit(Loader, config, steps=5, learning_rate=1e-3, seed=0)
    assert taken == [0, 1, 0, 1, 0]
    assert 0 < seconds["loading"] < seconds["seconds"]


def test_all_sides_read_the_same_frames_and_it_is_seen_if_not(tmp_path):
    import workflow

    workflow.make_data(tmp_path, 4)
    assert workflow.check_data(tmp_path) == 200
    assert {path.suffix for path in (tmp_path / "npy").rglob("*.np?")} == {".npy"}
    assert workflow.bytes_of(tmp_path / "npz") < workflow.bytes_of(tmp_path / "npy") / 10
    other = Trajectory(
        {"base_camera": np.zeros((1, 3, 64, 64), np.uint8)}, np.zeros(1, np.float32), False
    )
    write_trajectory(tmp_path / "npz" / "negative", other)
    with pytest.raises(AssertionError):
        workflow.check_data(tmp_path)


def test_rounds_are_interleaved_and_begin_with_another_each_time():
    import workflow

    order = []

    def measure(name):
        return lambda turn: order.append((name, turn)) or turn

    assert workflow.interleaved({"a": measure("a"), "b": measure("b")}, 2) == {
        "a": [0, 1],
        "b": [0, 1],
    }
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]


@pytest.mark.parametrize(
    ("epochs", "times"), [(None, (10 / 0.5 + 11 / 0.5) / 2), (1, (11 / 1.5 + 12 / 1.5) / 2)]
)
def test_speed_of_loading_is_with_reading_where_epochs_are_named(epochs, times):
    from workflow_page import speedup

    assert speedup(RESULT["loading"], "npz", epochs) == pytest.approx(times)


def test_the_page_says_which_goals_are_met():
    from workflow_page import page

    made = page(RESULT)
    for line in (
        "| `fast` | 50,000 | 60,000 | 50,000, met |",
        "| `slow` | 49,999 | 70,000 | 50,000, not met |",
        "| guerdon, `.npz` | 1.00 | 0.50 | 400 (21.0x) | 133 (7.7x) |",
        "| plain loop, `.npy` | 9.00 | 4.00 | 0.00 |  |  |  |",
        "| guerdon, `.npz` | 5.00 | 1.00 | 0.50 | 4.00 | 4.50 | 3.00, met |",
        "| guerdon, `.npz`, augmented | 6.60 | 1.00 | 0.50 | 2.40 | 2.90 | 3.00, not met |",
        "| environment reward, collecting `npy` | 70 | 2.75 |",
        "| `reward=classifier` | 35 | 7.50 |",
    ):
        assert line in made
    assert 1 + 10.5 * 38 == 20 * (1 + 0.5 * 38)
    assert "20 times including\nreading, is met from 38 epochs on (`.npz`)." in made
    assert "busy" not in made


def test_the_page_says_that_the_machine_was_busy():
    from workflow_page import page

    result = copy.deepcopy(RESULT)
    result["machine"]["load_before"] = 0.8
    assert "**The machine was busy at the start (load 0.8 per core)" in page(result)


@pytest.mark.slow
def test_a_quick_run_shows_all_parts_and_writes_nothing():
    import workflow

    files = (workflow.RESULTS, workflow.PAGE)
    before = [path.read_bytes() if path.exists() else None for path in files]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "workflow.py"), "--quick"],
        check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    for heading in ("The tabletop", "Loading frames", "A whole fit", "Training"):
        assert f"\n## {heading}\n" in done.stdout
    assert [path.read_bytes() if path.exists() else None for path in files] == before

"""``guerdon plot``: a real picture of written runs."""

import json
import sys

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from guerdon.cli.runs import plot
from guerdon.config import ConfigError
from guerdon.extras import MissingExtraError, install_command

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

app = typer.Typer()
app.command()(plot)


@pytest.fixture
def runs(tmp_path):
    folders = []
    for seed in range(3):
        folder = tmp_path / f"run{seed}"
        folder.mkdir()
        rows = [
            {"step": s, "time": 1.0, "eval/mean_reward": 3.0 * s + 5 * seed} for s in (0, 10, 20)
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (folder / "config.yaml").write_text(f"run: {{name: ppo}}\nseed: {seed}\n")
        folders.append(str(folder))
    return folders


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def shares(path):
    """The shares of pixels in the first colour, and in a fifth of it on white."""
    pixels = np.asarray(Image.open(path).convert("RGB"), int)
    line, band = np.array([31, 119, 180]), np.array([210, 228, 240])
    return [float((abs(pixels - colour).max(-1) <= 2).mean()) for colour in (line, band)]


def test_a_picture_is_written(runs, tmp_path):
    out = tmp_path / "new" / "curves.png"
    result = invoke(*runs, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.output == f"wrote {out}: eval/mean_reward of 3 runs in 1 group\n"
    with Image.open(out) as picture:
        assert (picture.format, picture.size) == ("PNG", (1050, 675))
    assert all(share > 1e-3 for share in shares(out))


def test_one_run_is_a_line_without_a_band(runs, tmp_path):
    out = tmp_path / "one.png"
    assert invoke(runs[0], "--out", out).exit_code == 0
    line, band = shares(out)
    assert line > 1e-3
    assert band < 1e-4


def test_a_metric_that_is_not_there_is_named(runs, tmp_path):
    result = invoke(*runs, "--metric", "eval/mean", "--out", tmp_path / "x.png")
    assert isinstance(result.exception, ConfigError)
    assert "did you mean 'eval/mean_reward'?" in str(result.exception)
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize("name", ["x.xyz", "x"])
def test_a_picture_of_an_unknown_kind_is_refused(runs, tmp_path, name):
    result = invoke(*runs, "--out", tmp_path / name)
    assert isinstance(result.exception, ValueError)
    assert ".pdf, " in str(result.exception)
    assert str(result.exception).startswith(f"'{tmp_path / name}' is no image file: end its name")
    assert not (tmp_path / name).exists()


def test_without_matplotlib_the_extra_is_named(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    result = invoke(*runs)
    assert isinstance(result.exception, MissingExtraError)
    assert install_command("lab") in str(result.exception)

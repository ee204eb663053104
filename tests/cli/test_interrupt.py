"""Ctrl-C while a command starts: exit code 130, at most one sentence, and nothing is left."""

import signal
import subprocess
import sys

import pytest

from tests.cli.tiny import BUDGET
from tests.processes import Program

# Code between the signal and the command may lose the error, or replace it by another.
REACTIONS = {
    "raised": "raise",
    "lost": "pass",
    "replaced": "raise ValueError('cannot be composed')",
}
IMPORT = """
import signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                {reaction}

sys.meta_path.insert(0, Finder())
from guerdon.__main__ import main
main()
"""
CALL = """
import signal
from unittest.mock import patch
from pkgutil import resolve_name

original = resolve_name({name!r})

def interrupted(*arguments, **options):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        {reaction}
    return original(*arguments, **options)

from guerdon.__main__ import main
with patch({name!r}, interrupted):
    main()
"""
TRAIN = ("train", "cartpole_ppo", *BUDGET)


def check(code, out, errors, folder):
    assert code == 130, errors
    assert errors == ""
    assert out == ""
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("reaction", REACTIONS)
@pytest.mark.parametrize("module", ["typer", "torch", "guerdon.entry"])
def test_an_import(module, reaction, tmp_path):
    code = IMPORT.format(name=module, reaction=REACTIONS[reaction])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *TRAIN], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    check(done.returncode, done.stdout, done.stderr, tmp_path)


@pytest.mark.parametrize("reaction", REACTIONS)
@pytest.mark.parametrize(
    "name",
    [
        "guerdon.cli.common.split",
        "omegaconf.OmegaConf.to_container",
        "guerdon.config.compose.validated",
    ],
)
def test_composing(name, reaction, tmp_path):
    code = CALL.format(name=name, reaction=REACTIONS[reaction])
    with Program("-c", code, *TRAIN, cwd=tmp_path) as process:
        out, errors = process.communicate()
    check(process.returncode, out, errors, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "guerdon.training.run.make_experts",
        "guerdon.training.run.make_parts",
        "guerdon.training.parts.make_env",
    ],
)
def test_building(name, tmp_path):
    code = CALL.format(name=name, reaction="raise")
    with Program("-c", code, *TRAIN, "env.backend=subprocess", cwd=tmp_path) as process:
        out, errors = process.communicate()
    check(process.returncode, out, errors, tmp_path)


@pytest.mark.parametrize(
    "name", ["guerdon.training.run.RunFolder.create", "guerdon.training.run.Recorder"]
)
def test_a_run_that_has_a_folder_saves(name, tmp_path):
    code = CALL.format(name=name, reaction="raise")
    with Program("-c", code, *TRAIN, "run.dir=run", cwd=tmp_path) as process:
        out, errors = process.communicate()
    assert process.returncode == 130, errors
    assert len(errors.splitlines()) == 1  # which says that it stops
    assert "which are saved in run; resume with: guerdon train --resume run" in out
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()

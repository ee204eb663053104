"""The same seed gives the same run; another seed gives another."""

import json
import os
import subprocess
import sys

import pytest

from guerdon.training.checkpoints import checkpoint_steps
from tests.training.running import (
    CASES,
    assert_same_run,
    config_of,
    differences,
    metrics_of,
    run,
)

SHORT = {"max_steps": 96}
PROGRAM = """
import json, sys
from guerdon.training.run import train
for config in json.load(sys.stdin):
    train(config, seed=3, display="none")
"""


def files_of(directory, step):
    """The bytes of a checkpoint's files of arrays."""
    folder = directory / "checkpoints" / f"step_{step}"
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_run(case, tmp_path):
    run(case, tmp_path / "one", run=SHORT)
    run(case, tmp_path / "other", run=SHORT)
    assert_same_run(tmp_path / "one", tmp_path / "other")
    for step in checkpoint_steps(tmp_path / "one" / "checkpoints"):
        files = files_of(tmp_path / "one", step)
        assert "policy.safetensors" in files
        assert files == files_of(tmp_path / "other", step)


@pytest.mark.parametrize("case", ["ppo", "sac"])
def test_another_seed_gives_another_run(case, tmp_path):
    run(case, tmp_path / "one", seed=3, run=SHORT)
    run(case, tmp_path / "other", seed=4, run=SHORT)
    assert metrics_of(tmp_path / "one") != metrics_of(tmp_path / "other")
    (*_, last) = checkpoint_steps(tmp_path / "one" / "checkpoints")
    differ = differences(tmp_path / "one", tmp_path / "other", last)
    weights = [path for path in differ if path.startswith("/policy/module/")]
    assert weights
    assert {"/policy/generator", "/collector/generator/state/state"} <= {*differ}
    if case == "sac":
        assert any(path.startswith("/buffer") for path in differ)


def test_another_process_with_other_hashes_gives_the_same_runs(tmp_path):
    cases = ("ppo_normalized", "dqn_prioritized_3_step")
    configs = [config_of(case, tmp_path / "other" / case, run=SHORT) for case in cases]
    subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        input=json.dumps(configs).encode(),
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        check=True,
        timeout=600,
    )
    for case in cases:
        run(case, tmp_path / "one" / case, run=SHORT)
        assert_same_run(tmp_path / "one" / case, tmp_path / "other" / case)


@pytest.mark.parametrize("case", ["ppo", "dqn_prioritized_3_step"])
def test_how_evaluations_are_made_is_no_matter_of_training(case, tmp_path):
    run(case, tmp_path / "one", run=SHORT)
    run(case, tmp_path / "other", run=SHORT, eval={"episodes": 5, "deterministic": False})
    (*_, last) = checkpoint_steps(tmp_path / "one" / "checkpoints")
    differ = differences(tmp_path / "one", tmp_path / "other", last)
    assert differ
    assert all(path.startswith("/evaluator") for path in differ)

"""``guerdon export``: files that onnxruntime reads, and refusals in one sentence."""

import sys

import numpy as np
import onnxruntime
import pytest

import guerdon as package
from guerdon.extras import MissingExtraError
from tests.cli.tiny import guerdon, train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "run"
    train(folder, source="cartpole_fixed_ppo_gail")
    return folder


@pytest.mark.parametrize("checkpoint", ["best", "latest", "128"])
def test_the_policy_is_written(run, checkpoint, tmp_path):
    file = tmp_path / "new" / "policy.onnx"
    result = guerdon("export", run, "--onnx", file, "--checkpoint", checkpoint)
    assert result.exit_code == 0, result.output
    assert result.output == f"wrote {file}: obs float32 [batch, 4] -> action int64 [batch]\n"
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    (found,) = onnxruntime.InferenceSession(file).run(["action"], {"obs": obs})
    which = int(checkpoint) if checkpoint.isdecimal() else checkpoint
    np.testing.assert_array_equal(found, package.load_policy(run, which).predict(obs))


def test_the_reward_is_written(run, tmp_path):
    file = tmp_path / "reward.onnx"
    result = guerdon("export", run, "--part", "reward", "--onnx", file)
    assert result.exit_code == 0, result.output
    assert result.output == (
        f"wrote {file}: obs float32 [batch, 4], act int64 [batch] -> reward float32 [batch]\n"
    )
    assert file.exists()


def test_a_checkpoint_of_the_reward_is_refused(run, tmp_path):
    options = ("--part", "reward", "--checkpoint", "best", "--onnx", tmp_path / "x.onnx")
    result = guerdon("export", run, *options)
    assert result.exit_code == 2
    assert "has one reward, the newest, and not one for each checkpoint" in result.output
    assert not (tmp_path / "x.onnx").exists()


def test_a_reward_that_is_not_learned_is_refused(tmp_path):
    train(tmp_path / "run")
    result = guerdon("export", tmp_path / "run", "--part", "reward", "--onnx", tmp_path / "x.onnx")
    assert result.exit_code == 2
    assert "is the environment's: there is none to load" in result.output
    assert not (tmp_path / "x.onnx").exists()


def test_without_onnxscript_the_extra_is_named(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"--editable \S+\[export\]"):
        package.export(run, tmp_path / "x.onnx")

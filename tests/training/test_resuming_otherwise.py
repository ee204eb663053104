"""A resume that cannot go on leaves the run as it was."""

import pytest

from guerdon.training.run import train
from guerdon.training.run_folder import RunFolder

TINY = ("run.max_steps=64", "collect.n_step=32", "learn.batch_size=32", "eval.episodes=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "first"
    train("cartpole_ppo", *TINY, f"run.dir={folder}", display="none")
    return folder


@pytest.mark.parametrize(
    "override",
    ["seed=9", "policy.model.hidden=[8]", "env.id=Acrobot-v1", "env.n_envs=3", "reward=constant"],
)
def test_what_a_run_is_cannot_change(run, override):
    before = RunFolder(run).config.read_text()
    key = override.partition("=")[0].removesuffix(".hidden")
    with pytest.raises(ValueError, match=f"{key}.* cannot change on resume"):
        train(None, override, resume=run, display="none")
    assert RunFolder(run).config.read_text() == before
    assert RunFolder(run).read_summary()["stop_reason"] == "max_steps"


def test_limits_can_change_and_are_kept(run):
    summary = train(None, "run.max_steps=96", resume=run, display="none")
    assert summary["env_steps"] >= 96
    assert "max_steps: 96" in RunFolder(run).config.read_text()


def test_a_config_takes_overrides_too(tmp_path):
    from guerdon.config import compose

    config = compose("cartpole_ppo", TINY)
    summary = train(config, "run.max_steps=32", f"run.dir={tmp_path / 'a'}", seed=7, display="none")
    assert (summary["seed"], summary["updates"]) == (7, 1)

"""A resume that cannot go on leaves the run as it was."""

import json

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
    key = override.partition("=")[0]
    with pytest.raises(ValueError, match=f"^{key}.* of a run cannot change on resume"):
        train(None, override, resume=run, display="none")
    assert RunFolder(run).config.read_text() == before
    assert json.loads(RunFolder(run).summary.read_text())["stop_reason"] == "max_steps"


def test_the_one_option_that_changed_is_named_with_both_values(run):
    with pytest.raises(ValueError, match="cannot change") as caught:
        train(None, "policy.model.hidden=[8]", resume=run, display="none")
    assert str(caught.value) == (
        "policy.model.hidden of a run cannot change on resume: it is [64, 64], not [8]"
    )


def test_limits_can_change_and_are_kept(run):
    summary = train(None, "run.max_steps=96", resume=run, display="none")
    assert summary["env_steps"] >= 96
    assert "max_steps: 96" in RunFolder(run).config.read_text()


def test_a_config_takes_overrides_too(tmp_path):
    from guerdon.config import compose

    config = compose("cartpole_ppo", TINY)
    summary = train(config, "run.max_steps=32", f"run.dir={tmp_path / 'a'}", seed=7, display="none")
    assert (summary["seed"], summary["updates"]) == (7, 1)


@pytest.fixture(scope="module")
def learning_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "learning"
    of = "{type: rnd, hidden_size: [8], warmup: 8}"
    reward = ("reward=ensemble", f"reward.of={of}", "reward.members=1")
    train("cartpole_ppo", *reward, *TINY, f"run.dir={folder}", display="none")
    return folder


@pytest.mark.parametrize("key", ["members=2", "pessimism=1.0", "of.hidden_size=[9]"])
def test_what_the_reward_is_cannot_change(learning_run, key):
    name = f"reward.terms.ensemble.{key}"
    said = rf"^{name.partition('=')[0]} of a run cannot change on resume: it is .*, not .*$"
    with pytest.raises(ValueError, match=said):
        train(None, name, resume=learning_run, display="none")


def test_how_fast_the_reward_learns_and_counts_can_change(learning_run):
    changes = ("weight=0.5", "of.learning_rate=0.01", "of.batch_size=9", "of.train_every=3")
    overrides = [f"reward.terms.ensemble.{change}" for change in changes]
    train(None, *overrides, "run.max_steps=96", resume=learning_run, display="none")
    assert "batch_size: 9" in RunFolder(learning_run).config.read_text()

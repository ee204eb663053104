"""A resume that cannot go on leaves the run as it was."""

import json
import shutil

import pytest

from guerdon.training.checkpoints import load_checkpoint, save_checkpoint
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


def edit(folder, old, new):
    """Edits the config of a run in place."""
    file = RunFolder(folder).config
    text = file.read_text()
    assert text.count(old) == 1, text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("seed", "\nseed: 0\n", "\nseed: 9\n"),
        ("env.n_envs", "  n_envs: 8\n", "  n_envs: 3\n"),
        ("policy.model.activation", "activation: tanh\n", "activation: relu\n"),
        ("reward.terms", "    env:\n", "    other:\n      type: constant\n    env:\n"),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_a_config_that_was_edited_is_compared_with_the_checkpoint(
    key, old, new, exact, run, tmp_path
):
    shutil.copytree(run, tmp_path / "run")
    edit(tmp_path / "run", old, new)
    with pytest.raises(ValueError, match=f"^{key} of a run cannot change on resume: it is "):
        train(resume=tmp_path / "run", exact=exact, display="none")


def test_what_may_change_in_a_config_is_listed(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    edit(tmp_path / "run", "gamma: 0.98\n", "gamma: 0.9\n")
    train(None, "learn.batch_size=16", "run.max_steps=96", resume=tmp_path / "run", display="none")
    log = RunFolder(tmp_path / "run").log.read_text()
    assert "policy.gamma was 0.98, and is now 0.9\n" in log
    assert "learn.batch_size was 32, and is now 16\n" in log
    assert "max_steps was" not in log
    train(None, "run.max_steps=128", resume=tmp_path / "run", display="none")
    assert RunFolder(tmp_path / "run").log.read_text().count(" was ") == 2  # they are recorded


@pytest.mark.parametrize("version", ["same", "other"])
def test_options_that_another_version_has_added_have_not_changed(version, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    state, step = load_checkpoint(tmp_path / "run" / "checkpoints")
    del state["config"]["policy"]["model"]["hidden"]
    if version == "other":
        state["config"]["version"] = "0.0.1"
    save_checkpoint(tmp_path / "run" / "checkpoints", step, state, keep=1)
    if version == "other":
        train(resume=tmp_path / "run", display="none")
    else:
        with pytest.raises(ValueError, match=r"^policy\.model\.hidden of a run cannot change"):
            train(resume=tmp_path / "run", display="none")


def test_a_checkpoint_without_a_config_is_compared_with_the_file(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    state, step = load_checkpoint(tmp_path / "run" / "checkpoints")
    del state["config"], state["journal"]
    save_checkpoint(tmp_path / "run" / "checkpoints", step, state, keep=1)
    with pytest.raises(ValueError, match=r"^seed of a run cannot change on resume: it is 0, not 9"):
        train(None, "seed=9", resume=tmp_path / "run", display="none")
    assert train(None, "run.max_steps=96", resume=tmp_path / "run", display="none")["updates"] == 3


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

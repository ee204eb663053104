"""A run that starts with the weights of another run's policy."""

import shutil

import pytest
import torch

from guerdon.training.checkpoints import load_checkpoint, load_weights
from guerdon.training.run import train

TINY = ("run.max_steps=64", "collect.n_step=32", "learn.batch_size=32", "eval.episodes=1")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first") / "run"
    train("cartpole_ppo", *TINY, f"run.dir={folder}", seed=1, display="none")
    return folder


def started(folder, source, *overrides, **options):
    """Train for one iteration with a learning rate that changes nothing."""
    still = ("policy.learning_rate=1e-30", "policy.anneal=false", "run.max_steps=32")
    return train(
        "cartpole_ppo", *TINY, *still, f"policy.init_from={source}", f"run.dir={folder}",
        *overrides, seed=2, display="none", **options,
    )  # fmt: skip


def test_a_new_run_starts_with_the_best_weights_of_another(first, tmp_path):
    weights, step = load_weights(first)
    assert step == load_checkpoint(first / "best")[1]
    begun = started(tmp_path / "run", first).policy
    assert all(map(torch.equal, begun.state_dict().values(), weights.values()))
    assert begun.updates == 1  # only the networks are taken over


def test_without_an_evaluation_the_latest_weights_are_used(first, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(first, source)
    shutil.rmtree(source / "best")
    (source / "config.yaml").unlink()  # nothing but the checkpoint is read
    weights, step = load_weights(source)
    assert step == 64
    begun = started(tmp_path / "run", source).policy
    assert all(map(torch.equal, begun.state_dict().values(), weights.values()))


def test_weights_that_do_not_fit_are_named(first, tmp_path):
    with pytest.raises(ValueError, match="does not fit this one") as caught:
        started(tmp_path / "run", first, "policy.model.hidden=[8]")
    message = str(caught.value)
    assert "(64, 4) there and (8, 4) here" in message
    assert "is (64, 64) there and not here" in message
    assert not (tmp_path / "run").exists()


def test_a_run_without_checkpoints_is_named_before_anything_is_made(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"policy.init_from.*no checkpoint.*nowhere"):
        started(tmp_path / "run", tmp_path / "nowhere")
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_keeps_its_own_weights(first, tmp_path):
    folder = tmp_path / "run"
    started(folder, first)
    with pytest.raises(ValueError, match=r"^policy.init_from of a run cannot change on resume"):
        train(None, f"policy.init_from={tmp_path}", resume=folder, display="none")
    resumed = train(None, "run.max_steps=64", resume=folder, display="none")
    assert resumed.policy.updates == 2

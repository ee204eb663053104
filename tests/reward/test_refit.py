"""Refitting a classifier beside the policy: what the policy sees are examples of failure."""

import copy
import shutil

import numpy as np
import pytest
import torch

from guerdon.data.frames import load_frames
from guerdon.nn.init import seeded
from guerdon.ops import classification
from guerdon.reward import Setting
from guerdon.reward.classifier import ClassifierReward
from guerdon.reward.refit import Refit, RefitConfig
from guerdon.training.checkpoints import load_checkpoint, save_checkpoint
from guerdon.training.fit import fit as fit_classifier
from guerdon.training.fit_files import load_classifier
from guerdon.training.run import train
from tests.reward.seeing import (
    Lamp,
    config_of,
    episode,
    hash_of,
    pictures,
    weights,
    write_data,
    write_fit,
)
from tests.training import picturing
from tests.training.running import assert_same_run, leaves, metrics_of, resume, same

QUICK = {"train_every": 40, "update_per_collect": 2, "batch_size": 8, "keep_per_collect": 20}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders of what a lamp shows."""
    return write_data(tmp_path_factory.mktemp("data"))


def made(data, **options):
    """A classifier that can be refitted, of random weights."""
    model = ClassifierReward({**QUICK, **options})
    model.load_state_dict(weights(data=data, dropout=0.3))
    lamp = Lamp()
    model.setup(Setting(lamp.observation_space, lamp.action_space, n_envs=1, seed=5))
    return model


def rollout(*levels):
    """What a policy has seen in one environment, the first row of which is no frame."""
    rows = episode(0, *levels)
    batch = rows.apply(lambda leaf: leaf[:, None])
    batch.mask = np.arange(len(levels) + 1)[:, None] > 0
    return batch


# --- when, and from what


def test_it_is_due_when_enough_is_new():
    refit = Refit(RefitConfig(train_every=5))
    frames, mask = {"base_camera": pictures([[1], [2], [3]])}, np.array([[True], [False], [True]])
    for due in (False, False, True):
        refit.remember(frames, mask)
        assert refit.due == due


def test_it_remembers_some_of_what_the_policy_sees_and_nothing_else():
    refit = Refit(RefitConfig(keep_per_collect=3, buffer_size=5))
    mask = np.arange(10)[:, None] % 2 == 0
    for start in (0, 100, 200):
        refit.remember({"base_camera": pictures(start + np.arange(10)[:, None])}, mask)
    kept = refit._memory.rows()["base_camera"][:, 0, 0, 0]
    assert len(kept) == 5  # of nine, the newest
    assert (kept >= 100).all()
    assert (kept % 2 == 0).all()
    assert len(set(kept.tolist())) == 5
    assert len(set((kept[kept >= 200]).tolist())) == 3


def test_nothing_is_refitted_until_it_is_due(data):
    model = made(data)
    before = leaves(model.state_dict()["members"])
    model.collect_data(rollout(*range(39)))
    assert model.train() is None
    after = leaves(model.state_dict()["members"])
    assert all(same(before[key], after[key]) for key in before)
    model.collect_data(rollout(39))
    metrics = model.train()
    assert np.isfinite(float(metrics["loss"]))
    assert metrics["threshold"] == model.threshold == model.meta["threshold"]
    assert any(
        not same(before[key], value) for key, value in leaves(model.state_dict()["members"]).items()
    )
    assert model.train() is None, "all that was new is learned"


def test_half_of_a_batch_are_successes_and_a_quarter_is_what_the_policy_sees(tmp_path):
    from guerdon.data.frames import Trajectory, write_trajectory

    grey = {"positive": 255, "negative": 0}
    for kind, level in grey.items():
        (tmp_path / kind).mkdir()
        for length in range(4, 9):
            shown = np.full((length, 3, 16, 16), level, np.uint8)
            labels = np.full(length, float(kind == "positive"), np.float32)
            write_trajectory(
                tmp_path / kind, Trajectory({"base_camera": shown}, labels, kind == "positive")
            )
    folders = {f"{kind}_dir": str(tmp_path / kind) for kind in grey}
    model = made(folders, batch_size=10, train_every=1)
    seen = []
    model.members[0].register_forward_pre_hook(
        lambda module, given: seen.append(given[0]["base_camera"]) if module.training else None
    )
    policy_sees = rollout(1, 2, 3)
    policy_sees.obs_next.base_camera[:] = 128
    model.collect_data(policy_sees)
    model.train()
    assert len(seen) == 2
    for batch in seen:
        brightness = batch.mean((1, 2, 3)).numpy()
        np.testing.assert_allclose(brightness[:5], 1.0, atol=0.16)
        np.testing.assert_allclose(brightness[5:7], 0.0, atol=0.06)
        np.testing.assert_allclose(brightness[7:], 0.5, atol=0.11)


def test_the_threshold_is_chosen_anew_on_the_episodes_that_the_fit_held_out(data):
    model = made(data)
    model.collect_data(rollout(*range(40)))
    metrics = model.train()
    frames = load_frames(*data.values(), ["base_camera"])
    _, held_out = frames.split(0.2, np.random.default_rng(0))
    labels = frames.labels[held_out]
    shown = {"base_camera": torch.from_numpy(frames.images["base_camera"][held_out])}
    with torch.no_grad():
        logits = model.members[0](shown).numpy()
    temperature = classification.fit_temperature(logits, labels)
    np.testing.assert_allclose(model.meta["temperature"], temperature, rtol=1e-3)
    scores = classification.ensemble_probability(logits, temperature).astype(np.float32)
    expected = classification.threshold_for(scores, labels, 0.01, 0.0)
    np.testing.assert_allclose(model.threshold, expected, atol=1e-4)
    assert metrics["recall"] == classification.recall(scores, labels, expected)


def test_a_threshold_that_was_asked_for_stays(data):
    model = made(data, threshold=0.25)
    model.collect_data(rollout(*range(40)))
    model.train()
    assert model.threshold == 0.25


def test_dropout_draws_from_the_models_own_seed(data):
    found = []
    for source in (1, 2):
        model = made(data)
        model.collect_data(rollout(*range(40)))
        with seeded(source):  # whatever others have drawn
            model.train()
        found.append(leaves(model.state_dict()))
    assert [key for key in found[0] if not same(found[0][key], found[1][key])] == []


def test_an_old_success_is_asked_about_again_where_old_transitions_are_read(data):
    lamp = Lamp()
    rows = episode(10, 200, over=False)
    for on_policy, pays in ((True, 1.0), (False, 0.0)):
        model = made(data)
        model.setup(
            Setting(lamp.observation_space, lamp.action_space, n_envs=1, on_policy=on_policy)
        )
        scanned = rows.replace(scanned=np.array([0.1, 2.9], np.float32))
        np.testing.assert_array_equal(model.estimate(scanned).rew, [0, 1])
        model._refit.steps, model.meta["threshold"] = 1, 0.9999  # as after a refit
        np.testing.assert_array_equal(model.estimate(scanned).rew, [0, pays])
        assert ("obs_next" in model.fields) is not on_policy


# --- a success that is none


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    """The folder of a real fit: success is a green square."""
    root = tmp_path_factory.mktemp("squares")
    picturing.write(root / "data")
    folders = {f"{kind}_dir": str(root / "data" / kind) for kind in ("positive", "negative")}
    fit_classifier(picturing.config(root / "fit", data=folders), display="none")
    return root / "fit"


def test_a_false_success_is_unlearned_and_true_ones_are_not(squares):
    members, meta = load_classifier(squares)
    model = ClassifierReward(
        {"train_every": 60, "update_per_collect": 30, "batch_size": 32, "learning_rate": 1e-3}
    )
    model.load_state_dict({"members": [each.state_dict() for each in members], "meta": meta})
    frames = picturing.frames(60, seed=9)
    true = frames.images["base_camera"][frames.labels]
    false = true.copy()
    false[:, :, :, :6] = 0  # a dark bar, and a green square beside it
    true_before, false_before = (
        (model.probability({"base_camera": shown}) >= model.threshold).mean()
        for shown in (true, false)
    )
    assert true_before > 0.9
    assert false_before > 0.7, "the classifier has to be fooled to begin with"
    policy_sees = episode(*[0] * len(false)).apply(lambda leaf: leaf[:, None])
    policy_sees.obs_next.base_camera = np.moveaxis(false, 1, -1)[:, None]
    policy_sees.mask = np.ones((len(false), 1), bool)
    for _ in range(6):
        model.collect_data(policy_sees)
        metrics = model.train()
    true_after, false_after = (
        (model.probability({"base_camera": shown}) >= model.threshold).mean()
        for shown in (true, false)
    )
    assert false_after < 0.1
    assert true_after > 0.8
    assert metrics["precision"] > 0.9
    assert metrics["recall"] > 0.8


# --- files


def test_a_refit_goes_on_where_it_was(data, tmp_path):
    one = made(data)
    one.collect_data(rollout(*range(0, 80, 2)))
    one.train()
    one.collect_data(rollout(*range(30)))
    save_checkpoint(tmp_path, 1, {"reward": one.state_dict()}, keep=1)
    other = made(data)
    other.load_state_dict(load_checkpoint(tmp_path)[0]["reward"])
    for model in (one, other):
        model.collect_data(rollout(*range(100, 140)))
        model.train()
    states = [leaves(model.state_dict()) for model in (one, other)]
    assert [key for key in states[0] if not same(states[0][key], states[1][key])] == []
    assert states[0]["/refit/steps"] == 4


def test_another_learning_rate_counts_from_then_on(data):
    one = made(data)
    one.collect_data(rollout(*range(40)))
    one.train()
    other = made(data, learning_rate=0.5)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert other._refit._optimizers[0].learning_rate == 0.5


def test_folders_that_have_moved_can_be_named(data):
    gone = {**dict.fromkeys(data, "nowhere"), "hash": hash_of(data)}
    model = made(gone, **data)
    model.prepare_training()
    with pytest.raises((FileNotFoundError, ValueError), match="nowhere"):
        made(gone).prepare_training()


def test_other_trajectories_than_those_of_the_fit_are_refused(data, tmp_path):
    others = write_data(tmp_path, seed=1)
    with pytest.raises(ValueError, match="are not those that the classifier was fitted with"):
        made(data, **others).prepare_training()


def test_too_few_frames_are_said_to_be(tmp_path):
    with pytest.raises(ValueError, match=r"2 trajectories are too few to refit the classifier"):
        made(write_data(tmp_path, number=2)).prepare_training()


# --- in a run


@pytest.fixture(scope="module")
def fit(data, tmp_path_factory):
    return write_fit(tmp_path_factory.mktemp("fit"), data=data, dropout=0.3)


@pytest.mark.parametrize("policy", ["ppo", "sac"])
def test_a_run_that_refits_goes_on_exactly(policy, fit, tmp_path):
    for name, steps in (("one", 128), ("run", 64)):
        config = config_of(tmp_path / name, fit, policy, cotrain=True, **QUICK)
        train(config, f"run.max_steps={steps}", display="none")
    resume(tmp_path / "run", "run.max_steps=128")
    assert_same_run(tmp_path / "one", tmp_path / "run")
    thresholds = [
        line["reward/classifier/threshold"]
        for line in metrics_of(tmp_path / "one")
        if "reward/classifier/threshold" in line
    ]
    assert len(thresholds) >= 2
    whole = load_checkpoint(tmp_path / "one/checkpoints", parts=("reward",))[0]["reward"]
    alone = load_checkpoint(tmp_path / "one/reward")[0]["state"]
    (remembered,) = whole["terms"]["classifier"]["refit"]["memory"]["columns"]
    assert len(remembered) >= 40
    assert alone["terms"]["classifier"]["refit"]["memory"]["columns"] == []


def test_another_run_goes_on_with_a_refitted_classifier(fit, tmp_path):
    train(config_of(tmp_path / "one", fit, cotrain=True, **QUICK), display="none")
    config = config_of(tmp_path / "run", str(tmp_path / "one"), cotrain=True, **QUICK)
    train(config, display="none")
    states = [
        load_checkpoint(tmp_path / name / "reward")[0]["state"]["terms"]["classifier"]
        for name in ("one", "run")
    ]
    assert 0 < states[0]["refit"]["steps"] < states[1]["refit"]["steps"]


def test_without_being_asked_nothing_is_refitted(fit, tmp_path):
    train(config_of(tmp_path / "run", fit, **QUICK), display="none")
    assert not any("threshold" in key for line in metrics_of(tmp_path / "run") for key in line)
    saved = load_checkpoint(tmp_path / "run/reward")[0]["state"]["terms"]["classifier"]
    first = load_classifier(fit)[0][0].state_dict()
    assert all(torch.equal(saved["members"][0][key], first[key]) for key in first)


def test_a_run_whose_pictures_are_missing_does_not_begin(tmp_path):
    folders = write_data(tmp_path / "data")
    fit = write_fit(tmp_path / "fit", data=folders)
    train(config_of(tmp_path / "run", fit, cotrain=True, **QUICK), display="none")
    shutil.rmtree(folders["positive_dir"])
    with pytest.raises((FileNotFoundError, ValueError), match="positive"):
        train(config_of(tmp_path / "other", fit, cotrain=True, **QUICK), display="none")
    assert not (tmp_path / "other").exists()
    with pytest.raises((FileNotFoundError, ValueError), match="positive"):
        resume(tmp_path / "run", "run.max_steps=256")

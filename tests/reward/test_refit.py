"""Refitting a classifier beside the policy: what the policy sees are examples of failure."""

import copy
import shutil

import numpy as np
import pytest
import torch

from guerdon.data.frames import Frames, Trajectory, write_trajectory
from guerdon.nn.init import seeded
from guerdon.reward import Setting
from guerdon.reward.classifier import ClassifierReward
from guerdon.reward.refit import Refit, RefitConfig, _first
from guerdon.training.checkpoints import load_checkpoint, save_checkpoint
from guerdon.training.fit import fit as fit_classifier
from guerdon.training.fit_files import load_classifier
from guerdon.training.run import train
from tests.reward.seeing import (
    SIZE,
    FirstPixel,
    Lamp,
    config_of,
    digests_of,
    episode,
    pictures,
    reader,
    weights,
    write_data,
    write_fit,
)
from tests.training import picturing
from tests.training.running import assert_same_run, leaves, metrics_of, resume, same

QUICK = {"train_every": 40, "update_per_collect": 2, "batch_size": 8, "keep_per_collect": 20}
ALL = {"threshold": 1e-6, "terminate": "never"}  # everything is a success, and ends nothing


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders of what a lamp shows."""
    return write_data(tmp_path_factory.mktemp("data"))


def made(data, **options):
    """A classifier that can be refitted, of random weights."""
    model = ClassifierReward({**QUICK, **ALL, **options})
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


def show(model, batch):
    """As a run does it."""
    said = model.scan(batch)
    model.collect_data(batch)
    return said


def kept(model):
    """The first pixels of what is remembered."""
    return model._refit._memory.rows()["base_camera"][:, 0, 0, 0].tolist()


# --- when, and from what


def test_it_is_due_when_enough_is_new_and_something_was_claimed():
    refit = Refit(RefitConfig(train_every=5, batch_size=4))
    for _ in range(3):
        refit.remember({"base_camera": pictures(np.zeros(0, int))}, 2)
        assert not refit.due
    refit.remember({"base_camera": pictures([1, 2])}, 0)
    assert refit.due
    small = Refit(RefitConfig(train_every=1, buffer_size=1))
    small.remember({"base_camera": pictures([1, 2])}, 2)
    assert small.due, "a small memory is full at once"


def test_it_remembers_a_fair_sample_of_the_whole_run():
    found = []
    for seed in range(200):
        refit = Refit(RefitConfig(keep_per_collect=3, buffer_size=5))
        refit.generator = np.random.default_rng(seed)
        for start in (0, 100, 200):
            refit.remember({"base_camera": pictures(start + np.arange(5))}, 5)
        kept = refit._memory.rows()["base_camera"][:, 0, 0, 0]
        assert len(kept) == len(set(kept.tolist())) == 5
        found.append([np.sum((kept >= start) & (kept < start + 100)) for start in (0, 100, 200)])
    np.testing.assert_allclose(np.mean(found, 0), 5 / 3, atol=0.2)


def test_what_the_policy_gets_success_for_is_remembered_once_where_it_ends_an_episode():
    for terminate, hold, expected in (
        ("read", 1, [200]),
        ("read", 2, [200, 210, 220]),
        ("online", 1, [200, 210, 220, 230]),  # whoever asks ends the episodes
        ("never", 1, [200, 210, 220, 230]),
    ):
        model = reader(terminate=terminate, hold=hold, reward_mode="terminal")
        show(model, rollout(10, 200, 50, 210, 220, 60, 230))
        assert sorted(kept(model)) == expected, (terminate, hold)


def test_what_is_doubted_is_claimed_and_pays_nothing():
    model = reader(terminate="never", reward_mode="per_step", reward_type="binary")
    batch = rollout(10, 200, 250, 140)
    said = show(model, batch)
    np.testing.assert_array_equal(said[:, 0] >= 2, [False, False, True, True, True])
    model._refit.second = FirstPixel(lambda value: 1 - value)  # it doubts the brightest
    before = model.probability(batch.obs_next)[:, 0]
    np.testing.assert_allclose(before * 255, [0, 10, 200, 0, 140], atol=1e-4)
    said = show(model, batch)
    np.testing.assert_array_equal(said[:, 0] >= 2, [False, False, True, False, True])
    assert sorted(kept(model)) == [140, 140, 200, 200, 250, 250]
    assert max(model._refit.second.frames) <= 3, "of what is no success, nobody asks"


def test_a_policy_that_stays_where_it_is_doubted_is_remembered_once():
    model = reader()
    model._refit.second = FirstPixel(lambda value: value * 0)
    for _ in range(2):
        model.break_off()
        show(model, rollout(10, 200, 210, 220))
    assert sorted(kept(model)) == [200, 200]
    going_on = rollout(230, 240)
    going_on.truncated[:] = False
    show(model, going_on)  # an episode that the last one did not end
    assert sorted(kept(model)) == [200, 200, 230]
    show(model, going_on)
    assert sorted(kept(model)) == [200, 200, 230]


def test_a_success_that_is_paid_is_remembered_though_another_was_doubted_before():
    model = reader()
    model._refit.second = FirstPixel(lambda value: (value > 0.9).double())
    show(model, rollout(10, 200, 210, 250, 220))
    assert sorted(kept(model)) == [200, 250]


def test_a_rollout_that_ended_online_was_looked_at_once():
    model = reader(terminate="online")
    batch = rollout(10, 200, 50)
    done = np.zeros(1, bool)
    for t, real in enumerate(batch.mask):
        model.verdicts(batch.obs_next[t], done, real)
    asked = sum(model.members[0].frames)
    show(model, batch)
    assert sum(model.members[0].frames) == asked
    assert kept(model) == [200]


def test_what_is_doubted_is_no_success_in_an_evaluation():
    model = reader()
    assert model.judge(episode(10, 200, 10)).end == 1
    model._refit.second = FirstPixel(lambda value: value * 0)
    judged = model.judge(episode(10, 200, 10))
    assert not judged.held.any()
    assert judged.end == 2


def test_pictures_of_floats_are_those_of_bytes():
    model = reader(**ALL)
    batch = rollout(10, 200, 50)
    show(model, batch)
    batch.obs_next.base_camera = batch.obs_next.base_camera / np.float32(255)
    show(model, batch)
    assert sorted(kept(model)) == [10, 10, 50, 50, 200, 200]


def test_where_every_frame_pays_its_probability_most_are_looked_at_twice():
    model = reader(terminate="never", reward_mode="per_step", reward_type="continuous")
    model._refit.second = FirstPixel(lambda value: value * 0)
    found = model.probability({"base_camera": pictures([10, 20, 30, 200])})
    np.testing.assert_allclose(found * 255, [10, 20, 0, 0], atol=1e-4)


def test_nothing_is_refitted_until_it_is_due(data):
    model = made(data)
    show(model, rollout(*range(39)))
    assert model.train() is None
    assert model._refit.second is None
    show(model, rollout(39))
    metrics = model.train()
    assert np.isfinite(float(metrics["loss"]))
    assert 0 <= float(metrics["doubted"]) <= 1
    first, second = (
        leaves(dict(each.state_dict())) for each in (model.members[0], second_of(model))
    )
    assert any(not same(first[key], second[key]) for key in first)
    assert model.train() is None, "all that was new is learned"


def second_of(model):
    assert model._refit.second is not None
    return model._refit.second


def test_the_classifier_itself_stays_as_it_was_fitted(data):
    model = made(data, threshold=None)
    before = copy.deepcopy(model.state_dict())
    show(model, rollout(*range(0, 255, 5)))
    model._refit.remember({"base_camera": pictures(range(40))}, 40)
    assert model.train() is not None
    after = model.state_dict()
    for part in ("members", "meta"):
        then, now = leaves({"": before[part]}), leaves({"": after[part]})
        assert [key for key in then if not same(then[key], now[key])] == []


def test_half_of_a_batch_is_what_the_policy_was_paid_for(tmp_path):
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
    policy_sees = rollout(1, 2, 3, 4, 5, 6)
    policy_sees.obs_next.base_camera[:] = 128
    show(model, policy_sees)
    model._refit.load(model.meta)
    model._refit._begin(model.members[0])
    seen = []
    second_of(model).register_forward_pre_hook(
        lambda _, given: seen.append(given[0]["base_camera"])
    )
    model.train()
    assert len(seen) == 2
    for batch in seen:
        brightness = batch.mean((1, 2, 3)).numpy()
        np.testing.assert_allclose(brightness[:5], 1.0, atol=0.16)
        np.testing.assert_allclose(brightness[5:], 0.5, atol=0.11)


def test_a_quarter_of_a_batch_are_moments_of_success(tmp_path):
    for folder, level in (("positive", 255), ("negative", 0)):
        (tmp_path / folder).mkdir()
        for number in range(3):
            shown = np.full((40, 3, 16, 16), level, np.uint8)
            shown[:2, :, :, : 1 + number] //= 2  # the first ones are darker
            labels = np.full(40, float(level > 0), np.float32)
            write_trajectory(
                tmp_path / folder, Trajectory({"base_camera": shown}, labels, level > 0)
            )
    folders = {f"{kind}_dir": str(tmp_path / kind) for kind in ("positive", "negative")}
    for options, number in (({"terminate": "read", "hold": 2}, 6), ({}, 120)):
        model = made(folders, **options)
        model.prepare_training()
        assert len(model._refit._moments) == number


def test_moments_are_the_first_frames_of_a_success():
    labels = np.array([0, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1], bool)
    episodes = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    frames = Frames({}, labels, episodes, np.ones(2, bool))
    for number, expected in (
        (1, [1, 5, 6, 10]),
        (2, [1, 2, 5, 6, 7, 10]),
        (50, [1, 2, 3, 5, 6, 7, 10]),
    ):
        assert np.flatnonzero(_first(frames, number)).tolist() == expected
    assert (_first(frames, None) == labels).all()


def test_before_each_refit_the_second_opinion_goes_back_some_way(data):
    model = made(data, forget=0.25, learning_rate=1e-30)
    show(model, rollout(*range(40)))
    model.train()
    name, first = next(iter(model.members[0].named_parameters()))
    second = dict(second_of(model).named_parameters())[name]
    with torch.no_grad():
        second += 1.0
    show(model, rollout(*range(40)))
    model.train()
    np.testing.assert_allclose((second - first).detach().numpy(), 0.75, rtol=1e-3)


def test_dropout_draws_from_the_models_own_seed(data):
    found = []
    for source in (1, 2):
        model = made(data)
        show(model, rollout(*range(40)))
        with seeded(source):  # whatever others have drawn
            model.train()
        found.append(leaves(model.state_dict()))
    assert [key for key in found[0] if not same(found[0][key], found[1][key])] == []


def test_an_old_success_is_asked_about_again_where_old_transitions_are_read():
    lamp = Lamp()
    rows = episode(10, 200, over=False)
    for on_policy, pays in ((True, 1.0), (False, 0.0)):
        model = reader()
        model.setup(
            Setting(lamp.observation_space, lamp.action_space, n_envs=1, on_policy=on_policy)
        )
        scanned = rows.replace(scanned=np.array([0.1, 2.9], np.float32))
        np.testing.assert_array_equal(model.estimate(scanned).rew, [0, 1])
        model._refit.second = FirstPixel(lambda value: value * 0)
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


def fitted(folder, **options):
    """The classifier of a fit, which is refitted quickly, and pays for every frame."""
    members, meta = load_classifier(folder)
    model = ClassifierReward(
        {"train_every": 60, "update_per_collect": 30, "batch_size": 32, "learning_rate": 1e-3}
        | {"reward_mode": "per_step", **options}
    )
    model.load_state_dict({"members": [each.state_dict() for each in members], "meta": meta})
    return model


def successes(seed):
    frames = picturing.frames(60, seed=seed)
    return frames.images["base_camera"][frames.labels]


def seen(shown):
    """A rollout in which a policy sees these pictures."""
    rows = episode(*[0] * len(shown)).apply(lambda leaf: leaf[:, None])
    rows.obs_next.base_camera = np.moveaxis(shown, 1, -1)[:, None]
    rows.mask = np.ones((len(shown), 1), bool)
    return rows


def share_paid(model, shown):
    return (model.probability({"base_camera": shown}) >= model.threshold).mean()


def test_a_false_success_is_unlearned_and_true_ones_are_not(squares):
    model, true = fitted(squares), successes(9)
    false = true.copy()
    false[:, :, :, :6] = 0  # a dark bar, and a green square beside it
    assert share_paid(model, true) > 0.9
    assert share_paid(model, false) > 0.7, "the classifier has to be fooled to begin with"
    for _ in range(6):
        show(model, seen(false))
        metrics = model.train()
    assert share_paid(model, false) < 0.1
    assert share_paid(model, true) > 0.8
    assert metrics["doubted"] > 0.8


def test_true_successes_are_not_doubted_however_often_the_policy_shows_them(squares):
    model = fitted(squares)
    for seed in range(20):
        show(model, seen(successes(100 + seed)))
        metrics = model.train()
    assert share_paid(model, successes(9)) > 0.9
    assert metrics["doubted"] < 0.1


def test_a_false_success_of_long_ago_stays_known(squares):
    model, false = fitted(squares, buffer_size=200), successes(9)
    false[:, :, :, :6] = 0
    for seed in range(30):
        show(model, seen(false if seed < 6 else successes(100 + seed)))
        model.train()
    assert share_paid(model, false) < 0.1
    assert share_paid(model, successes(10)) > 0.8


# --- files


def test_a_refit_goes_on_where_it_was(data, tmp_path):
    one = made(data)
    show(one, rollout(*range(0, 80, 2)))
    one.train()
    show(one, rollout(*range(30)))
    save_checkpoint(tmp_path, 1, {"reward": one.state_dict()}, keep=1)
    other = made(data)
    other.load_state_dict(load_checkpoint(tmp_path)[0]["reward"])
    for model in (one, other):
        show(model, rollout(*range(100, 140)))
        model.train()
    states = [leaves(model.state_dict()) for model in (one, other)]
    assert [key for key in states[0] if not same(states[0][key], states[1][key])] == []
    assert any(key.startswith("/refit/second") for key in states[0])


def test_another_learning_rate_counts_from_then_on(data):
    one = made(data)
    show(one, rollout(*range(40)))
    one.train()
    other = made(data, learning_rate=0.5)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert other._refit._optimizer.learning_rate == 0.5


def test_folders_that_have_moved_can_be_named(data):
    gone = {**dict.fromkeys(data, "nowhere"), "digests": digests_of(data)}
    model = made(gone, **data)
    model.prepare_training()
    with pytest.raises((FileNotFoundError, ValueError), match="nowhere"):
        made(gone).prepare_training()


def test_other_trajectories_than_those_of_the_fit_are_refused(data, tmp_path):
    others = write_data(tmp_path, seed=1)
    with pytest.raises(ValueError, match="12 of the 12 trajectories that the classifier was fit"):
        made(data, **others).prepare_training()


def test_trajectories_that_came_later_are_left_out(data, tmp_path):
    folders = {name: shutil.copytree(path, tmp_path / name) for name, path in data.items()}
    model, later = made(data), made(data, **{name: str(path) for name, path in folders.items()})
    shown = np.full((8, 3, SIZE, SIZE), 77, np.uint8)
    write_trajectory(
        folders["positive_dir"], Trajectory({"base_camera": shown}, np.ones(8, np.float32), True)
    )
    for each in (model, later):
        each.prepare_training()
    np.testing.assert_array_equal(
        model._refit._successes["base_camera"], later._refit._successes["base_camera"]
    )
    np.testing.assert_array_equal(model._refit._moments, later._refit._moments)
    next(folders["negative_dir"].iterdir()).unlink()
    gone = made(data, **{name: str(path) for name, path in folders.items()})
    with pytest.raises(ValueError, match="1 of the 12 trajectories that the classifier was fit"):
        gone.prepare_training()


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
    assert sum("reward/classifier/doubted" in line for line in metrics_of(tmp_path / "one")) >= 2
    whole = load_checkpoint(tmp_path / "one/checkpoints", parts=("reward",))[0]["reward"]
    alone = load_checkpoint(tmp_path / "one/reward")[0]["state"]
    (remembered,) = whole["terms"]["classifier"]["refit"]["memory"]["columns"]
    assert len(remembered) >= 8
    assert alone["terms"]["classifier"]["refit"]["memory"]["columns"] == []


def test_another_run_goes_on_with_a_refitted_classifier(fit, tmp_path):
    train(config_of(tmp_path / "one", fit, cotrain=True, **QUICK), display="none")
    config = config_of(tmp_path / "run", str(tmp_path / "one"), cotrain=True, **QUICK)
    train(config, display="none")
    states = [
        load_checkpoint(tmp_path / name / "reward")[0]["state"]["terms"]["classifier"]
        for name in ("one", "run")
    ]
    first, then = (state["refit"]["second"] for state in states)
    assert any(not same(first[key], then[key]) for key in first), "it went on learning"
    frozen = config_of(tmp_path / "frozen", str(tmp_path / "one"), **QUICK)
    train(frozen, display="none")
    kept = load_checkpoint(tmp_path / "frozen/reward")[0]["state"]["terms"]["classifier"]
    before, after = states[0]["refit"]["second"], kept["refit"]["second"]
    assert all(same(before[key], after[key]) for key in before)


def test_without_being_asked_nothing_is_refitted(fit, tmp_path):
    train(config_of(tmp_path / "run", fit, **QUICK), display="none")
    assert not any("doubted" in key for line in metrics_of(tmp_path / "run") for key in line)
    saved = load_checkpoint(tmp_path / "run/reward")[0]["state"]["terms"]["classifier"]
    assert "second" not in saved["refit"]


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

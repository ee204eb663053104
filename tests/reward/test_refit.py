"""Refitting a classifier beside the policy, with its successes as negatives."""

import copy
import shutil

import numpy as np
import pytest
import torch

from guerdon.data import Batch
from guerdon.data.frames import Frames, Trajectory, write_trajectory
from guerdon.nn.init import seeded
from guerdon.reward import Setting
from guerdon.reward.success_classifier import _first_successes
from guerdon.training.checkpoints import load_checkpoint, save_checkpoint
from guerdon.training.fit import fit as fit_classifier
from guerdon.training.fit_files import load_classifier
from guerdon.training.run import train
from tests.reward.seeing import (
    SIZE,
    Lamp,
    config_of,
    digests_of,
    episode,
    loaded,
    pictures,
    reader,
    refitted,
    weights,
    write_data,
    write_fit,
)
from tests.rounding import assert_close
from tests.training import picturing
from tests.training.running import assert_same_run, leaves, metrics_of, resume, same

QUICK = {"train_every": 40, "update_per_collect": 2, "batch_size": 8, "keep_per_collect": 20}
ALL = {"threshold": 1e-6, "terminate": "never"}  # every frame is a success, and ends nothing


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders of trajectories of a lamp."""
    return write_data(tmp_path_factory.mktemp("data"))


def setting_of(**options):
    lamp = Lamp()
    return Setting(lamp.observation_space, lamp.action_space, n_envs=1, seed=5, **options)


def made(data, **options):
    """A classifier that can be refitted, of random weights."""
    saved = weights(data=data, dropout=0.3)
    return loaded(saved, setting_of(), **{**QUICK, **ALL, **options})


def rollout(*levels):
    """An episode in one environment, after a row that is no transition."""
    batch = episode(0, *levels).apply(lambda leaf: leaf[:, None])
    rows = np.arange(len(levels) + 1)[:, None]
    return batch.replace(mask=rows > 0, first=rows == 1)


def show(model, batch, memory=None):
    """Annotate and collect a rollout, as a run does it; return the columns and the memory."""
    columns, memory = model.annotate(batch, memory or model.new_memory(1))
    model.collect_data(batch.replace(**columns))
    return columns, memory


def kept(model):
    """The first pixels of collected frames."""
    return model._refit.memory.rows()["base_camera"][:, 0, 0, 0].tolist()


# --- when, and from what


def test_it_waits_for_new_transitions_and_enough_successes(monkeypatch):
    refit = reader(train_every=5, batch_size=4)._start_refit()
    monkeypatch.setattr(refit, "fit", lambda _: {})
    for _ in range(3):
        refit.collect_frames(Batch(base_camera=pictures(np.zeros(0, int))), 2)
        assert refit.train() is None
    refit.collect_frames(Batch(base_camera=pictures([1, 2])), 0)
    assert refit.train() is not None
    assert refit.train() is None
    small = reader(train_every=1, buffer_size=1)._start_refit()
    monkeypatch.setattr(small, "fit", lambda _: {})
    small.collect_frames(Batch(base_camera=pictures([1, 2])), 2)
    assert small.train() is not None, "a small memory is full at once"


def test_it_keeps_a_uniform_sample_of_the_whole_run():
    found = []
    for seed in range(200):
        model = reader(keep_per_collect=3, buffer_size=5, setting=Setting(seed=seed))
        refit = model._start_refit()
        for start in (0, 100, 200):
            refit.collect_frames(Batch(base_camera=pictures(start + np.arange(5))), 5)
        frames = np.array(kept(model))
        assert len(frames) == len(set(frames.tolist())) == 5
        found.append(
            [np.sum((frames >= start) & (frames < start + 100)) for start in (0, 100, 200)]
        )
    np.testing.assert_allclose(np.mean(found, 0), 5 / 3, atol=0.2)


def test_successes_are_collected_up_to_the_end_of_the_episode():
    for terminate, hold, expected in (
        ("read", 1, [200]),
        ("read", 2, [200, 210, 220]),
        ("online", 1, [200, 210, 220, 230]),
        ("never", 1, [200, 210, 220, 230]),
    ):
        model = reader(terminate=terminate, hold=hold, reward_mode="terminal")
        batch = rollout(10, 200, 50, 210, 220, 60, 230)
        if terminate == "online":  # a success resets the environment
            batch.first[1:] |= batch.obs_next.base_camera[:-1, :, 0, 0, 0] >= 200
        show(model, batch)
        assert sorted(kept(model)) == expected, (terminate, hold)


def test_new_transitions_are_counted_after_a_success_too():
    model = reader()
    batch = rollout(10, 200, 50, 60)
    columns, _ = model.annotate(batch, model.new_memory(1))
    for mask in (batch.mask, batch.mask & ~columns["after_success"]):
        before = model._start_refit().new
        model.collect_data(batch.replace(**columns | {"mask": mask}))
        assert model._refit.new - before == 4


def test_rejected_frames_are_claimed_but_not_paid():
    model = reader(terminate="never", reward_mode="per_step", reward_type="binary")
    batch = rollout(10, 200, 250, 140)
    columns, _ = show(model, batch)
    np.testing.assert_array_equal(columns["paid"][:, 0], [False, False, True, True, True])
    discriminator = refitted(model, lambda value: 1 - value)  # it rejects the brightest
    before = model.probability(batch.obs_next)[:, 0]
    assert_close(before * 255, [0, 10, 200, 0, 140], atol=1e-4)
    columns, _ = show(model, batch)
    np.testing.assert_array_equal(columns["paid"][:, 0], [False, False, True, False, True])
    assert sorted(kept(model)) == [140, 140, 200, 200, 250, 250]
    assert max(discriminator.frames) <= 3, "frames that are no success are not scored twice"


def test_a_policy_that_stays_where_it_is_rejected_is_collected_once():
    model = reader()
    refitted(model, lambda value: value * 0)
    for _ in range(2):
        _, memory = show(model, rollout(10, 200, 210, 220))
    assert sorted(kept(model)) == [200, 200]
    continued = rollout(230, 240)
    _, memory = show(model, continued, memory)  # the next episode
    assert sorted(kept(model)) == [200, 200, 230]
    continued.first[:] = False
    show(model, continued, memory)  # the same episode
    assert sorted(kept(model)) == [200, 200, 230]


def test_a_paid_success_is_collected_after_a_rejected_one():
    model = reader()
    refitted(model, lambda value: (value > 0.9).double())
    show(model, rollout(10, 200, 210, 250, 220))
    assert sorted(kept(model)) == [200, 250]


def test_a_rollout_that_was_scored_online_is_not_scored_again():
    model = reader(terminate="online")
    batch, memory = rollout(10, 200, 50), model.new_memory(1)
    done = np.zeros(1, bool)
    ended = [model.ends(batch.obs_next[t], done, batch.mask[t], memory)[0] for t in range(4)]
    assert ended == [False, False, True, False]
    n_frames = sum(model.members[0].frames)
    columns, _ = show(model, batch, memory)
    np.testing.assert_array_equal(columns["paid"][:, 0], ended)
    assert sum(model.members[0].frames) == n_frames
    assert kept(model) == [200]


def test_rejected_frames_are_no_success_in_an_evaluation():
    model = reader()
    assert model.complete(episode(10, 200, 10)).paid.tolist() == [False, True, False]
    refitted(model, lambda value: value * 0)
    columns = model.complete(episode(10, 200, 10))
    assert not columns.paid.any()
    assert not columns.after_success.any()


def test_transitions_without_a_success_are_scored_0():
    model = reader(setting=Setting(Lamp().observation_space, Lamp().action_space, on_policy=False))
    model.fields = ("obs_next",)
    discriminator = refitted(model, lambda value: value * 0)
    batch = episode(10, 20, 30)
    n_rows = len(batch.rew)
    batch = batch.replace(probability=np.zeros(n_rows, "f"), paid=np.zeros(n_rows, bool))
    assert model.score(batch.to_device(torch.device("cpu"))).tolist() == [0.0] * n_rows
    assert sum(discriminator.frames) == 0


def test_images_can_be_floats():
    model = reader(**ALL)
    batch = rollout(10, 200, 50)
    show(model, batch)
    batch.obs_next.base_camera = batch.obs_next.base_camera / np.float32(255)
    show(model, batch)
    assert sorted(kept(model)) == [10, 10, 50, 50, 200, 200]


def test_frames_that_pay_their_probability_can_be_rejected_below_the_threshold():
    model = reader(terminate="never", reward_mode="per_step", reward_type="continuous")
    refitted(model, lambda value: value * 0)
    found = model.probability({"base_camera": pictures([10, 20, 30, 200])})
    assert_close(found * 255, [10, 20, 0, 0], atol=1e-4)


def test_nothing_is_refitted_before_there_is_enough_data(data):
    model = made(data)
    show(model, rollout(*range(39)))
    assert model.train() is None
    assert not model._refit.fitted
    show(model, rollout(39))
    metrics = model.train()
    assert np.isfinite(float(metrics["loss"]))
    assert 0 <= float(metrics["rejected"]) <= 1
    first, second = (
        leaves(dict(each.state_dict())) for each in (model.members[0], model._refit.network)
    )
    assert any(not same(first[key], second[key]) for key in first)
    assert model.train() is None


def test_the_fitted_classifier_does_not_change(data):
    model = made(data, threshold=None)
    before = copy.deepcopy(model.training_state())
    show(model, rollout(*range(0, 255, 5)))
    model._refit.collect_frames(Batch(base_camera=pictures(range(40))), 40)
    assert model.train() is not None
    after = model.training_state()
    for part in ("members", "meta"):
        then, now = leaves({"": before[part]}), leaves({"": after[part]})
        assert [key for key in then if not same(then[key], now[key])] == []


def test_half_of_a_batch_are_successes_of_the_policy(tmp_path):
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
    seen = []
    model._refit.network.register_forward_pre_hook(lambda _, given: seen.append(given))
    model.train()
    assert len(seen) == 2
    for images, generator in seen:
        assert images["base_camera"][:5].unique().tolist() == [255]
        assert images["base_camera"][5:].unique().tolist() == [128]
        assert isinstance(generator, torch.Generator), "images are augmented"


def test_successes_like_those_that_end_episodes_are_found(tmp_path):
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
        model.prepare()
        assert len(model._refit._ends) == number


def test_first_successes_are_counted_from_their_start():
    labels = np.array([0, 1, 1, 1, 0, 1, 1, 1, 0, 0, 1], bool)
    episodes = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    frames = Frames({}, labels, episodes, np.ones(2, bool))
    for number, expected in (
        (1, [1, 5, 6, 10]),
        (2, [1, 2, 5, 6, 7, 10]),
        (50, [1, 2, 3, 5, 6, 7, 10]),
    ):
        assert np.flatnonzero(_first_successes(frames, number)).tolist() == expected


def test_before_each_refit_weights_move_back_to_the_fitted_ones(data):
    model = made(data, forget=0.25, learning_rate=1e-30)
    show(model, rollout(*range(40)))
    model.train()
    name, first = next(iter(model.members[0].named_parameters()))
    second = dict(model._refit.network.named_parameters())[name]
    with torch.no_grad():
        second += 1.0
    show(model, rollout(*range(40)))
    model.train()
    assert_close((second - first).detach().numpy(), 0.75, rtol=1e-3)


def test_dropout_draws_from_the_models_own_seed(data):
    found = []
    for source in (1, 2):
        model = made(data)
        show(model, rollout(*range(40)))
        with seeded(source):  # the global generator
            model.train()
        found.append(leaves(model.training_state()))
    assert [key for key in found[0] if not same(found[0][key], found[1][key])] == []


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        ({}, [0, 1], [0, 0]),
        ({"reward_type": "continuous"}, [0, 0.75], [0, 0]),
        ({"reward_type": "continuous", "reward_mode": "per_step"}, [0.05, 0.75], [0.05, 0]),
    ],
    ids=str,
)
def test_off_policy_stored_successes_can_be_rejected_later(options, before, after):
    columns = {"probability": [0.05, 0.75], "paid": [False, True], "after_success": [False] * 2}
    columns = {name: np.array(column) for name, column in columns.items()}
    rows = episode(10, 200, over=False).replace(**columns)
    for on_policy, expected in ((True, before), (False, after)):
        model = reader(setting=setting_of(on_policy=on_policy), **options)
        assert_close(model.estimate(rows).rew, before)
        refitted(model, lambda value: value * 0)
        assert_close(model.estimate(rows).rew, expected)
        assert ("obs_next" in model.fields) is not on_policy


# --- false successes


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
    quick = {"train_every": 60, "update_per_collect": 30, "batch_size": 32, "learning_rate": 1e-3}
    saved = {"members": [each.state_dict() for each in members], "meta": meta}
    return loaded(saved, reward_mode="per_step", **quick, **options)


def successes(seed):
    frames = picturing.frames(60, seed=seed)
    return frames.images["base_camera"][frames.labels]


def seen(shown):
    """A rollout in which a policy sees these images."""
    rows = episode(*[0] * len(shown)).apply(lambda leaf: leaf[:, None])
    rows.obs_next.base_camera = np.moveaxis(shown, 1, -1)[:, None]
    mask = np.ones((len(shown), 1), bool)
    return rows.replace(mask=mask, first=np.arange(len(mask))[:, None] == 0)


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
    assert metrics["rejected"] > 0.8


def test_frequent_true_successes_are_not_rejected(squares):
    model = fitted(squares)
    for seed in range(10):
        show(model, seen(successes(100 + seed)))
        metrics = model.train()
    assert share_paid(model, successes(9)) > 0.9
    assert metrics["rejected"] < 0.1


def test_an_old_false_success_stays_rejected(squares):
    model, false = fitted(squares, buffer_size=200), successes(9)
    false[:, :, :, :6] = 0
    for seed in range(18):
        show(model, seen(false if seed < 6 else successes(100 + seed)))
        model.train()
    assert share_paid(model, false) < 0.1
    assert share_paid(model, successes(10)) > 0.8


# --- files


def test_a_refit_resumes_exactly(data, tmp_path):
    one = made(data)
    show(one, rollout(*range(0, 80, 2)))
    one.train()
    show(one, rollout(*range(30)))
    save_checkpoint(tmp_path, 1, {"reward": one.training_state()}, keep=1)
    other = made(data)
    other.load_training_state(load_checkpoint(tmp_path)[0]["reward"])
    for model in (one, other):
        show(model, rollout(*range(100, 140)))
        model.train()
    states = [leaves(model.training_state()) for model in (one, other)]
    assert [key for key in states[0] if not same(states[0][key], states[1][key])] == []
    assert any(key.startswith("/refit/network") for key in states[0])


def test_the_learning_rate_can_change_on_resume(data):
    one = made(data)
    show(one, rollout(*range(40)))
    one.train()
    other = made(data, learning_rate=0.5)
    other.load_training_state(copy.deepcopy(one.training_state()))
    assert other._refit.optimizer.learning_rate == 0.5


def test_folders_that_have_moved_can_be_named(data):
    gone = {**dict.fromkeys(data, "nowhere"), "digests": digests_of(data)}
    model = made(gone, **data)
    model.prepare()
    with pytest.raises((FileNotFoundError, ValueError), match="nowhere"):
        made(gone).prepare()


def test_other_trajectories_than_those_of_the_fit_are_refused(data, tmp_path):
    others = write_data(tmp_path, seed=1)
    with pytest.raises(ValueError, match="12 of the 12 trajectories that the classifier was fit"):
        made(data, **others).prepare()


def test_trajectories_that_came_later_are_left_out(data, tmp_path):
    folders = {name: shutil.copytree(path, tmp_path / name) for name, path in data.items()}
    model, later = made(data), made(data, **{name: str(path) for name, path in folders.items()})
    shown = np.full((8, 3, SIZE, SIZE), 77, np.uint8)
    write_trajectory(
        folders["positive_dir"], Trajectory({"base_camera": shown}, np.ones(8, np.float32), True)
    )
    for each in (model, later):
        each.prepare()
    np.testing.assert_array_equal(
        model._refit._successes["base_camera"], later._refit._successes["base_camera"]
    )
    np.testing.assert_array_equal(model._refit._ends, later._refit._ends)
    next(folders["negative_dir"].iterdir()).unlink()
    gone = made(data, **{name: str(path) for name, path in folders.items()})
    with pytest.raises(ValueError, match="1 of the 12 trajectories that the classifier was fit"):
        gone.prepare()


# --- in a run


@pytest.fixture(scope="module")
def fit(data, tmp_path_factory):
    return write_fit(tmp_path_factory.mktemp("fit"), data=data, dropout=0.3)


@pytest.mark.parametrize("policy", ["ppo", "sac"])
def test_a_run_that_refits_resumes_exactly(policy, fit, tmp_path):
    for name, steps in (("one", 128), ("run", 64)):
        config = config_of(tmp_path / name, fit, policy, cotrain=True, **QUICK)
        train(config, f"run.max_steps={steps}", display="none")
    resume(tmp_path / "run", "run.max_steps=128")
    assert_same_run(tmp_path / "one", tmp_path / "run")
    assert sum("reward/classifier/rejected" in line for line in metrics_of(tmp_path / "one")) >= 2
    whole = load_checkpoint(tmp_path / "one/checkpoints", parts=("reward",))[0]["reward"]
    alone = load_checkpoint(tmp_path / "one/reward")[0]["state"]
    (frames,) = whole["terms"]["classifier"]["refit"]["memory"]["rows"].values()
    assert len(frames) >= 8
    assert alone["terms"]["classifier"]["refit"]["memory"]["rows"] == {}


def test_another_run_can_start_from_a_refitted_classifier(fit, tmp_path):
    train(config_of(tmp_path / "one", fit, cotrain=True, **QUICK), display="none")
    config = config_of(tmp_path / "run", str(tmp_path / "one"), cotrain=True, **QUICK)
    train(config, display="none")
    states = [
        load_checkpoint(tmp_path / name / "reward")[0]["state"]["terms"]["classifier"]
        for name in ("one", "run")
    ]
    first, then = (state["refit"]["network"] for state in states)
    assert any(not same(first[key], then[key]) for key in first), "it was refitted again"
    for name, options in (("frozen", {}), ("from", {"from_reward": tmp_path / "one"})):
        train(config_of(tmp_path / name, str(tmp_path / "one")), display="none", **options)
        kept = load_checkpoint(tmp_path / name / "reward")[0]["state"]["terms"]["classifier"]
        before, after = states[0]["refit"]["network"], kept["refit"]["network"]
        assert all(same(before[key], after[key]) for key in before)


def test_without_cotrain_nothing_is_refitted(fit, tmp_path):
    train(config_of(tmp_path / "run", fit), display="none")
    assert not any("rejected" in key for line in metrics_of(tmp_path / "run") for key in line)
    saved = load_checkpoint(tmp_path / "run/reward")[0]["state"]["terms"]["classifier"]
    assert "refit" not in saved


def test_a_run_needs_the_trajectories_of_the_fit(tmp_path):
    folders = write_data(tmp_path / "data")
    fit = write_fit(tmp_path / "fit", data=folders)
    train(config_of(tmp_path / "run", fit, cotrain=True, **QUICK), display="none")
    shutil.rmtree(folders["positive_dir"])
    with pytest.raises((FileNotFoundError, ValueError), match="positive"):
        train(config_of(tmp_path / "other", fit, cotrain=True, **QUICK), display="none")
    assert not (tmp_path / "other").exists()
    with pytest.raises((FileNotFoundError, ValueError), match="positive"):
        resume(tmp_path / "run", "run.max_steps=256")

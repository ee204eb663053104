"""A fit on small pictures: what it learns, says, saves, and refuses."""

import json
import math
import os
import re
import shutil
import signal

import numpy as np
import pytest
import torch

from guerdon.nn import seeded
from guerdon.nn.classifier import BinaryRewardClassifier
from guerdon.ops import classification
from guerdon.training import fit as fit_module
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.fit import choose, fit, measured, warnings_of
from guerdon.training.fit_files import ScheduleConfig, check_fits, compose_fit, load_classifier
from guerdon.training.fit_steps import learning_rate
from tests.training.picturing import config, frames, sections


def fitted(save_dir, *overrides, data=None, overwrite=False, **changes):
    return fit(
        config(save_dir, *overrides, **changes),
        frames=frames() if data is None else data,
        display="none",
        overwrite=overwrite,
    )


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A good fit, and its folder."""
    folder = tmp_path_factory.mktemp("fit") / "classifier"
    return fitted(folder, num_epochs=20), folder


def scored(path, data):
    members, meta = load_classifier(path)
    images = {key: torch.from_numpy(array) for key, array in data.images.items()}
    with torch.no_grad():
        logits = np.stack([member(images).numpy() for member in members])
    return classification.ensemble_probability(logits, meta["temperature"]), meta


# --- what is learned


def measure(logits, labels, episodes, target_fpr):
    return measured(logits, labels, episodes, *choose(logits, labels, target_fpr))


def test_success_is_learned_and_seen_in_new_episodes(learned):
    result, folder = learned
    assert result["test"]["pr_auc"] > 0.95
    assert result["stop_reason"] in ("finished", "no_improvement")
    new = frames(seed=9)
    probability, meta = scored(folder, new)
    assert classification.pr_auc(probability, new.labels) > 0.95
    assert classification.recall(probability, new.labels, meta["threshold"]) > 0.7
    assert classification.expected_calibration_error(probability, new.labels) < 0.15


def test_what_is_chosen_comes_from_validation_and_what_is_reported_from_the_test(learned):
    result, folder = learned
    assert result["validation"]["false_positive_rate"] <= 0.01
    assert result["validation"]["threshold"] >= 0.5
    # With seed and shares, the checkpoint says which episodes those were.
    data = frames()
    probability, meta = scored(folder, data)
    parts = data.split(np.random.default_rng(meta["seed"]), *meta["split"])
    assert len({*np.concatenate([np.unique(data.episodes[rows]) for rows in parts])}) == 60
    passed = probability.astype(np.float32) >= meta["threshold"]
    for name, rows in (("test", parts[1]), ("validation", parts[2])):
        found, labels = result[name], data.labels[rows]
        assert passed[rows][~labels].mean() == pytest.approx(found["false_positive_rate"])
        assert passed[rows][labels].mean() == pytest.approx(found["recall"])
        assert labels.mean() == found["base_rate"]
        assert found["frames"] == len(rows)
    np.testing.assert_array_equal(meta["held_out"]["labels"], data.labels[parts[1]])


def test_images_of_the_test_choose_nothing(tmp_path):
    data, changed = frames(), frames()
    tested = data.split(np.random.default_rng(0), 0.15, 0.15)[1]
    changed.images["base_camera"][tested] //= 2
    one, other = (
        fitted(tmp_path / name, data=each, num_epochs=4)
        for name, each in (("one", data), ("other", changed))
    )
    assert one["validation"] == other["validation"]
    assert one["test"]["loss"] != other["test"]["loss"]


@pytest.mark.parametrize(
    "labels",
    [
        lambda true, generator: generator.permutation(true),
        lambda true, _: np.roll(true, 1),  # on the frame after
    ],
    ids=["random", "shifted"],
)
def test_poisoned_labels_are_visible(tmp_path, labels):
    result = fitted(tmp_path / "fit", data=frames(labels=labels))
    assert result["test"]["pr_auc"] < 0.9
    assert any("see whether labels belong to the frames" in line for line in result["warnings"])


def test_several_cameras_are_looked_through(tmp_path):
    cameras = ("front", "wrist")
    data = frames(cameras=cameras)
    data.images["wrist"][:] = 90  # success shows in front only
    model = {**sections("x")["model"], "image_keys": list(cameras)}
    result = fitted(tmp_path / "fit", data=data, model=model, num_epochs=12)
    assert result["test"]["pr_auc"] > 0.9
    assert load_classifier(tmp_path / "fit")[0][0].config.image_keys == list(cameras)


def test_a_fit_repeats_exactly_and_leaves_the_global_generator_alone(tmp_path):
    before = torch.random.get_rng_state()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        fitted(tmp_path / name, f"seed={seed}", num_epochs=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    first, again, other = (
        load_classifier(tmp_path / name)[0][0].state_dict() for name in ("a", "b", "c")
    )
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not all(torch.equal(value, other[name]) for name, value in first.items())


def test_the_members_of_an_ensemble_differ(tmp_path):
    fitted(tmp_path / "fit", members=2, num_epochs=1)
    first, second = load_classifier(tmp_path / "fit")[0]
    weights = [member.encoders[0][0].weight for member in (first, second)]
    assert not torch.allclose(*weights)


def test_pictures_that_say_nothing_get_the_base_rate_though_batches_are_balanced(tmp_path):
    data = frames()
    data.images["base_camera"][:] = 90
    fitted(tmp_path / "fit", "reward.data.synthetic_failures=false", data=data)
    member = load_classifier(tmp_path / "fit")[0][0]
    with torch.no_grad():
        logit = float(member({"base_camera": torch.from_numpy(data.images["base_camera"][:1])}))
    assert 1 / (1 + math.exp(-logit)) == pytest.approx(data.labels.mean(), abs=0.1)


# --- frozen encoders


def test_the_features_of_a_frozen_encoder_are_computed_once_for_each_frame(tmp_path, monkeypatch):
    path = tmp_path / "encoder.safetensors"
    with seeded(0):
        BinaryRewardClassifier(config("x").reward.model).export_encoder(path)
    seen = []
    encode = BinaryRewardClassifier.encode

    def counted(self, images):
        seen.append(len(images["base_camera"]))
        return encode(self, images)

    monkeypatch.setattr(BinaryRewardClassifier, "encode", counted)
    monkeypatch.setattr(fit_module, "probe_frames", lambda *_: [])
    data = frames()
    result = fitted(
        tmp_path / "fit", f"reward.model.pretrained_encoder_path={path}",
        "reward.model.freeze_encoder=true", "reward.data.synthetic_failures=false",
        data=data, members=2,
    )  # fmt: skip
    assert sum(seen) == len(data)
    assert result["steps"] > 20
    before = BinaryRewardClassifier(config("x", model={
        **sections("x")["model"], "pretrained_encoder_path": str(path)}).reward.model)  # fmt: skip
    for member in load_classifier(tmp_path / "fit")[0]:
        for name, value in member.encoders.state_dict().items():
            assert torch.equal(value, before.encoders.state_dict()[name])
    path.unlink()
    load_classifier(tmp_path / "fit")  # the weights are in the checkpoint


# --- what is written


def test_checkpoints_are_exact_and_say_what_they_are(tmp_path):
    data = frames()
    result = fitted(tmp_path / "fit", data=data)
    root = tmp_path / "fit"
    steps = checkpoint_steps(root)
    assert steps[-1] == result["steps"]
    assert all(step % 20 == 0 or step == result["steps"] for step in steps)
    state, _ = load_checkpoint(root / f"step_{result['best_step']}")
    saved = state["classifier"]
    for path in (root, root / "best", root / f"step_{result['best_step']}"):
        members, meta = load_classifier(path)
        for name, value in members[0].state_dict().items():
            assert torch.equal(value, saved["members"][0][name])
        assert not members[0].training
    assert meta["model"]["image_keys"] == ["base_camera"]
    assert meta["model"]["image_size"] == [3, 32, 32]
    assert meta["validation"] == result["validation"]
    assert meta["threshold"] == result["validation"]["threshold"]
    assert meta["temperature"] == result["validation"]["temperature"]
    assert meta["data"]["hash"] == data.hash
    assert (meta["data"]["frames"], meta["data"]["trajectories"]) == (360, 60)
    assert meta["test"] == result["test"]
    assert (meta["seed"], meta["split"], meta["target_fpr"]) == (0, [0.15, 0.15], 0.01)


def test_the_best_checkpoint_is_that_of_the_best_area(tmp_path):
    result = fitted(tmp_path / "fit", keep=100, patience=None)
    ranks = {}
    for step in checkpoint_steps(tmp_path / "fit"):
        numbers = load_classifier(tmp_path / "fit" / f"step_{step}")[1]["validation"]
        ranks[step] = (numbers["pr_auc"], -numbers["loss"])
    assert len(ranks) > 1
    assert result["best_step"] == max(ranks, key=ranks.__getitem__)
    assert result["validation"]["pr_auc"] == ranks[result["best_step"]][0]


def test_metrics_report_and_summary_are_in_the_folder(learned):
    result, folder = learned
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines][:2] == [10, 20]
    assert lines[0]["train/loss"] > 0
    assert "reward/pr_auc" in lines[1]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["validation"] == result["validation"]
    log = (folder / "log.txt").read_text()
    assert "positive: 40 trajectories, 240 frames, 80 with label 1" in log
    again = compose_fit(folder / "fit.yaml")
    assert again.reward.save_dir == str(folder)


def test_the_report_comes_first_and_progress_in_lines(tmp_path, capsys):
    fit(config(tmp_path / "fit", num_epochs=2), frames=frames(), display="lines")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("positive: 40 trajectories")
    assert lines[1].startswith("negative: 20 trajectories")
    assert "validating on 54 of other episodes" in lines[2]
    assert "testing on 54 of yet others" in lines[2]
    assert re.match(r"14 steps of .* s: fitting takes about \d+ seconds$", lines[4])
    assert any(line.startswith("steps 10  loss ") for line in lines)
    assert any("PR-AUC" in line for line in lines)


@pytest.mark.usefixtures("signals")
def test_an_interrupt_saves_what_there_is(tmp_path):
    data, report = frames(), "Frames.report"

    class Interrupting(type(data)):
        def report(self):
            os.kill(os.getpid(), signal.SIGINT)  # when the fit is about to begin
            return report

    data.__class__ = Interrupting
    result = fitted(tmp_path / "fit", data=data, num_epochs=1000)
    assert (result["stop_reason"], result["steps"]) == ("interrupted", 1)
    assert load_classifier(tmp_path / "fit")[1]["validation"] == result["validation"]


# --- what is refused


def test_a_folder_with_another_fit_is_not_mixed_with(tmp_path):
    folder = tmp_path / "fit"
    fitted(folder, num_epochs=2, keep=50, save_interval=3)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"already holds a fit.*--overwrite"):
        fitted(folder, num_epochs=1)
    result = fitted(folder, num_epochs=1, overwrite=True)
    assert checkpoint_steps(folder) == [result["steps"]]
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_fit_that_was_killed_before_its_first_checkpoint_is_not_in_the_way(tmp_path):
    folder = tmp_path / "fit"
    fitted(folder, num_epochs=1)
    for path in (*folder.glob("step_*"), folder / "best", folder / "latest"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = fitted(folder, num_epochs=1)
    assert checkpoint_steps(folder) == [result["steps"]]


def test_what_is_no_fit_is_never_overwritten(tmp_path):
    (tmp_path / "config.yaml").write_text("env: {}\n")
    with pytest.raises(FileExistsError, match="has other files than those of a fit"):
        fitted(tmp_path, num_epochs=1, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_fit_that_cannot_begin_replaces_nothing(tmp_path):
    fitted(tmp_path / "fit", num_epochs=1)
    before = (tmp_path / "fit" / "summary.json").read_bytes()
    path = tmp_path / "gone.safetensors"
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors"):
        fitted(tmp_path / "fit", f"reward.model.pretrained_encoder_path={path}", overwrite=True)
    assert (tmp_path / "fit" / "summary.json").read_bytes() == before


def test_too_few_trajectories_are_named(tmp_path):
    data = frames(number=2)  # one success only
    with pytest.raises(ValueError, match="with success are in too few of the 2 trajectories"):
        fitted(tmp_path / "fit", data=data)
    assert not (tmp_path / "fit").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ValueError, match="device is 'cuda:1', but torch finds no such device"):
        fitted(tmp_path / "fit", "device=cuda:1")


# --- loading


def test_what_is_no_classifier_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no classifier"):
        load_classifier(tmp_path / "none")
    (tmp_path / "reward_model.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match="is no classifier of guerdon"):
        load_classifier(tmp_path / "reward_model.pt")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_classifier(tmp_path)


def test_a_classifier_that_is_not_what_was_asked_for_is_named_by_its_field(learned):
    meta = load_classifier(learned[1])[1]
    check_fits(meta, {"hidden_dim": 16, "image_size": (3, 32, 32), "width": None,
                      "freeze_encoder": True})  # fmt: skip
    with pytest.raises(ValueError, match=r"has reward\.model\.hidden_dim 16, but 128 was asked"):
        check_fits(meta, {"hidden_dim": 128})
    with pytest.raises(ValueError, match=r"has reward\.model\.image_keys \['base_camera'\], but"):
        check_fits(meta, {"image_keys": ["wrist"]})


# --- parts


def test_the_step_size_follows_its_schedule():
    def rates(**options):
        schedule = ScheduleConfig(**{"type": "constant", "warmup_steps": 0} | options)
        return [learning_rate(1.0, schedule, step, 6) for step in range(1, 7)]

    assert rates() == [1.0] * 6
    assert rates(warmup_steps=2) == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    linear = rates(type="linear", warmup_steps=2, min_lr=0.2)
    assert linear == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2])
    cosine = rates(type="cosine", min_lr=0.5)
    assert cosine[2] == pytest.approx(0.75)
    assert cosine[-1] == pytest.approx(0.5)


def test_validation_counts_frames_and_episodes():
    labels = np.array([0, 0, 1, 0, 0, 0, 0, 0, 1], bool)
    episodes = np.repeat([4, 5, 6], 3)
    logits = np.array([[-3, -3, 3, -3, 4, -3, -3, -3, 5]], float)
    found = measure(logits, labels, episodes, 0.2)
    assert found["pr_auc"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["threshold"] == 0.5
    assert (found["precision"], found["recall"]) == (pytest.approx(2 / 3), 1.0)
    assert found["false_positive_rate"] == pytest.approx(1 / 7)
    assert found["episode_false_positive_rate"] == 1.0
    assert (found["frames"], found["positives"]) == (9, 2)
    assert (found["episodes"], found["positive_episodes"]) == (3, 2)
    strict = measure(logits, labels, episodes, 0.0)
    assert strict["threshold"] > 0.5
    assert strict["episode_false_positive_rate"] == 0.0
    assert (strict["precision"], strict["recall"]) == (1.0, 0.5)
    texts = list(warnings_of(strict))
    assert "only 2 frames with success, from 2 episodes" in texts[0]
    assert "PR-AUC is 0.833, below 0.9" in texts[1]
    assert len(texts) == 2


def test_without_failed_episodes_nothing_is_said_of_their_false_positives():
    labels = np.tile(np.arange(20) < 10, 5)
    logits = np.where(labels, 5.0, -5.0)[None]
    found = measure(logits, labels, np.repeat(np.arange(5), 20), 0.01)
    assert math.isnan(found["episode_false_positive_rate"])
    (said,) = warnings_of(found)
    assert said.startswith("the test has no failed episode: nothing can be said of false posit")
    labels[:20] = False
    assert not any("no failed episode" in said for said in warnings_of(
        measure(logits, labels, np.repeat(np.arange(5), 20), 0.01)
    ))  # fmt: skip

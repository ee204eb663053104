"""What a fit checks without an environment: blank and changed frames, labels, its own length."""

import itertools
import sys

import numpy as np
import pytest
import torch

from guerdon.nn import augment, seeded
from guerdon.nn.classifier import BinaryRewardClassifier
from guerdon.training.fit import fit
from guerdon.training.fit_checks import (
    PROBE_COLUMNS,
    _suspects,
    label_warnings,
    probe_cells,
    probe_frames,
    probe_warnings,
    suspected_labels,
)
from guerdon.training.fit_files import compose_fit, load_classifier
from guerdon.training.fit_steps import Inputs, Learner
from tests.training.picturing import config, frames, sections


def fitted(folder, *overrides, data=None, **changes):
    return fit(config(folder, *overrides, **changes), frames=data or frames(), display="none")


def probability_of(folder, images):
    members, meta = load_classifier(folder)
    with torch.no_grad():
        logits = torch.stack([member({"base_camera": images}) for member in members])
    return torch.sigmoid(logits / meta["temperature"]).mean(0)


def uniform_images(levels=6):
    values = torch.linspace(0, 255, levels).round().to(torch.uint8)
    colours = torch.tensor(list(itertools.product(values.tolist(), repeat=3)), dtype=torch.uint8)
    return colours[:, :, None, None].expand(-1, 3, 32, 32)


# --- synthetic failures


def test_no_uniform_image_is_a_success(tmp_path):
    # One checkpoint, the last one: the best one by frames of the data alone can be an early one.
    result = fitted(tmp_path / "fit", num_epochs=None, save_interval=1_000)
    assert result["test"]["recall"] > 0.7
    assert probability_of(tmp_path / "fit", uniform_images()).max() < 0.05


def test_without_synthetic_failures_some_are_and_the_fit_warns(tmp_path):
    option = "reward.data.synthetic_failures=false"
    result = fitted(tmp_path / "fit", option, num_epochs=12)
    assert probability_of(tmp_path / "fit", uniform_images()).max() > 0.5
    (row,) = (row for row in result["probes"] if row["kind"] == "uniform colours")
    assert row["failure_accepted"] > 0.01
    (said,) = (each for each in result["warnings"] if "'uniform colours' are accepted" in each)
    assert "leave reward.data.synthetic_failures on, or collect such frames as failures" in said


def test_a_frozen_encoder_has_synthetic_failures_too(tmp_path):
    path = tmp_path / "encoder.safetensors"
    with seeded(0):
        BinaryRewardClassifier(config("x").reward.model).export_encoder(path)
    data = frames()
    section = config(
        "x", f"reward.model.pretrained_encoder_path={path}", "reward.model.freeze_encoder=true"
    ).reward
    inputs = Inputs(data, "cpu", augment=True, failures=3)
    rows = np.arange(len(data))
    learner = Learner(section, np.random.SeedSequence(0), rows, data.labels, 0.0, "cpu")
    inputs.encode(learner.member, rows)
    assert len(inputs.logits(learner.member, torch.arange(8), learner.generator)) == 11
    assert len(inputs.logits(learner.member, torch.arange(8))) == 8


def test_kinds_of_probe_that_training_never_uses():
    data = frames()
    inputs = Inputs(data, "cpu", augment=True, failures=6)
    section, rows = config("x").reward, np.arange(len(data))
    learner = Learner(section, np.random.SeedSequence(0), rows, data.labels, 0.0, "cpu")
    called = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename == augment.__file__:
            called.add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        learner.step(inputs, 1e-3)
    finally:
        sys.setprofile(None)
    assert {change.__name__ for change in augment.SYNTHETIC} <= called
    held_out = {probe.change for probe in augment.PROBES.values() if not probe.trained}
    assert len(held_out) >= 2
    assert not held_out & set(augment.TRAINED)
    assert not {change.__name__ for change in held_out} & called
    # A change that is only a probe, but of a kind that training uses, is not called held out.
    assert {augment.colours, augment.over_expose, augment.wash_out} <= set(augment.TRAINED)


# --- probes


def test_the_table_has_a_row_for_each_kind_and_is_in_the_summary(tmp_path):
    result = fitted(tmp_path / "fit", num_epochs=12)
    kinds = [row["kind"] for row in result["probes"]]
    assert kinds == ["unchanged", *augment.PROBES, "clipped episodes"]
    usual = result["probes"][0]
    assert usual["success_mean"] > 0.8
    assert usual["success_accepted"] == pytest.approx(result["test"]["recall"])
    assert usual["failure_accepted"] == pytest.approx(result["test"]["false_positive_rate"])
    for row in result["probes"]:
        cells = probe_cells(row)
        assert len(cells) == len(PROBE_COLUMNS)
        shares = [row[f"{side}_accepted"] for side in ("success", "failure")]
        assert all(share is None or 0 <= share <= 1 for share in shares)


def test_a_classifier_that_accepts_everything_is_found_out():
    section, data = config("x").reward, frames()
    with seeded(0):
        member = BinaryRewardClassifier(section.model)
    member.begin_at(20.0)
    table = probe_frames([member], data, np.arange(len(data)), 1.0, 0.5)
    said = probe_warnings(table)
    assert "synthetic_failures" not in " ".join(said)
    for kind, probe in augment.PROBES.items():
        named = [each for each in said if repr(kind) in each and "100%" in each]
        assert bool(named) == (probe.keeps == "nothing")
    assert any("in 100% of successful episodes a frame before the first success" in e for e in said)
    member.begin_at(-20.0)
    assert probe_warnings(probe_frames([member], data, np.arange(len(data)), 1.0, 0.5)) == []


def test_warnings_by_what_a_change_has_to_keep():
    def row(kind, keeps, success, failure):
        return {"kind": kind, "keeps": keeps, "success_accepted": success,
                "failure_accepted": failure}  # fmt: skip

    usual = row("unchanged", None, 0.9, 0.01)
    assert probe_warnings([usual, row("noise", "nothing", None, 0.01)]) == []
    assert "2% of frames of the kind 'noise'" in probe_warnings(
        [usual, row("noise", "nothing", None, 0.02)]
    )[0]  # fmt: skip
    assert probe_warnings([usual, row("occluded", "something", 0.0, 0.05)]) == []
    assert (
        "10% of failures are accepted as success when they are occluded (1% as"
        in (probe_warnings([usual, row("occluded", "something", 0.9, 0.1)])[0])
    )
    assert probe_warnings([usual, row("shifted", "label", 0.75, 0.01)]) == []
    (said,) = probe_warnings([usual, row("shifted", "label", 0.45, 0.01)])
    assert said.startswith("50% of the accepted successes are lost when they are shifted")
    assert probe_warnings([]) == []


def test_clipped_episodes_end_at_or_before_their_first_success():
    data = frames(number=6)
    data.images["base_camera"][:] = 0
    firsts = []
    for episode in np.unique(data.episodes):
        own = np.flatnonzero(data.episodes == episode)
        if data.labels[own].any():
            first = own[np.argmax(data.labels[own])]
            data.images["base_camera"][first] = 255
            firsts.append(first)
    member = BinaryRewardClassifier(config("x").reward.model)
    *_, row = probe_frames([member], data, np.arange(len(data)), 1.0, 0.5)
    with torch.no_grad():
        bright, dark = torch.sigmoid(member.eval()({"base_camera": torch.stack(
            [torch.full((3, 32, 32), value, dtype=torch.uint8) for value in (255, 0)]
        )})).tolist()  # fmt: skip
    assert len(firsts) == 4
    assert row["success_mean"] == pytest.approx(max(bright, dark), abs=1e-5)
    assert row["failure_mean"] == pytest.approx(dark, abs=1e-5)


# --- labels


def noisy(share, seed=1):
    def flip(true, _):
        return true ^ (np.random.default_rng(seed).random(len(true)) < share)

    return frames(number=90, labels=flip)


def test_noise_in_labels_is_remarked_on_and_clean_labels_are_not(tmp_path):
    data = {"check_labels": True}
    results = {
        share: fit(
            config(tmp_path / str(share), data=data, num_epochs=2),
            frames=noisy(share),
            display="none",
        )
        for share in (0.0, 0.2)
    }
    assert results[0.0]["labels"]["suspected"] < 0.05
    assert not any("labels look wrong" in each for each in results[0.0]["warnings"])
    found = results[0.2]["labels"]
    assert 0.1 < found["suspected"] < 0.35
    assert any("of the labels look wrong" in each for each in results[0.2]["warnings"])
    wrong, true = noisy(0.2), noisy(0.0)
    rows = [each["row"] for each in found["frames"]]
    assert (wrong.labels != true.labels)[rows].mean() > 0.8
    for each in found["frames"]:
        assert each["label"] == wrong.labels[each["row"]]
        assert each["frame"] == each["row"] % 6


def test_the_rule_for_suspected_labels_by_hand():
    data = frames(number=2)  # 12 frames, of which 2 show success
    rows = np.arange(12)
    data.labels = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1], bool)
    probability = np.array([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.8, 0.9, 0.9, 0.9, 0.05])
    # Means of what labels claim: 0.6875 of label 1 and 0.8125 of label 0.
    found = _suspects(data, rows, probability)
    assert [(each["row"], each["frame"], each["label"]) for each in found["frames"]] == [
        (11, 5, 1), (7, 1, 0),
    ]  # fmt: skip
    assert (found["suspected_successes"], found["suspected_failures"]) == (1 / 4, 1 / 8)
    assert found["suspected"] == pytest.approx(2 / 12)
    assert found["frames"][0]["file"] is None


@pytest.mark.parametrize(
    ("shares", "warns"), [((0.07, 0.07, 0.07), False), ((0.11, 0.1, 0.12), True),
                          ((0.05, 0.22, 0.02), True), ((0.05, 0.02, 0.22), True)],
)  # fmt: skip
def test_many_suspected_labels_are_a_warning(shares, warns):
    names = ("suspected", "suspected_successes", "suspected_failures")
    found = label_warnings(dict(zip(names, shares, strict=True)), frames())
    assert ["look wrong" in each for each in found] == [True] * warns


def test_too_few_episodes_are_not_checked_and_a_stop_ends_the_check():
    section = compose_fit({"reward": sections("x")}).reward
    assert suspected_labels(frames(number=3), section, 0) is None
    assert suspected_labels(frames(), section, 0, stop=lambda: True) is None


def test_episodes_that_begin_with_success_may_be_inverted():
    data = frames()
    assert label_warnings(None, data) == []
    data.labels = ~data.labels
    said = "100% of the trajectories with success begin with a frame with label 1: see whether 0"
    assert said in label_warnings(None, data)[0]
    data = frames()  # and if only the labels of successful trajectories are
    positive = data.from_positive[data.episodes]
    data.labels[positive] = ~data.labels[positive]
    assert said in label_warnings(None, data)[0]


def test_labels_that_cannot_be_checked_are_a_warning():
    data = frames()
    data.from_positive[:] = True
    (said,) = label_warnings(None, data)
    assert "it cannot be checked whether labels contradict their folders" in said


# --- length


def test_a_fit_that_does_not_improve_stops(tmp_path):
    data = frames(labels=lambda true, generator: generator.permutation(true))
    result = fitted(tmp_path / "fit", data=data, num_epochs=200, patience=2)
    assert result["stop_reason"] == "no_improvement"
    assert result["steps"] == result["best_step"] + 2 * 20
    assert not (tmp_path / "fit" / "state").exists()
    longer = fitted(tmp_path / "longer", data=data, num_epochs=20, patience=None)
    assert longer["stop_reason"] == "finished"


@pytest.mark.parametrize(("number", "epochs"), [(60, 40), (600, 11)])
def test_epochs_follow_from_the_size_of_the_data(tmp_path, number, epochs):
    from guerdon.training.fit import _Fit

    changes = {"num_epochs": None, "save_interval": None}
    process = _Fit(config(tmp_path / "fit", **changes), frames(number=number))
    assert process.total == epochs * process.per_epoch
    assert process.save_interval == -(-process.total // 6)

"""All frames of two folders: what is loaded, skipped, reported and split."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guerdon.data.frames import Frames, Trajectory, load_frames, write_trajectory


def make(labels, mark=0, cameras=("base_camera",), size=(1, 2, 2)):
    """A trajectory whose pixels are the mark and, in steps of one, the frame."""
    numbers = np.arange(len(labels), dtype=np.uint8)[:, None, None, None] + np.uint8(mark)
    images = {key: np.tile(numbers, (1, *size)) for key in cameras}
    return Trajectory(images, np.float32(labels), any(labels))


@pytest.fixture
def folders(tmp_path):
    positive, negative = tmp_path / "positive", tmp_path / "negative"
    write_trajectory(positive, make([0, 0, 1], 10))
    write_trajectory(positive, make([0, 1], 20), format="npy")
    write_trajectory(negative, make([0, 0.4], 30))
    return positive, negative


KEYS = ["base_camera"]


def test_all_frames_are_loaded_in_order(folders):
    seen = []
    frames = load_frames(*folders, KEYS, progress=lambda *done: seen.append(done))
    assert frames.images["base_camera"].dtype == np.uint8
    assert frames.images["base_camera"].shape == (7, 1, 2, 2)
    assert frames.images["base_camera"][:, 0, 1, 1].tolist() == [10, 11, 12, 20, 21, 30, 31]
    assert frames.labels.tolist() == [False, False, True, False, True, False, False]
    assert frames.episodes.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert frames.from_positive.tolist() == [True, True, False]
    assert frames.skipped == []
    assert len(frames) == 7
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_report_tells_of_both_folders(folders):
    assert load_frames(*folders, KEYS).report().splitlines() == [
        "positive: 2 trajectories, 5 frames, 2 with label 1 (40.0%), 3 with label 0",
        "negative: 1 trajectories, 2 frames, 0 with label 1 (0.0%), 2 with label 0",
    ]


def test_the_hash_is_that_of_the_contents(folders, tmp_path):
    frames = load_frames(*folders, KEYS)
    assert len(frames.hash) == 64
    elsewhere = tmp_path / "a", tmp_path / "b"
    write_trajectory(elsewhere[1], make([0, 0.4], 30), format="npy")
    write_trajectory(elsewhere[0], make([0, 1], 20))
    write_trajectory(elsewhere[0], make([0, 0, 1], 10))
    assert load_frames(*elsewhere, KEYS).hash == frames.hash
    write_trajectory(elsewhere[1], make([0], 40))
    assert load_frames(*elsewhere, KEYS).hash != frames.hash


@pytest.mark.parametrize("change", ["pixel", "label", "border", "camera"])
def test_the_hash_changes_with_any_of_the_contents(folders, change):
    frames = load_frames(*folders, KEYS)
    other = replace(load_frames(*folders, KEYS))  # whose hash is not known yet
    if change == "pixel":
        other.images["base_camera"][3, 0, 0, 1] += 1
    elif change == "label":
        other.labels[0] = True
    elif change == "border":
        other.episodes[2] = 1
    else:
        other.images["side"] = other.images.pop("base_camera")
    assert other.hash != frames.hash


def test_files_that_are_no_trajectories_are_skipped_and_named(folders):
    positive, negative = folders
    (positive / "000000.npz").write_bytes((positive / "000000.npz").read_bytes()[:100])
    np.save(negative / "000009.npy", np.zeros(3))
    (negative / "notes.txt").write_text("hello")
    (negative / ".half.tmp").write_bytes(b"")
    frames = load_frames(positive, negative, KEYS)
    assert frames.images["base_camera"][:, 0, 0, 0].tolist() == [20, 21, 30, 31]
    assert [path.name for path, _ in frames.skipped] == ["000000.npz", "000009.npy", "notes.txt"]
    report = frames.report().splitlines()
    assert report[2] == "skipped files: 3"
    assert report[3] == (
        f"  {positive / '000000.npz'} is damaged or not a trajectory: File is not a zip file"
    )
    assert report[4].startswith(
        f"  {negative / '000009.npy'} is damaged or not a trajectory: it hol"
    )
    assert report[5].endswith(
        "notes.txt is damaged or not a trajectory: it is neither .npz nor .npy"
    )


def test_equal_trajectories_are_kept_once(folders):
    distinct = load_frames(*folders, KEYS)
    positive, negative = folders
    write_trajectory(positive, make([0, 1], 20))
    write_trajectory(positive, make([0, 0.6], 20))  # the same labels in halves
    write_trajectory(negative, make([0, 0, 1], 10), format="npy")
    frames = load_frames(*folders, KEYS)
    assert frames.copies == 3
    said = "\n3 duplicate trajectories were left out"
    assert frames.report() == distinct.report() + said
    assert frames.images["base_camera"][:, 0, 0, 0].tolist() == [10, 11, 12, 20, 21, 30, 31]
    assert frames.episodes.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert frames.from_positive.tolist() == [True, True, False]
    assert frames.hash == distinct.hash == replace(distinct).hash


def test_trajectories_that_differ_anywhere_are_no_copies(folders):
    positive, _ = folders
    write_trajectory(positive, make([1, 1], 20))  # a label
    write_trajectory(positive, make([0, 1], 21))  # pixels
    write_trajectory(positive, make([0, 1, 1], 20))  # length
    frames = load_frames(*folders, KEYS)
    assert frames.copies == 0
    assert len(frames.from_positive) == 6


def test_images_in_any_order_of_memory_are_loaded(tmp_path):
    trajectory = make([0, 1], 5)
    write_trajectory(tmp_path / "a", trajectory)
    images = {key: np.asfortranarray(array) for key, array in trajectory.images.items()}
    write_trajectory(tmp_path / "b", Trajectory(images, trajectory.labels, True))
    assert load_frames(tmp_path / "a", tmp_path / "b", KEYS).copies == 1


def test_a_report_says_that_there_are_no_failures(folders, tmp_path):
    (tmp_path / "empty").mkdir()
    assert load_frames(folders[0], tmp_path / "empty", KEYS).report().splitlines()[1:] == [
        "negative: 0 trajectories, 0 frames, 0 with label 1 (0.0%), 0 with label 0",
        "there is no negative trajectory: the false-positive rate on failures is unknown",
    ]


# --- errors


def test_a_missing_folder_is_named(folders, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere: collect trajectories"):
        load_frames(folders[0], tmp_path / "nowhere", KEYS)


def test_one_folder_for_both_is_an_error(folders):
    with pytest.raises(ValueError, match="give two folders"):
        load_frames(folders[0], folders[0] / ".." / "positive", KEYS)


def test_folders_without_trajectories_are_an_error(tmp_path):
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
    (folders[0] / "notes.txt").touch()
    with pytest.raises(
        ValueError, match=r"all files in .*a and .*b \(1\) were skipped: .*notes.txt "
    ):
        load_frames(*folders, KEYS)
    (folders[0] / "notes.txt").unlink()
    with pytest.raises(ValueError, match=r"no trajectory in .*a and .*b: collect some first"):
        load_frames(*folders, KEYS)


def test_folders_the_wrong_way_round_are_an_error(tmp_path):
    write_trajectory(tmp_path / "a", make([0, 1]))
    write_trajectory(tmp_path / "b", make([0, 0], 10))
    with pytest.raises(
        ValueError, match=r"no frame in .*b has label 1, but some in .*a have: the "
    ):
        load_frames(tmp_path / "b", tmp_path / "a", KEYS)


def test_labels_that_contradict_their_folder_are_refused(folders):
    wrong = write_trajectory(folders[1], make([0, 1, 1], 60))
    named = f"{wrong} is a negative trajectory, but has 2 frames with label 1: see whether"
    with pytest.raises(ValueError, match=f"^{re.escape(named)}"):
        load_frames(*folders, KEYS)
    write_trajectory(folders[1], make([1], 70))
    with pytest.raises(ValueError, match=r"label 1 \(2 trajectories contradict their folder\)"):
        load_frames(*folders, KEYS)


def test_inverted_labels_are_refused(tmp_path):
    for number, labels in enumerate(([0, 1], [1, 0], [0, 0], [0])):
        folder = tmp_path / ("positive" if any(labels) else "negative")
        inverted = make([1 - label for label in labels], 10 * number)
        write_trajectory(folder, inverted)
    with pytest.raises(ValueError, match="negative trajectory, but has 2 frames with label 1"):
        load_frames(tmp_path / "positive", tmp_path / "negative", KEYS)


def test_a_positive_trajectory_may_succeed_between_its_frames(folders):
    one = make([0, 0], 80)
    write_trajectory(folders[0], Trajectory(one.images, one.labels, True))
    load_frames(*folders, KEYS)
    wrong = write_trajectory(folders[0], make([0, 0], 90))
    with pytest.raises(ValueError, match=f"{wrong.name} is a positive .* has no frames with label"):
        load_frames(*folders, KEYS)


def test_a_class_without_frames_is_an_error_that_says_what_to_do(folders, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"no frame in .*empty has label 1: collect until the pol"):
        load_frames(empty, folders[1], KEYS)
    write_trajectory(tmp_path / "all", make([1, 1]))
    with pytest.raises(ValueError, match=r"no frame in .*all and .*empty has label 0: .*failures"):
        load_frames(tmp_path / "all", empty, KEYS)


def test_a_missing_camera_names_those_there(folders):
    with pytest.raises(
        ValueError, match=r"000000.npz has no images of 'hand', but of 'base_camera'"
    ):
        load_frames(*folders, ["hand"])


def test_only_the_cameras_asked_for_are_loaded(tmp_path):
    write_trajectory(tmp_path / "a", make([1], cameras=("left", "right", "top")))
    write_trajectory(tmp_path / "b", make([0], cameras=("top", "left")))
    frames = load_frames(tmp_path / "a", tmp_path / "b", ["top", "left"])
    assert list(frames.images) == ["top", "left"]
    assert all(images.shape == (2, 1, 2, 2) for images in frames.images.values())


def test_files_of_another_size_or_camera_are_skipped_and_named(folders):
    whole = load_frames(*folders, KEYS)
    others = [
        write_trajectory(folders[1], make([0], size=(1, 3, 2))),
        write_trajectory(folders[1], make([0], cameras=("hand",))),
    ]
    frames = load_frames(*folders, KEYS)
    assert frames.hash == whole.hash
    assert frames.skipped == [
        (others[0], "has images of 'base_camera' of [1, 3, 2], not [1, 2, 2]"),
        (others[1], "has no images of 'base_camera', but of 'hand'"),
    ]


def test_where_all_files_are_of_another_size_it_is_an_error(folders):
    with pytest.raises(
        ValueError, match=r"npz has images of 'base_camera' of \[1, 2, 2\], not \[3, "
    ):
        load_frames(*folders, KEYS, [3, 64, 64])


# --- parts


def frames_of(episodes):
    """Frames with these labels by trajectory."""
    labels = np.concatenate([np.array(labels, bool) for labels in episodes])
    numbers = np.repeat(np.arange(len(episodes)), [len(labels) for labels in episodes])
    images = {"a": np.zeros((len(labels), 1, 1, 1), np.uint8)}
    return Frames(images, labels, numbers, np.array([any(labels) for labels in episodes]))


def classes(episodes):
    return set().union(*map(set, episodes))


EPISODES = st.lists(
    st.sampled_from([[False, False], [False, True], [True]]), min_size=1, max_size=7
)


@settings(max_examples=150)
@given(EPISODES, st.sampled_from([0.01, 0.2, 0.5, 0.9]), st.integers(0, 9))
def test_both_sides_have_both_labels_where_that_is_possible(episodes, share, seed):
    frames = frames_of(episodes)
    train, validation = frames.split(np.random.default_rng(seed), share)
    assert sorted([*train, *validation]) == list(range(len(frames)))
    assert not set(frames.episodes[train]) & set(frames.episodes[validation])
    found = [set(frames.labels[rows].tolist()) for rows in (train, validation)]
    assert found[0] == classes(episodes)
    possible = any(
        classes(e for e, side in zip(episodes, sides, strict=True) if side)
        == classes(e for e, side in zip(episodes, sides, strict=True) if not side)
        == {False, True}
        for sides in product((True, False), repeat=len(episodes))
    )
    assert (found[1] == {False, True}) == possible


@settings(max_examples=150)
@example([[False, True]] * 3, (0.5, 0.5), 0)  # a half of three is two, and leaves one
@given(EPISODES, st.tuples(st.floats(0.01, 0.5), st.floats(0.01, 0.5)), st.integers(0, 9))
def test_three_parts_share_no_trajectory_and_each_has_both_labels_if_three_have(
    episodes, shares, seed
):
    frames = frames_of(episodes)
    parts = frames.split(np.random.default_rng(seed), *shares)
    assert sorted(np.concatenate(parts)) == list(range(len(frames)))
    own = [set(frames.episodes[rows]) for rows in parts]
    assert len(set().union(*own)) == sum(map(len, own)) == len(episodes)
    assert set(frames.labels[parts[0]].tolist()) == classes(episodes)
    if sum(len(set(episode)) == 2 for episode in episodes) >= 3:
        assert all(set(frames.labels[rows].tolist()) == {False, True} for rows in parts)


def test_the_share_is_that_of_each_kind_of_trajectory():
    frames = frames_of([[False, True]] * 40 + [[False]] * 60)
    train, validation = frames.split(np.random.default_rng(0), 0.2)
    assert len(set(frames.episodes[validation])) == 20
    assert frames.from_positive[frames.episodes[validation]].sum() == 16  # 8 trajectories of 2
    assert len(train) + len(validation) == 140
    again = frames.split(np.random.default_rng(0), 0.2)[1]
    other = frames.split(np.random.default_rng(1), 0.2)[1]
    np.testing.assert_array_equal(again, validation)
    assert not np.array_equal(other, validation)


def test_no_share_is_no_validation_and_an_odd_one_an_error():
    frames = frames_of([[False, True]] * 4)
    assert len(frames.split(np.random.default_rng(0), 0.0)[1]) == 0
    with pytest.raises(ValueError, match=r"shares of trajectories are \(1,\)"):
        frames.split(np.random.default_rng(0), 1)

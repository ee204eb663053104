"""Files of trajectories: whole or not there, numbered once, and read without running anything."""

import errno
import io
import os
import signal
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.data.frames import (
    Trajectory,
    count_trajectories,
    next_number,
    read_trajectory,
    remove_stale,
    to_uint8,
    write_trajectory,
)
from tests.processes import Program
from tests.rounding import assert_close


def make(length=3, cameras=("base_camera",), success_once=True, seed=0, size=(3, 4, 5)):
    rng = np.random.default_rng(seed)
    images = {key: rng.integers(0, 256, (length, *size), dtype=np.uint8) for key in cameras}
    return Trajectory(images, (rng.random(length) > 0.5).astype(np.float32), success_once)


def assert_same(left, right):
    assert list(left.images) == list(right.images)
    for key, images in left.images.items():
        np.testing.assert_array_equal(images, right.images[key], strict=True)
    np.testing.assert_array_equal(left.labels, right.labels, strict=True)
    assert left.success_once is right.success_once


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- trajectories


IMAGES = np.zeros((2, 3, 4, 4), np.uint8)
LABELS = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ({}, LABELS, "no images"),
        ({"a": IMAGES[:1]}, LABELS, "1 images of 'a' for 2 labels"),
        ({"a": IMAGES.astype("f4")}, LABELS, r"'a' have to be uint8 \[T, C, H, W\]: float32"),
        ({"a": IMAGES[0]}, LABELS, r"'a' have to be uint8 \[T, C, H, W\]: .*\(3, 4, 4\)"),
        ({"a": IMAGES}, np.zeros(2), "labels have to be float32.*float64"),
        ({"a": IMAGES[:0]}, LABELS[:0], "T >= 1"),
        ({"a": IMAGES}, np.float32([0, 2]), "a label is not in"),
        ({"a": IMAGES}, np.float32([0, np.nan]), "a label is not in"),
    ],
)
def test_what_is_no_trajectory_is_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        Trajectory(images, labels, False)


# --- writing and reading


@settings(max_examples=30)
@given(
    st.integers(1, 4),
    st.lists(st.text(st.characters(exclude_categories=["C"]), min_size=1), min_size=1, unique=True),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_trajectory_comes_back_the_same(tmp_path, length, cameras, success_once, seed):
    trajectory = make(length, cameras, success_once, seed)
    assert_same(read_trajectory(write_trajectory(tmp_path, trajectory)), trajectory)


def test_an_npz_is_opened_by_numpy_alone(tmp_path):
    trajectory = make()
    with np.load(write_trajectory(tmp_path / "new" / "folder", trajectory)) as arrays:
        assert set(arrays) == {"images.base_camera", "labels", "success_once"}
        np.testing.assert_array_equal(arrays["labels"], trajectory.labels)


def test_an_npy_is_the_documents_dictionary(tmp_path):
    trajectory = make()
    path = write_trajectory(tmp_path, trajectory, format="npy")
    assert path.name == "000000.npy"
    found = np.load(path, allow_pickle=True).item()
    assert found.keys() == {"images", "labels"}
    assert found["images"].keys() == {"base_camera"}
    images = found["images"]["base_camera"]
    assert images.dtype == found["labels"].dtype == np.float32
    assert images.shape == (3, 3, 4, 5)
    assert_close(images * 255, trajectory.images["base_camera"])
    np.testing.assert_array_equal(found["labels"], trajectory.labels)


def test_all_256_values_survive_as_floats(tmp_path):
    images = {"a": np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)}
    trajectory = Trajectory(images, np.float32([1]), True)
    path = write_trajectory(tmp_path, trajectory, format="npy")
    assert_same(read_trajectory(path), trajectory)


def save_npy(folder, content):
    np.save(folder / "0.npy", content, allow_pickle=True)
    return folder / "0.npy"


def test_the_documents_own_file_is_read(tmp_path):
    images = np.float32([0, 0.1, 0.5, 1]).reshape(1, 1, 2, 2)
    path = save_npy(tmp_path, {"images": {"a": images}, "labels": np.float32([0.7])})
    found = read_trajectory(path)
    assert found.images["a"].ravel().tolist() == [0, 26, 128, 255]  # 25.5 and 127.5 to even
    assert found.labels.tolist() == [np.float32(0.7)]
    assert found.success_once


def test_floats_that_are_no_pixels_are_an_error(tmp_path):
    for value, reason in (
        (1.5, r"float32 from 1.5 to 1.5, not in \[0, 1\]: .*divide them"),
        (256.0, r"float32 from 256 to 256, not in \[0, 1\]: .*divide them"),
        (-1.0, r"float32 from -1 to -1, not in \[0, 1\]: .* or shift and scale them to \[0, 1\]"),
        (np.nan, "images of 'a' have pixels that are NaN or infinite"),
        (np.inf, "images of 'a' have pixels that are NaN or infinite"),
    ):
        images = np.full((1, 1, 2, 2), value, np.float32)
        path = save_npy(tmp_path, {"images": {"a": images}, "labels": np.float32([0])})
        with pytest.raises(ValueError, match=reason):
            read_trajectory(path)
    with pytest.raises(ValueError, match=r"float32 from 0 to 3, not in \[0, 1\]: .*divide them"):
        to_uint8(np.arange(4, dtype=np.float32), "a")
    with pytest.raises(ValueError, match="images of 'a' are int64"):
        to_uint8(np.array([1]), "a")


PIXELS = np.arange(2 * 3 * 8 * 9, dtype=np.uint8).reshape(2, 3, 8, 9)


@pytest.mark.parametrize(
    "images",
    [
        PIXELS,
        PIXELS.astype(np.float64),
        PIXELS.astype(np.int64),
        PIXELS.transpose(0, 2, 3, 1),
        PIXELS.transpose(0, 2, 3, 1) / np.float32(255),
        [*PIXELS.astype(np.float32)],
    ],
    ids=["as here", "floats", "integers", "channels last", "shares", "a list"],
)
@pytest.mark.parametrize(
    "labels",
    [[0, 1], [0.0, np.float32(1)], np.array([[0], [1]]), [[0.0], [1.0]], np.array([False, True])],
    ids=["list", "numbers", "column", "list of lists", "booleans"],
)
def test_files_of_other_programs_are_understood(tmp_path, images, labels):
    content = {"images": {"a": images}, "labels": labels, "actions": [1, 2], "success": True}
    found = [read_trajectory(save_npy(tmp_path, content))]
    np.savez(tmp_path / "0.npz", **{"images.a": images, "labels": labels, "actions": [1, 2]})
    found.append(read_trajectory(tmp_path / "0.npz"))
    for each in found:
        assert_same(each, Trajectory({"a": PIXELS}, np.float32([0, 1]), True))


# --- numbers


def test_both_formats_share_one_numbering_that_goes_on(tmp_path):
    assert next_number(tmp_path / "nowhere") == 0
    written = [write_trajectory(tmp_path, make(), format=f) for f in ("npz", "npy", "npz")]
    (tmp_path / "000041.npy").touch()
    (tmp_path / "notes.npz").touch()
    written.append(write_trajectory(tmp_path, make()))
    assert [path.name for path in written] == [
        *("000000.npz", "000001.npy", "000002.npz", "000042.npz")
    ]
    assert next_number(tmp_path) == 43
    assert count_trajectories(tmp_path) == 5


def test_a_number_taken_in_the_meantime_is_left_to_its_owner(tmp_path, monkeypatch):
    (tmp_path / "000000.npz").write_bytes(b"mine")
    (tmp_path / "000001.npy").write_bytes(b"mine, too")
    monkeypatch.setattr("guerdon.data.frames.next_number", lambda _: 0)
    assert write_trajectory(tmp_path, make()).name == "000002.npz"
    assert names(tmp_path) == ["000000.npz", "000001.npy", "000002.npz"]
    assert (tmp_path / "000000.npz").read_bytes() == b"mine"


WRITER = """
import sys
import numpy as np
from guerdon.data.frames import Trajectory, write_trajectory
folder, number, count, form = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
images = {"a": np.random.default_rng(0).integers(0, 256, (50, 3, 32, 32), dtype=np.uint8)}
print(flush=True)
for i in range(count):
    images["a"][0, 0, 0, :2] = number, i
    write_trajectory(folder, Trajectory(images, np.zeros(50, np.float32), False), format=form)
"""


def writer(folder, number, count, form):
    return Program("-c", WRITER, folder, number, count, form)


def test_processes_at_once_never_overwrite_each_other(tmp_path):
    processes = [
        writer(tmp_path, number, 25, form) for number, form in enumerate(("npz", "npy", "npz"))
    ]
    for process in processes:
        with process:
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0]
    files = sorted(tmp_path.iterdir())
    assert len({int(path.stem) for path in files}) == len(files) == 75  # no hidden file either
    marks = [tuple(read_trajectory(path).images["a"][0, 0, 0, :2].tolist()) for path in files]
    assert sorted(marks) == [(number, i) for number in range(3) for i in range(25)]


def test_a_killed_process_leaves_only_whole_files(tmp_path):
    with writer(tmp_path, 0, 100_000, "npz") as process:
        process.stdout.readline()
        deadline = time.monotonic() + 30
        while count_trajectories(tmp_path) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    hidden = [name for name in names(tmp_path) if name.startswith(".")]
    assert len(hidden) <= 1
    files = sorted(set(tmp_path.iterdir()) - {tmp_path / name for name in hidden})
    assert len(files) >= 5
    for number, path in enumerate(files):
        assert path.name == f"{number:06d}.npz"
        assert len(read_trajectory(path)) == 50


def test_only_old_half_written_files_are_removed(tmp_path):
    for name in (".old.tmp", ".new.tmp", ".old.swp"):
        (tmp_path / name).touch()
    for name in (".old.tmp", ".old.swp"):
        os.utime(tmp_path / name, (time.time() - 7200,) * 2)
    remove_stale(tmp_path)
    assert names(tmp_path) == [".new.tmp", ".old.swp"]


@pytest.mark.parametrize("failing", ["fsync", "link"])
def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch, failing):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space"):
        write_trajectory(tmp_path, make())
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_file_systems_without_hard_links_will_do(tmp_path, monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    (tmp_path / "000000.npz").write_bytes(b"mine")
    (tmp_path / "000001.npy").write_bytes(b"mine, too")
    monkeypatch.setattr("guerdon.data.frames.next_number", lambda _: 0)
    written = [write_trajectory(tmp_path, make(seed=seed)) for seed in (1, 2)]
    assert names(tmp_path) == ["000000.npz", "000001.npy", "000002.npz", "000003.npz"]
    for seed, path in enumerate(written, 1):
        assert_same(read_trajectory(path), make(seed=seed))
    assert (tmp_path / "000000.npz").read_bytes() == b"mine"


# --- files that are none


@pytest.mark.parametrize("form", ["npz", "npy"])
def test_a_file_cut_off_anywhere_is_named(tmp_path, form):
    path = write_trajectory(tmp_path, make(), format=form)
    content = path.read_bytes()
    for cut in range(0, len(content), 7):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=f"{path} is damaged or not a trajectory: ."):
            read_trajectory(path)


@settings(max_examples=150)
@given(st.sampled_from(["npz", "npy"]), st.data())
def test_damaged_bytes_are_an_error_or_harmless(tmp_path, form, data):
    trajectory = make()
    path = write_trajectory(tmp_path, trajectory, format=form)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        found = read_trajectory(path)
    except ValueError:
        return
    finally:
        path.unlink()
    if form == "npz":  # it has checksums
        assert_same(found, Trajectory(found.images, trajectory.labels, trajectory.success_once))
        assert [a.tobytes() for a in found.images.values()] == [
            a.tobytes() for a in trajectory.images.values()
        ]


GOOD = {"images.a": IMAGES, "labels": LABELS, "success_once": np.array(False)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "its arrays are none, not images"),
        ({key: GOOD[key] for key in ("labels", "success_once")}, "its arrays are labels, succ"),
        ({**GOOD, "labels": LABELS[:1]}, "2 images of 'a' for 1 labels"),
        ({**GOOD, "labels": np.tile(LABELS, (2, 1)).T}, r"labels have to be .* \[T\]"),
        ({**GOOD, "labels": LABELS + 2}, r"a label is not in \[0, 1\]"),
        ({**GOOD, "images.a": IMAGES[0]}, r"images of 'a' have to be uint8 \[T, C, H, W\]"),
        ({**GOOD, "images.a": IMAGES.astype("f4") - 9}, r"images of 'a' are .*, not in \[0, 1"),
        ({**GOOD, "images.a": np.array(["x"])}, "images of 'a' have to be arrays of numbers"),
        ({**GOOD, "success_once": np.array([True] * 2)}, "success_once has to be one boolean"),
        ({**GOOD, "success_once": np.array(7)}, "success_once has to be one boolean"),
    ],
)
def test_an_npz_of_something_else_is_named(tmp_path, arrays, message):
    path = tmp_path / "000000.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=f"{path} is damaged or not a trajectory: .*{message}"):
        read_trajectory(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (IMAGES, "it holds an array"),
        (np.array([{}, {}]), "it holds an array"),
        ([1], "it holds an array"),
        ({"images": {"a": IMAGES}}, "it has no dictionary of 'images' and 'labels'"),
        ({"images": IMAGES, "labels": LABELS}, "not a dictionary by camera"),
        ({"images": {"a": [1]}, "labels": LABELS}, r"images of 'a' have to be .*, H, W\]"),
        ({"images": {"a": [[1], [2, 3]]}, "labels": LABELS}, "have to be arrays of numbers: list"),
        ({"images": {"a": IMAGES}, "labels": ["x"]}, "labels have to be arrays of numbers: list"),
        ({"images": {"a": IMAGES}, "labels": np.array(["x"])}, "have to be arrays of numbers"),
        ({"images": {"a": IMAGES}, "labels": LABELS[:1]}, "2 images of 'a' for 1 labels"),
    ],
)
def test_an_npy_of_something_else_is_named(tmp_path, content, message):
    path = save_npy(tmp_path, content)
    with pytest.raises(ValueError, match=f"{path} is damaged or not a trajectory: .*{message}"):
        read_trajectory(path)


class Call:
    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts[0], self.parts[1:]


def test_code_in_a_pickle_is_not_run(tmp_path):
    path = save_npy(tmp_path, {"images": Call(os.system, f"touch {tmp_path / 'marker'}")})
    with pytest.raises(ValueError, match=r"asks for posix.system, which guerdon does not run"):
        read_trajectory(path)
    assert names(tmp_path) == ["0.npy"]


def header(shape, dtype="|u1"):
    content = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(content, described)
    return content.getvalue()


def bomb(path, entry, **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("images.a.npy", entry)
        for name in ("labels", "success_once"):
            archive.writestr(f"{name}.npy", header((1,)) + b"\0")


@pytest.mark.parametrize(
    ("entry", "options", "message"),
    [
        (header((2**40, 3, 64, 64)) + b"\0" * 99, {}, "does not fit what follows"),
        (header((2**62, 4)) + b"\0" * 99, {}, "does not fit what follows"),
        (header((1,), [["x", "<f8"]]) + b"\0" * 8, {}, "."),
        (b"\0" * 2**25, {"compression": zipfile.ZIP_LZMA}, "compressed in an unusual way"),
        (b"\0" * 2**25, {"compression": zipfile.ZIP_BZIP2}, "compressed in an unusual way"),
    ],
)
def test_a_file_that_claims_to_be_huge_needs_no_memory(tmp_path, entry, options, message):
    path = tmp_path / "000000.npz"
    bomb(path, entry, **options)
    tracemalloc.start()
    with pytest.raises(ValueError, match=message):
        read_trajectory(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21


def test_an_entry_that_claims_more_than_deflate_can_give_is_refused(tmp_path):
    path = tmp_path / "000000.npz"
    size = 2**30
    bomb(path, header((size,)) + b"\0" * 99)
    content = path.read_bytes()
    true_size = (len(header((size,))) + 99).to_bytes(4, "little")
    claimed = (len(header((size,))) + size).to_bytes(4, "little")
    assert content.count(true_size * 2) == 2  # in front of the entry and in the directory
    path.write_bytes(content.replace(true_size * 2, true_size + claimed))
    with pytest.raises(ValueError, match="it declares a larger size than it has"):
        read_trajectory(path)


def test_a_folder_and_other_names_are_no_trajectories(tmp_path):
    (tmp_path / "000000.npz").mkdir()
    with pytest.raises(OSError, match="it is not a regular file"):
        read_trajectory(tmp_path / "000000.npz")
    with pytest.raises(ValueError, match=r"it is neither .npz nor .npy"):
        read_trajectory(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError):
        read_trajectory(tmp_path / "000001.npz")

import json
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.data import Batch, files
from guerdon.data.files import atomic_file, read_arrays, write_arrays

DTYPES = ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64", "complex64"]


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_atomic_file_appears_whole(tmp_path):
    path = tmp_path / "file"
    with atomic_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_atomic_file_leaves_the_old_file_when_writing_fails(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail():
        with atomic_file(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_atomic_file_has_ordinary_permissions(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    with atomic_file(tmp_path / "atomic"):
        pass
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_atomic_file_names_a_missing_folder(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"),
        atomic_file(tmp_path / "nowhere" / "file"),
    ):
        pass


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.lists(st.text(max_size=5), min_size=1, max_size=3).map(tuple),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_arrays_come_back_under_any_key(tmp_path, arrays, compress):
    write_arrays(tmp_path / "a.npz", arrays, {"n": 1}, compress=compress)
    read, meta = read_arrays(tmp_path / "a.npz")
    assert meta == {"n": 1}
    assert list(read) == list(arrays)
    for path, array in arrays.items():
        assert read[path].dtype == array.dtype
        assert read[path].shape == array.shape
        assert read[path].tobytes() == array.tobytes()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.lists(json_values, max_size=4))
def test_object_arrays_come_back(tmp_path, values):
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    write_arrays(tmp_path / "a.npz", {("x",): array}, {})
    read = read_arrays(tmp_path / "a.npz")[0][("x",)]
    assert read.dtype == object
    assert read.tolist() == values


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(1.5),
        torch.zeros(0, 3, dtype=torch.bool),
        torch.randn(3, dtype=torch.bfloat16),
        torch.tensor(2.0, dtype=torch.bfloat16),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.ones(2, requires_grad=True),
    ],
)
def test_tensors_come_back_as_tensors(tmp_path, tensor):
    write_arrays(tmp_path / "a.npz", {("x",): tensor}, {})
    read = read_arrays(tmp_path / "a.npz")[0][("x",)]
    assert read.dtype == tensor.dtype
    assert torch.equal(read, tensor.detach())


def test_other_leaves_come_back(tmp_path):
    leaves = {
        ("none",): None,
        ("text",): "é\ud800",
        ("number",): 3,
        ("real",): float("inf"),
        ("yes",): True,
        ("empty",): Batch(),
        ("scalar",): np.float32(1.5),
        ("strings",): np.array([["a", "b"]], dtype=object),
        ("fixed",): np.array(["ab", "c"]),
    }
    write_arrays(tmp_path / "a.npz", leaves, {})
    read, _ = read_arrays(tmp_path / "a.npz")
    for key in ("none", "text", "number", "real", "yes"):
        assert read[(key,)] == leaves[(key,)]
        assert type(read[(key,)]) is type(leaves[(key,)])
    assert read[("empty",)] == Batch()
    assert type(read[("scalar",)]) is np.float32
    assert read[("scalar",)] == 1.5
    assert read[("strings",)].tolist() == [["a", "b"]]
    assert read[("fixed",)].tolist() == ["ab", "c"]


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [
        (b"x", "bytes"),
        (object(), "object"),
        (np.array([None, {1, 2}], dtype=object), "set"),
        (np.array([None, (1, 2)], dtype=object), "tuple"),
        (np.zeros(2, dtype=[("a", "f4")]), "'a'"),
        (np.zeros(2, dtype="datetime64[s]"), "datetime64"),
        (torch.eye(2).to_sparse(), "tensor"),
        (Batch(x=np.ones(1)), "Batch"),
    ],
)
def test_what_would_not_come_back_is_refused_by_name(tmp_path, leaf, kind):
    with pytest.raises(TypeError, match=rf"key 'info\.x' is .*{kind}"):
        write_arrays(tmp_path / "a.npz", {("info", "x"): leaf}, {})
    assert names(tmp_path) == []


def test_meta_must_be_json(tmp_path):
    with pytest.raises(TypeError, match="meta"):
        write_arrays(tmp_path / "a.npz", {}, {"x": np.ones(1)})


def test_a_newer_file_asks_for_an_upgrade(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "VERSION", 2)
    write_arrays(tmp_path / "a.npz", {}, {})
    monkeypatch.setattr(files, "VERSION", 1)
    with pytest.raises(ValueError, match=r"a\.npz has format 2 .* upgrade guerdon"):
        read_arrays(tmp_path / "a.npz")


def test_foreign_files_are_told_apart(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(2))
    np.savez(tmp_path / "b.npz", meta=np.frombuffer(json.dumps({}).encode(), np.uint8))
    (tmp_path / "c.npz").write_text("something else")
    np.save(tmp_path / "d.npz.npy", np.ones(2))
    for name in ("a.npz", "b.npz", "c.npz", "d.npz.npy"):
        with pytest.raises(ValueError, match=f"{name} is not a file written by guerdon"):
            read_arrays(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        read_arrays(tmp_path / "none.npz")


@pytest.mark.parametrize("compress", [False, True])
def test_a_truncated_file_is_damaged_wherever_it_ends(tmp_path, compress):
    path = tmp_path / "a.npz"
    write_arrays(path, {("x",): np.arange(100), ("y",): "text"}, {}, compress=compress)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"a\.npz is damaged"):
            read_arrays(path)


def test_a_flipped_bit_never_changes_data_unnoticed(tmp_path):
    path = tmp_path / "a.npz"
    array = np.arange(50)
    write_arrays(path, {("x",): array}, {"n": 1})
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        broken = bytearray(whole)
        broken[position] ^= 16
        path.write_bytes(broken)
        try:
            read, meta = read_arrays(path)
        except ValueError:
            continue
        # Dates and the like do not matter.
        assert np.array_equal(read[("x",)], array)
        assert meta == {"n": 1}


def test_pickled_arrays_inside_are_not_read(tmp_path):
    path = tmp_path / "a.npz"
    write_arrays(path, {("x",): np.arange(3)}, {})
    np.save(tmp_path / "0.npy", np.array([print], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path) as archive:
        meta = archive.read("meta.npy")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.npy", meta)
        archive.write(tmp_path / "0.npy", "0.npy")
    with pytest.raises(ValueError, match=r"a\.npz is damaged"):
        read_arrays(path)

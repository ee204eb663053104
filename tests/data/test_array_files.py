"""Files of arrays that are no longer written are read as they were."""

import json
import zipfile

import numpy as np
import pytest
import torch

from guerdon.data import Batch
from guerdon.data.array_files import read_arrays


def write_arrays(path, leaves, entries, **changes):
    content = {"format": "guerdon arrays", "version": 1, "meta": {}, "leaves": leaves, **changes}
    text = np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)
    np.savez(path, meta=text, **entries)
    return path


def array_file(path):
    """A file with one leaf `x`."""
    leaf = {"path": ["x"], "kind": "array", "entry": "0"}
    return write_arrays(path, [leaf], {"0": np.arange(50)})


def test_every_kind_of_leaf_is_read(tmp_path):
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    leaves = [
        {"path": ["obs", "x"], "kind": "array", "entry": "0"},
        {"path": ["scalar"], "kind": "scalar", "entry": "1"},
        {"path": ["half"], "kind": "tensor", "entry": "2", "dtype": "bfloat16", "device": "cpu"},
        {"path": ["one"], "kind": "tensor", "entry": "3", "dtype": "float32", "device": "cuda:0"},
        {"path": ["names"], "kind": "objects", "shape": [2, 2], "values": ["a", None, [1], {}]},
        {"path": ["info"], "kind": "batch"},
        {"path": ["text"], "kind": "value", "value": "words"},
    ]
    entries = {
        "0": np.ones((2, 3), "f4"),
        "1": np.float32(1.5),
        "2": half.view(torch.int16).numpy(),
        "3": np.array(2.5, "f4"),
    }
    read = read_arrays(write_arrays(tmp_path / "a.npz", leaves, entries))
    assert read.obs.x.dtype == np.float32
    assert read.obs.x.shape == (2, 3)
    assert type(read.scalar) is np.float32
    assert torch.equal(read.half, half)
    assert torch.equal(read.one, torch.tensor(2.5))
    assert read.names.tolist() == [["a", None], [[1], {}]]
    assert read.info == Batch()
    assert read.text == "words"


def test_foreign_and_newer_files_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(2))
    (tmp_path / "b.npz").write_text("something else")
    write_arrays(tmp_path / "c.npz", [], {}, version=2)
    write_arrays(tmp_path / "d.npz", [], {}, format="other")
    write_arrays(tmp_path / "e.npz", [{"path": ["x"], "kind": "odd"}], {})
    for name in "abcde":
        with pytest.raises(ValueError, match=rf"{name}\.npz is damaged"):
            read_arrays(tmp_path / f"{name}.npz")
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        read_arrays(tmp_path / "none.npz")


def test_a_truncated_file_is_damaged_wherever_it_ends(tmp_path):
    path = array_file(tmp_path / "a.npz")
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"a\.npz is damaged"):
            read_arrays(path)


def test_a_flipped_bit_never_changes_data_unnoticed(tmp_path):
    path = array_file(tmp_path / "a.npz")
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        broken = bytearray(whole)
        broken[position] ^= 16
        path.write_bytes(broken)
        try:
            read = read_arrays(path)
        except ValueError:
            continue
        assert np.array_equal(read.x, np.arange(50))  # dates and the like do not matter


def test_pickled_arrays_inside_are_not_read(tmp_path):
    path = array_file(tmp_path / "a.npz")
    np.save(tmp_path / "0.npy", np.array([print], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(path) as archive:
        meta = archive.read("meta.npy")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.npy", meta)
        archive.write(tmp_path / "0.npy", "0.npy")
    with pytest.raises(ValueError, match=r"a\.npz is damaged"):
        read_arrays(path)

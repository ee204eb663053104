"""`Batch`: rows, length, conversion, copies, equality."""

import copy
import pickle

import numpy as np
import pytest
import torch

from guerdon.data import Batch


def test_rows_of_numpy_torch_and_nested_leaves():
    batch = Batch(a=np.arange(6).reshape(3, 2), b={"c": torch.arange(3)}, n=None, e=Batch())
    row = batch[-1]
    assert row.a.tolist() == [4, 5]
    assert row.b.c == 2
    assert row.n is None
    assert row.e == Batch()
    assert batch[1:].b.c.tolist() == [1, 2]
    assert batch[[0, 2]].a.tolist() == [[0, 1], [4, 5]]
    assert batch[np.array([True, False, True])].b.c.tolist() == [0, 2]
    assert batch[torch.tensor([2, 0])].a.tolist() == [[4, 5], [0, 1]]
    assert batch[torch.tensor([True, False, False])].b.c.tolist() == [0]
    assert batch[None].shape == (1, 3)
    assert batch[...] == batch
    assert [row.b.c.item() for row in batch] == [0, 1, 2]


def test_none_and_empty_sub_batches_survive_every_index():
    batch = Batch(a=np.zeros((4, 2)), n=None, e={}, d={"e": {}, "n": None})
    for index in (
        0,
        -1,
        slice(1, 3),
        [0, 1],
        np.array([0]),
        np.ones(4, bool),
        (slice(None), 1),
        ...,
    ):
        rows = batch[index]
        assert rows.n is None
        assert rows.e == Batch()
        assert rows.d == Batch(e=Batch(), n=None)
    batch[0].e.new = 1
    assert batch.e.is_empty()  # the rows do not share their empty parts


@pytest.mark.parametrize(
    "index",
    [
        np.array([0, 2], np.uint8),
        np.array([2, 0], np.uint64),
        np.array([-1, 0], np.int8),
        np.array(1),
        np.int32(1),
        [],
        [[0, 1], [1, 2]],
        [True, False, True],
        slice(None, None, -1),
        slice(0, 2, -1),
        (np.array([0, 2], np.uint8), 1),
        (slice(None), None),
        (Ellipsis, 0),
        (),
    ],
)
def test_torch_and_numpy_rows_agree(index):
    array = np.arange(6).reshape(3, 2)
    rows = Batch(a=array, t=torch.from_numpy(array))[index]
    assert np.array_equal(rows.a, array[index])
    assert rows.t.shape == array[index].shape
    assert np.array_equal(rows.t.numpy(), array[index])


def test_rows_of_empty_and_zero_dimensional_arrays():
    assert len(Batch(a=np.zeros((0, 3)))[:]) == 0
    for index in (0, np.array([0]), slice(None)):
        with pytest.raises(IndexError, match=r"key 'a' is float64 array of shape \(\): too many"):
            Batch(a=np.array(3.0))[index]
    with pytest.raises(IndexError, match="an empty Batch has no rows"):
        Batch()[0]


def test_a_bad_index_is_named_with_its_key():
    batch = Batch(obs={"x": np.zeros((3, 2)), "t": torch.zeros(3)})
    with pytest.raises(
        IndexError, match=r"key 'obs\.x' is float64 array of shape \(3, 2\): index 7"
    ):
        batch[7]
    with pytest.raises(IndexError, match=r"key 'obs\.x' .*out of bounds"):
        batch[np.array([7])]
    with pytest.raises(IndexError, match=r"key 'obs\.t' is float32 tensor of shape \(3,\)"):
        batch[:, 1]
    with pytest.raises(IndexError, match=r"key 't' .*step must be"):
        Batch(t=torch.zeros(2, 2))[:, ::-1]
    with pytest.raises(IndexError, match=r"key 'obs\.x'"):
        batch[1.5]
    with pytest.raises(TypeError, match=r"key 'obs\.c' is str 'x': it has no rows"):
        Batch(obs={"c": "x"})[0]


def test_length_and_shape():
    batch = Batch(a=np.zeros((4, 3, 2)), b={"c": torch.zeros(4, 3, 5)}, n=None, e={})
    assert len(batch) == 4
    assert batch.shape == (4, 3)
    assert Batch(a=np.zeros((4, 3)), b=np.zeros((4, 2))).shape == (4,)
    assert Batch(a=np.zeros(4), b=3).shape == ()
    assert len(Batch(n=None)) == 0
    with pytest.raises(TypeError, match=r"key 'b\.c' is a single value"):
        len(Batch(a=[1], b={"c": 1}))
    with pytest.raises(ValueError, match=r"lengths differ: 'a' has 3 rows and 'b\.c' has 2"):
        len(Batch(a=[1, 2, 3], b={"c": [1, 2]}))


def test_is_empty():
    assert not Batch(a={}).is_empty()
    assert Batch(a={}, b={"c": {}}).is_empty(recurse=True)
    assert not Batch(a={"b": None}).is_empty(recurse=True)
    assert not Batch(a=np.zeros(0)).is_empty()


# --- conversion


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bool])
def test_to_torch_obeys_its_dtype_for_every_leaf(dtype):
    batch = Batch(
        f=np.zeros(2), i=np.zeros(2, np.uint8), t=torch.zeros(2), s=3, g=np.float32(1), n=None
    ).to_torch(dtype=dtype, device="cpu")
    assert {value.dtype for key, value in batch.items() if key != "n"} == {dtype}
    assert batch.n is None


def test_to_torch_keeps_dtypes_and_memory():
    array = np.zeros((2, 3), np.float32)
    batch = Batch(a=array, b={"c": array.T}, i=np.zeros(2, np.int16), u=np.zeros(2, np.uint16))
    result = batch.to_torch()
    assert [result.a.dtype, result.i.dtype, result.u.dtype] == [
        torch.float32,
        torch.int16,
        torch.uint16,
    ]
    result.a += 1
    assert array.sum() == result.b.c.sum() == 6


def test_to_torch_takes_every_memory_layout():
    frozen = np.arange(4.0)
    frozen.flags.writeable = False
    packed = np.zeros(3, [("flag", "u1"), ("value", "f4")])
    packed["value"] = 2
    batch = Batch(
        frozen=frozen,
        backwards=np.arange(4)[::-1],
        strided=np.arange(8)[::2],
        swapped=np.arange(3, dtype=">f8"),
        packed=packed["value"],
        single=np.array(5),
        empty=np.zeros((0, 2)),
    )
    for key, value in batch.to_torch().items():
        assert isinstance(value, torch.Tensor)
        assert value.tolist() == batch[key].tolist()


def test_what_no_tensor_can_hold_stays():
    batch = Batch(a=["x", "y"], s="text", d=np.zeros(2, "M8[s]"), o=[None, 1], n=None, e={})
    assert batch.to_torch(dtype=torch.float32) == batch


def test_to_numpy_takes_every_tensor():
    batch = Batch(
        grad=torch.ones(2, requires_grad=True) * 2,
        half=torch.ones(2, dtype=torch.bfloat16),
        conjugate=torch.tensor([1j]).conj(),
        kept=np.ones(2),
        text="x",
    )
    result = batch.to_numpy()
    assert result.grad.tolist() == [2, 2]
    assert result.half.dtype == np.float32
    assert result.conjugate.tolist() == [-1j]
    assert result.kept is batch.kept
    assert result.text == "x"


def test_apply_reaches_every_leaf_but_none():
    batch = Batch(a=np.ones((2, 3)), b={"c": torch.ones(2, 3), "n": None}, e={})
    assert batch.apply(lambda leaf: leaf.shape).a.tolist() == [2, 3]
    sums = batch.apply(lambda leaf: leaf.sum(1))
    assert sums.b.c.tolist() == [3, 3]
    assert sums.b.n is None
    assert sums.e == Batch()
    assert isinstance(batch.apply(lambda leaf: {"rows": leaf}).a, Batch)


def test_to_dict_is_plain_all_the_way_down():
    batch = Batch(a=1, b={"c": [1, 2], "e": {}})
    plain = batch.to_dict()
    assert type(plain["b"]) is type(plain["b"]["e"]) is dict
    assert Batch(plain) == batch


# --- copies and equality


def test_a_copy_has_its_own_keys_and_a_deep_copy_its_own_memory():
    batch = Batch(a=np.zeros(2), b={"c": torch.zeros(2)})
    shallow, deep = copy.copy(batch), copy.deepcopy(batch)
    shallow.b.d = 1
    assert "d" not in batch.b
    shallow.a += 1
    assert batch.a.tolist() == [1, 1]
    assert deep.a.tolist() == [0, 0]
    deep.b.c += 5
    assert batch.b.c.tolist() == [0, 0]


def test_equality_is_by_kind_and_value():
    batch = Batch(a=[1, 2], b={"c": torch.zeros(2)}, s="x", n=None)
    assert batch == Batch(n=None, s="x", b={"c": torch.zeros(2)}, a=[1, 2])
    for other in (
        Batch(batch, a=[1, 3]),
        Batch(batch, a=[1, 2, 3]),
        Batch(batch, a=torch.tensor([1, 2])),
        Batch(batch, a={"c": 1}),
        Batch(batch, b=3),
        Batch(batch, n=0),
        Batch(batch, more=1),
        {"a": [1, 2]},
        np.array([1, 2]),
        torch.zeros(2),
        None,
    ):
        assert batch != other
        assert other != batch
    assert Batch(a=torch.zeros(2, device="meta")) != Batch(a=torch.zeros(2))
    objects = np.array([np.zeros(2), "x"], dtype=object)
    assert Batch(a=objects) == Batch(a=objects.copy())
    with pytest.raises(TypeError, match="unhashable"):
        hash(batch)


def test_deep_nesting():
    batch = Batch(x=[1, 2])
    for _ in range(60):
        batch = Batch(down=batch, n=None)
    assert pickle.loads(pickle.dumps(batch)) == batch
    assert Batch.cat([batch[:1], batch[1:]]) == batch
    assert (batch - batch).to_torch().shape == (2,)
    with pytest.raises(IndexError, match=r"down\.down\.x"):
        batch[5]

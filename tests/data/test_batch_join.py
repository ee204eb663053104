"""`Batch`: cat, stack and split."""

import numpy as np
import pytest
import torch

from guerdon.data import Batch


def nested(rows: int, start: int = 0) -> Batch:
    count = np.arange(start, start + rows)
    return Batch(
        a=count.astype(np.float32),
        b={"t": torch.from_numpy(count * 2), "n": None, "e": {}},
        s=count.astype(str),
    )


# --- cat


def test_cat_joins_every_leaf():
    joined = Batch.cat([nested(2), nested(1, 2), nested(0, 3), nested(2, 3)])
    assert joined == nested(5)
    assert joined.a.dtype == np.float32
    assert joined.b.t.dtype == torch.int64
    assert joined.s.dtype == object


def test_cat_takes_dicts_generators_and_other_axes():
    assert Batch.cat({"a": np.array([i])} for i in range(3)) == Batch(a=[0, 1, 2])
    wide = Batch.cat([Batch(a=np.zeros((2, 1))), Batch(a=np.zeros((2, 3)))], axis=1)
    assert wide.a.shape == (2, 4)
    assert Batch.cat([Batch(a=torch.zeros(2, 1))] * 2, axis=-1).a.shape == (2, 2)


def test_cat_passes_over_batches_without_keys():
    assert Batch.cat([Batch(), nested(2), {}]) == nested(2)
    assert Batch.cat([]) == Batch.cat([Batch(), Batch()]) == Batch()


def test_cat_copies():
    batch = nested(2)
    joined = Batch.cat([batch])
    joined.a += 1
    joined.b.t += 1
    assert batch == nested(2)


def test_cat_of_parameters_and_tensors_keeps_the_gradient():
    parameter = torch.nn.Parameter(torch.ones(2))
    joined = Batch.cat([Batch(a=torch.zeros(1)), Batch(a=parameter)])
    joined.a.sum().backward()
    assert parameter.grad.tolist() == [1, 1]


KEYS = [
    (
        Batch(a=[1], b=[1]),
        Batch(a=[1]),
        r"'b' is in the first but not in the second \(a, b and a\)",
    ),
    (Batch(a=[1]), Batch(b=[1]), r"'a' is in the first but not in the second \(a and b\)"),
    (
        Batch(o={"x": [1]}),
        Batch(o={"x": [1], "y": [1]}),
        r"'o\.y' is in the second but not in the first \(x and x, y\)",
    ),
    (
        Batch(o={"x": [1]}),
        Batch(o={}),
        r"'o\.x' is in the first but not in the second \(x and none\)",
    ),
]

KINDS = [
    (
        np.zeros(2),
        torch.zeros(2),
        r"float64 array of shape \(2,\) and float32 tensor of shape \(2,\)",
    ),
    (
        torch.zeros(2),
        np.zeros(2),
        r"float32 tensor of shape \(2,\) and float64 array of shape \(2,\)",
    ),
    (np.zeros(2), np.zeros(2, np.float32), r"float64 array .* and float32 array"),
    (np.zeros(2), np.zeros(2, int), r"float64 array .* and int64 array"),
    (torch.zeros(2), torch.zeros(2).int(), r"float32 tensor .* and int32 tensor"),
    (np.zeros(2), {"x": [1]}, r"float64 array of shape \(2,\) and Batch of keys \(x\)"),
    ({"x": [1]}, np.zeros(2), r"Batch of keys \(x\) and float64 array of shape \(2,\)"),
    ({}, 3, r"Batch of keys \(\) and int 3"),
    (3, {}, r"int 3 and Batch of keys \(\)"),
    (np.zeros(2), None, r"float64 array of shape \(2,\) and NoneType None"),
    (None, np.zeros(2), r"NoneType None and float64 array of shape \(2,\)"),
    (np.zeros(2), 3, r"float64 array of shape \(2,\) and int 3"),
    (3, torch.zeros(2), r"int 3 and float32 tensor of shape \(2,\)"),
]


@pytest.mark.parametrize("join", [Batch.cat, Batch.stack])
@pytest.mark.parametrize(("left", "right", "message"), KEYS)
def test_keys_that_differ_are_named(join, left, right, message):
    with pytest.raises(ValueError, match=message):
        join([left, left, right])


@pytest.mark.parametrize("join", [Batch.cat, Batch.stack])
@pytest.mark.parametrize(("left", "right", "sides"), KINDS)
def test_kinds_that_differ_are_named(join, left, right, sides):
    with pytest.raises(TypeError, match=rf"key 'o\.k' does not fit: {sides}"):
        join([Batch(o={"k": left}), Batch(o={"k": left}), Batch(o={"k": right})])


@pytest.mark.parametrize("zeros", [np.zeros, torch.zeros])
def test_shapes_that_differ_are_named(zeros):
    rows = [Batch(o={"k": zeros(shape)}) for shape in ((2, 3), (4, 3), (2, 5))]
    message = r"key 'o\.k' does not fit along axis 0: .* of shape \(2, 3\) and .* of shape \(2, 5\)"
    with pytest.raises(ValueError, match=message):
        Batch.cat(rows)
    message = r"key 'o\.k' does not fit along axis 0: .* of shape \(2, 3\) and .* of shape \(4, 3\)"
    with pytest.raises(ValueError, match=message):
        Batch.stack(rows)
    with pytest.raises(ValueError, match="key 'a' does not fit along axis 4"):
        Batch.cat([Batch(a=zeros(2))], axis=4)
    with pytest.raises(ValueError, match=r"key 'a' does not fit along axis 0: .* of shape \(\)"):
        Batch.cat([Batch(a=zeros(())), Batch(a=zeros(()))])


def test_devices_that_differ_are_named():
    batches = [Batch(a=torch.zeros(2, dtype=torch.int8)), Batch(a=torch.zeros(2, device="meta"))]
    with pytest.raises(
        TypeError, match=r"int8 tensor of shape \(2,\) and float32 tensor .* on meta"
    ):
        Batch.cat(batches)


def test_single_values_cannot_be_concatenated():
    with pytest.raises(TypeError, match=r"key 'o\.k' holds int 1, which has no rows to join"):
        Batch.cat([Batch(o={"k": 1}), Batch(o={"k": 2})])
    with pytest.raises(TypeError, match="made from a mapping"):
        Batch.cat([3])


# --- stack


def test_stack_makes_a_new_axis():
    stacked = Batch.stack([nested(2), nested(2, 5)])
    assert stacked.shape == (2, 2)
    assert stacked[1] == nested(2, 5)
    assert stacked.b.n is None
    assert stacked.b.e == Batch()
    last = Batch.stack([Batch(a=np.zeros(3), t=torch.zeros(3))] * 2, axis=-1)
    assert last.a.shape == last.t.shape == (3, 2)
    assert Batch.stack([]) == Batch.stack([Batch(), Batch()]) == Batch()


def test_stack_undoes_iteration():
    assert Batch.stack(list(nested(4))) == nested(4)


@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        (1, 2, np.int64),
        (1, 2.5, np.float64),
        (True, np.False_, np.bool_),
        (np.float32(1), np.float32(2), np.float32),
        (np.float64(1), 0, np.float64),
        (0, np.uint8(1), np.int64),
        ("x", "yy", object),
        (b"x", b"y", object),
        ({1}, {2}, object),
    ],
)
def test_single_values_are_stacked_into_an_array(left, right, dtype):
    stacked = Batch.stack([Batch(o={"k": left}), Batch(o={"k": right})]).o.k
    assert stacked.dtype == dtype
    assert list(stacked) == [left, right]


@pytest.mark.parametrize(
    ("left", "right", "sides"),
    [
        (1, "x", "int 1 and str 'x'"),
        (1, None, "int 1 and NoneType None"),
        (None, 1, "NoneType None and int 1"),
        (True, 1, "bool True and int 1"),
        (np.float32(1), np.float64(2), "float32 1.0 and float64 2.0"),
        (np.array(1), np.int64(1), r"int64 array of shape \(\) and int64 1"),
        ("x", b"x", "str 'x' and bytes b'x'"),
    ],
)
def test_single_values_that_differ_in_kind_are_named(left, right, sides):
    with pytest.raises(TypeError, match=rf"key 'o\.k' does not fit: {sides}"):
        Batch.stack([Batch(o={"k": left}), Batch(o={"k": right})])


def test_single_values_have_no_other_axis():
    assert Batch.stack([Batch(a=1), Batch(a=2)], axis=-1) == Batch(a=[1, 2])
    with pytest.raises(ValueError, match="key 'a' holds int 1, which has no axis 1"):
        Batch.stack([Batch(a=1), Batch(a=2)], axis=1)


# --- split


@pytest.mark.parametrize(
    ("rows", "size", "merge_last", "lengths"),
    [
        (10, 4, False, [4, 4, 2]),
        (10, 4, True, [4, 6]),
        (8, 4, True, [4, 4]),
        (3, 4, True, [3]),
        (3, 4, False, [3]),
        (5, -1, False, [5]),
        (5, -1, True, [5]),
        (5, 1, True, [1, 1, 1, 1, 1]),
        (0, 4, False, []),
        (0, -1, True, []),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_split_lengths(rows, size, merge_last, lengths, shuffle):
    parts = list(nested(rows).split(size, shuffle=shuffle, merge_last=merge_last))
    assert [len(part) for part in parts] == lengths


def test_split_shuffles_all_leaves_alike_and_by_its_own_generator():
    batch = nested(50)
    state = np.random.get_state()[1].tolist()  # noqa: NPY002 (the point is that it stays)
    first, second = (Batch.cat(list(batch.split(7, generator=3))) for _ in range(2))
    assert first == second
    assert first != batch
    assert first.a.tolist() == (first.b.t / 2).tolist() == [float(text) for text in first.s]
    assert sorted(first.a) == batch.a.tolist()
    generator = np.random.default_rng(0)
    orders = [Batch.cat(list(batch.split(7, generator=generator))).a.tolist() for _ in range(2)]
    assert orders[0] != orders[1]
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


def test_split_in_order_shares_memory():
    batch = nested(4)
    for part in batch.split(2, shuffle=False):
        part.a += 10
    assert batch.a.tolist() == [10, 11, 12, 13]


def test_split_refuses_at_once():
    for size in (0, -2):
        with pytest.raises(ValueError, match=f"1 or more, or -1 for all rows, not {size}"):
            nested(3).split(size)
    with pytest.raises(ValueError, match="lengths differ: 'a' has 2 rows and 'b' has 3"):
        Batch(a=[1, 2], b=[1, 2, 3]).split(1)
    with pytest.raises(TypeError, match="key 'a' is a single value"):
        Batch(a=1).split(1)


# --- in place


def test_cat_in_place_appends_one_or_several():
    batch = Batch(a=np.arange(2), b={"c": torch.ones(2)})
    same, more = batch, Batch(a=np.array([7]), b={"c": torch.zeros(1)})
    assert batch.cat_(more) is None
    batch.cat_([more, {"a": np.array([8]), "b": {"c": torch.zeros(1)}}])
    assert same.a.tolist() == [0, 1, 7, 7, 8]
    assert same.b.c.tolist() == [1, 1, 0, 0, 0]
    empty = Batch()
    empty.cat_(more)
    assert empty == more


def test_stack_in_place_begins_with_the_batch_itself():
    batch = Batch(a=np.arange(2))
    batch.stack_([Batch(a=np.array([5, 6]))])
    assert batch.a.tolist() == [[0, 1], [5, 6]]
    batch.stack_([Batch(a=np.full((2, 2), 9))], axis=1)
    assert batch.a[0].tolist() == [[0, 1], [9, 9]]
    empty = Batch()
    empty.stack_([Batch(a=1), Batch(a=2)])
    assert empty.a.tolist() == [1, 2]


def test_rows_are_emptied_in_place_or_in_a_copy():
    batch = Batch(
        a=np.arange(1, 4), b={"c": torch.ones(3, 2)}, d=np.array(["x", None, "z"], dtype=object)
    )
    copied = Batch.empty(batch, 1)
    assert batch.a.tolist() == [1, 2, 3]
    assert copied.a.tolist() == [1, 0, 3]
    assert copied.b.c.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert copied.d.tolist() == ["x", None, "z"]
    array = batch.a
    assert batch.empty_([0, 2]) is batch
    assert array.tolist() == [0, 2, 0]
    assert batch.d.tolist() == [None, None, None]
    assert batch.empty_().a.tolist() == [0, 0, 0]


def test_values_without_rows_are_emptied_as_a_whole():
    batch = Batch(a=4, b=2.5, c="text", d=True, e=np.float32(3))
    emptied = Batch.empty(batch)
    assert [emptied.a, emptied.b, emptied.c, emptied.d, emptied.e] == [0, 0.0, None, False, 0]
    assert isinstance(emptied.e, np.float32)
    with pytest.raises(TypeError, match="key 'a' is int 4: it has no rows"):
        batch.empty_(0)


def test_conversion_in_place():
    batch = Batch(a=np.arange(3), b={"c": torch.ones(2)}, d="text")
    inner = batch.b
    assert batch.to_torch_(dtype=torch.float32) is None
    assert batch.a.tolist() == [0.0, 1.0, 2.0]
    assert isinstance(batch.a, torch.Tensor)
    assert batch.to_numpy_() is None
    assert isinstance(inner.c, np.ndarray)
    assert batch.b is inner

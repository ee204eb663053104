"""`Batch`: arithmetic, and writing rows."""

import operator

import numpy as np
import pytest
import torch

from guerdon.data import Batch

OPERATIONS = [operator.add, operator.sub, operator.mul, operator.truediv]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv]


def numbers() -> Batch:
    return Batch(
        f=np.array([1.0, 2.0]),
        o={"i": np.array([3, 4]), "t": torch.tensor([5.0, 6.0])},
        s=2,
        n=None,
        e={},
    )


# --- arithmetic


@pytest.mark.parametrize("function", OPERATIONS)
@pytest.mark.parametrize("number", [3, 0.5, np.float64(3), np.float32(0.5), np.int64(2)])
def test_numbers_from_both_sides(function, number):
    batch = numbers()
    right, left = function(batch, number), function(number, batch)
    for result, compute in (
        (right, lambda leaf: function(leaf, number)),
        (left, lambda leaf: function(number, leaf)),
    ):
        assert type(result) is Batch
        assert result.f.tolist() == compute(batch.f).tolist()
        assert result.o.i.tolist() == compute(batch.o.i).tolist()
        assert result.o.t.tolist() == compute(batch.o.t).tolist()
        assert result.s == compute(batch.s)
        assert result.n is None
        assert result.e == Batch()
    assert batch == numbers()


@pytest.mark.parametrize("function", OPERATIONS)
def test_batches_are_paired_by_key(function):
    left = Batch(a=[1.0, 2.0], b={"x": [3.0], "y": torch.tensor([4.0])})
    right = {"b": {"y": torch.tensor([5.0]), "x": [6.0]}, "a": [7.0, 8.0]}
    expected = Batch(
        a=function(left.a, np.array([7.0, 8.0])),
        b={"x": function(left.b.x, 6.0), "y": function(left.b.y, 5.0)},
    )
    assert function(left, right) == function(left, Batch(right)) == expected
    assert function(left.to_dict(), Batch(right)) == expected


def test_pairing_is_not_by_position():
    assert Batch(a=1, b=0) + Batch(b=5, a=7) == Batch(a=8, b=5)


def test_unary_minus():
    result = -numbers()
    assert result == numbers() * -1
    assert (-Batch(a=np.zeros(2, np.float32))).a.dtype == np.float32


def test_arrays_and_tensors_broadcast_onto_every_leaf():
    batch = Batch(a=np.ones((2, 3)), b={"c": np.ones(3)})
    mean = Batch(a=np.arange(3.0), b={"c": np.array(2.0)})
    assert (batch - mean).a.tolist() == [[1, 0, -1], [1, 0, -1]]
    assert (np.arange(3) * batch).b.c.tolist() == [0, 1, 2]
    assert (batch * np.arange(3)).a.shape == (2, 3)
    tensors = batch.to_torch()
    assert (torch.arange(3) - tensors).b.c.tolist() == [-1, 0, 1]
    assert (torch.tensor(2.0) / tensors).a.tolist() == [[2, 2, 2], [2, 2, 2]]
    assert (np.float32(2) * tensors).a.dtype == torch.float64


def test_dtypes_are_those_of_numpy_and_torch():
    batch = Batch(h=np.ones(2, np.float16), u=np.ones(2, np.uint8), t=torch.ones(2).half())
    result = batch * 2
    assert [result.h.dtype, result.u.dtype, result.t.dtype] == [np.float16, np.uint8, torch.float16]
    assert (batch / 2).u.dtype == np.float64


def test_gradients_flow():
    weight = torch.ones(2, requires_grad=True)
    loss = ((1 - Batch(a=weight) * 3) / 2).a.sum()
    loss.backward()
    assert weight.grad.tolist() == [-1.5, -1.5]


@pytest.mark.parametrize(("function", "plain"), list(zip(IN_PLACE, OPERATIONS, strict=True)))
def test_in_place_writes_into_the_leaves(function, plain):
    batch = Batch(f=np.array([1.0, 2.0]), o={"t": torch.tensor([5.0, 6.0])}, s=2, n=None, e={})
    array, tensor, part = batch.f, batch.o.t, batch.o
    expected = plain(batch, 4)
    result = function(batch, 4)
    assert result is batch
    assert batch == expected
    assert batch.f is array
    assert batch.o is part
    assert batch.o.t is tensor
    assert function(batch, Batch(f=2, o={"t": 2}, s=2, n=None, e={})) == plain(expected, 2)


@pytest.mark.parametrize(
    ("leaf", "function", "sides"),
    [
        (
            np.array([1, 2]),
            lambda b: operator.itruediv(b, 2),
            r"int64 array of shape \(2,\) and int 2",
        ),
        (
            np.array([1, 2]),
            lambda b: operator.iadd(b, 0.5),
            r"int64 array of shape \(2,\) and float 0.5",
        ),
        (np.array([True]), lambda b: operator.iadd(b, 1), r"bool array of shape \(1,\) and int 1"),
        (np.array([True]), operator.neg, r"bool array of shape \(1,\)"),
        ("x", lambda b: b + 1, "str 'x' and int 1"),
        (np.ones(2), lambda b: b + None, r"float64 array of shape \(2,\) and NoneType None"),
        (np.ones(2), lambda b: b * torch.tensor(2.0), r"float64 array .* and float32 tensor"),
        (np.ones(2), lambda b: torch.ones(2) * b, r"float64 array .* and float32 tensor"),
        (torch.ones(2), lambda b: b - np.ones(2), r"float32 tensor .* and float64 array"),
        (torch.ones(2), lambda b: np.ones(2) / b, r"float32 tensor .* and float64 array"),
    ],
)
def test_kinds_that_do_not_compute_are_named(leaf, function, sides):
    with pytest.raises(TypeError, match=rf"key 'o\.k' cannot be computed with: {sides}"):
        function(Batch(o={"k": leaf}))


@pytest.mark.parametrize(
    ("leaf", "function", "sides"),
    [
        (
            torch.tensor([1]),
            lambda b: operator.iadd(b, 0.5),
            r"int64 tensor of shape \(1,\) and float 0.5",
        ),
        (
            torch.tensor([True]),
            lambda b: operator.iadd(b, 1),
            r"bool tensor of shape \(1,\) and int 1",
        ),
        (
            torch.ones(1, requires_grad=True),
            lambda b: operator.iadd(b, 1),
            r"tensor of shape \(1,\)",
        ),
        (np.ones(2), lambda b: b + np.ones(3), r"shape \(2,\) and float64 array of shape \(3,\)"),
        (
            torch.ones(2),
            lambda b: b + torch.ones(3),
            r"shape \(2,\) and float32 tensor of shape \(3,\)",
        ),
        (np.ones(2), lambda b: b + Batch(o={"k": np.ones(3)}), r"shape \(2,\) and .* shape \(3,\)"),
    ],
)
def test_values_that_do_not_compute_are_named(leaf, function, sides):
    with pytest.raises(ValueError, match=rf"key 'o\.k' cannot be computed with: .*{sides}"):
        function(Batch(o={"k": leaf}))


def test_division_by_zero_is_named():
    with pytest.raises(ZeroDivisionError, match=r"key 'a' .* int 1 and int 0"):
        Batch(a=1) / 0


@pytest.mark.parametrize("function", [*OPERATIONS, *IN_PLACE])
def test_keys_that_differ_are_named(function):
    with pytest.raises(
        ValueError, match=r"'b' is in the first but not in the second \(a, b and a\)"
    ):
        function(Batch(a=1.0, b=1.0), Batch(a=1.0))
    with pytest.raises(
        ValueError, match=r"'o\.y' is in the second but not in the first \(x and x, y\)"
    ):
        function(Batch(o={"x": 1.0}), {"o": {"x": 1.0, "y": 1.0}})


@pytest.mark.parametrize("function", [*OPERATIONS, *IN_PLACE])
def test_a_sub_batch_pairs_only_with_a_sub_batch_and_none_with_none(function):
    parts = {"Batch of keys .x.": {"x": [1.0]}, "float64 array": [1.0], "NoneType None": None}
    for left in parts:
        for right in parts:
            if left != right:
                with pytest.raises(TypeError, match=rf"key 'o\.k' .*{left}.* and {right}"):
                    function(Batch(o={"k": parts[left]}), Batch(o={"k": parts[right]}))


# --- writing rows


def test_rows_are_written_into_every_leaf():
    batch = Batch(a=np.zeros((3, 2)), b={"t": torch.zeros(3, dtype=torch.int32)}, n=None, e={})
    array, tensor = batch.a, batch.b.t
    batch[1] = {"a": [1, 2], "b": {"t": 3}, "n": None, "e": {}}
    batch[-1:] = Batch(a=[[5.0, 6.0]], b={"t": torch.tensor([7])}, n=None, e={})
    assert batch.a is array
    assert batch.b.t is tensor
    assert array.tolist() == [[0, 0], [1, 2], [5, 6]]
    assert tensor.tolist() == [0, 3, 7]
    batch[np.array([True, False, True])] = 9
    assert array.tolist() == [[9, 9], [1, 2], [9, 9]]


def test_rows_of_other_kinds_are_converted():
    batch = Batch(a=np.zeros(2), t=torch.zeros(2))
    batch[0] = {"a": torch.tensor(2.0, requires_grad=True), "t": np.float32(3)}
    frozen = np.arange(2.0)
    frozen.flags.writeable = False
    batch[::-1] = {"a": torch.tensor([4.0, 5.0]), "t": frozen}
    assert batch.a.tolist() == [5, 4]
    assert batch.t.tolist() == [1, 0]


@pytest.mark.parametrize(
    "index", [0, -1, slice(1, 3), [0, 2], np.array([1, 1]), np.array([0], np.uint8)]
)
def test_add_to_rows(index):
    batch = Batch(
        a=np.arange(4.0), i=np.arange(4), u=np.arange(4, dtype=np.uint8), t=torch.arange(4)
    )
    expected = np.arange(4)
    expected[index] += 6
    batch[index] += 6
    for value in batch.values():
        assert value.tolist() == expected.tolist()


def test_small_integers_and_objects_take_python_values():
    batch = Batch(u=np.zeros(2, np.uint8), t=torch.zeros(2, dtype=torch.uint8), s=["x", None])
    batch[0] = {"u": 255, "t": 255, "s": None}
    batch[1] = {"u": True, "t": np.uint8(3), "s": "text"}
    assert batch.u.tolist() == [255, 1]
    assert batch.t.tolist() == [255, 3]
    assert batch.s.tolist() == [None, "text"]
    batch = Batch(f=np.zeros(2, np.float32), n=None)
    batch[:] = 0.1
    assert batch.f.dtype == np.float32


@pytest.mark.parametrize(
    ("leaf", "value", "sides"),
    [
        (np.zeros(2, int), 0.5, r"int64 array of shape \(2,\) and cannot hold float 0.5"),
        (
            np.zeros(2, int),
            np.float64(0.5),
            r"int64 array of shape \(2,\) and cannot hold float64 0.5",
        ),
        (np.zeros(2, bool), 1, r"bool array of shape \(2,\) and cannot hold int 1"),
        (np.zeros(2), "x", "float64 array .* str 'x'"),
        (np.zeros(2), None, "float64 array .* NoneType None"),
        (np.zeros(2), 1j, "float64 array .* complex 1j"),
        (
            torch.zeros(2, dtype=torch.int64),
            0.5,
            r"int64 tensor of shape \(2,\) and cannot hold float 0.5",
        ),
        (torch.zeros(2, dtype=torch.int64), np.float32(0.5), "int64 tensor .* float32 0.5"),
        (torch.zeros(2, dtype=torch.bool), 1, "bool tensor .* int 1"),
        (torch.zeros(2), "x", "float32 tensor .* str 'x'"),
        (torch.zeros(2), None, "float32 tensor .* NoneType None"),
        (4, 5, "int 4 and cannot hold int 5 there: there are no rows"),
    ],
)
def test_values_a_leaf_cannot_hold_are_named(leaf, value, sides):
    batch = Batch(o={"k": leaf})
    with pytest.raises(TypeError, match=rf"key 'o\.k' is {sides}"):
        batch[0] = {"o": {"k": value}}


@pytest.mark.parametrize(
    ("leaf", "value", "sides"),
    [
        (np.zeros((2, 3)), [1, 2], r"shape \(2, 3\) and cannot hold int64 array of shape \(2,\)"),
        (torch.zeros(2, 3), [1, 2], r"shape \(2, 3\) and cannot hold int64 array of shape \(2,\)"),
        (np.zeros(2, np.uint8), 300, r"uint8 array of shape \(2,\) and cannot hold int 300"),
        (
            torch.zeros(2, dtype=torch.uint8),
            300,
            r"uint8 tensor of shape \(2,\) and cannot hold int 300",
        ),
        (
            torch.zeros(2, requires_grad=True),
            1,
            r"float32 tensor of shape \(2,\) and cannot hold int 1",
        ),
    ],
)
def test_values_that_do_not_fit_are_named(leaf, value, sides):
    batch = Batch(o={"k": leaf})
    with pytest.raises(ValueError, match=rf"key 'o\.k' is .*{sides}"):
        batch[0] = {"o": {"k": value}}


def test_rows_that_are_not_there_are_named():
    for leaf in (np.zeros(2), torch.zeros(2)):
        with pytest.raises(IndexError, match=r"key 'o\.k' is .*index 5"):
            Batch(o={"k": leaf})[5] = 1


def test_rows_have_the_same_keys_and_nodes():
    batch = Batch(a=np.zeros(2), o={"x": np.zeros(2)}, n=None, e={})
    row = {"a": 1, "o": {"x": 1}, "n": None, "e": {}}
    for changed, message in (
        ({"new": 1}, r"'new' is in the second but not in the first"),
        ({"o": {}}, r"'o\.x' is in the first but not in the second \(x and none\)"),
        ({"e": {"y": 1}}, r"'e\.y' is in the second but not in the first \(none and y\)"),
    ):
        with pytest.raises(ValueError, match=message):
            batch[0] = {**row, **changed}
    for changed, message in (
        ({"o": 1}, r"key 'o' does not fit: Batch of keys \(x\) and int 1"),
        (
            {"a": {"x": 1}},
            r"key 'a' does not fit: float64 array of shape \(2,\) and Batch of keys \(x\)",
        ),
        ({"n": 1}, r"key 'n' does not fit: NoneType None and int 1"),
        ({"e": 1}, r"key 'e' does not fit: Batch of keys \(\) and int 1"),
    ):
        with pytest.raises(TypeError, match=message):
            batch[0] = {**row, **changed}
    with pytest.raises(ValueError, match="'a' is in the first but not in the second"):
        batch[0] = {"o": {"x": 1}, "n": None, "e": {}}
    for value in ([1, 2], np.zeros(2), "x", None):
        with pytest.raises(TypeError, match="rows are set from a Batch, a dict or a number, not "):
            batch[0] = value

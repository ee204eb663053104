"""`Batch`: what holds for every nested batch, beside the same done leaf by leaf."""

import copy
import operator
import pickle

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.data import Batch
from guerdon.data.batch import flatten, unflatten

quick = settings(max_examples=40)

KEYS = st.sampled_from(["a", "b", "obs", "items", "shape", "_data", "ключ", "__class__"])
DTYPES = st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_])
NUMBERS = st.sampled_from([np.float32, np.float64, np.int32, np.int64])
TWO_MORE = hnp.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=3)


@st.composite
def leaves(draw, rows, dtypes, tensors=True):
    dtype = np.dtype(draw(dtypes))
    bounds = {} if dtype.kind == "b" else {"min_value": 0, "max_value": 100}
    elements = hnp.from_dtype(dtype, **bounds)
    array = draw(hnp.arrays(dtype, (*rows, *draw(TWO_MORE)), elements=elements))
    return torch.from_numpy(array) if tensors and draw(st.booleans()) else array


@st.composite
def batches(draw, rows=None, dtypes=DTYPES, tensors=True, empty=True):
    """A nested batch with one leaf of two dimensions or more at its top."""
    if rows is None:
        rows = (draw(st.integers(1, 6)), draw(st.integers(1, 3)))
    nothing = st.sampled_from([None, Batch()]) if empty else st.nothing()
    leaf = leaves(rows, dtypes, tensors) | nothing
    tree = st.recursive(leaf, lambda part: st.dictionaries(KEYS, part, max_size=3), max_leaves=6)
    nested = draw(st.dictionaries(KEYS, tree, max_size=3))
    return Batch(nested, top=draw(leaves(rows, dtypes, tensors)))


def per_leaf(function, batch):
    """The same leaf by leaf, on plain arrays."""
    table = dict(flatten(batch.to_numpy()))
    return unflatten({path: _call(function, leaf) for path, leaf in table.items()})


def _call(function, leaf):
    return function(leaf) if isinstance(leaf, np.ndarray) else leaf


def same(left, right):
    """Equal keys, values and dtypes; a scalar is as good as an array without dimensions."""
    left, right = (dict(flatten(side.to_numpy())) for side in (left, right))
    assert left.keys() == right.keys()
    for path, leaf in left.items():
        if leaf is None or isinstance(leaf, Batch):
            assert leaf == right[path]
        else:
            assert np.asarray(leaf).dtype == np.asarray(right[path]).dtype
            np.testing.assert_array_equal(leaf, right[path])


def indices(rows):
    """Every kind of index for so many rows and columns."""
    first, second = rows
    one = st.integers(-first, first - 1)
    return st.one_of(
        one,
        one.map(np.int64),
        st.slices(first),
        st.lists(one, max_size=5),
        hnp.arrays(np.int64, st.integers(0, 5), elements=one),
        hnp.arrays(np.int16, (2, 2), elements=one),
        hnp.arrays(np.uint8, st.integers(0, 5), elements=st.integers(0, first - 1)),
        hnp.arrays(np.bool_, first),
        st.tuples(one, st.integers(-second, second - 1)),
        st.tuples(st.just(slice(None)), st.integers(-second, second - 1)),
        st.tuples(hnp.arrays(np.int64, 3, elements=one), st.just(slice(None))),
        hnp.arrays(np.bool_, (first, second)),
        st.sampled_from([..., None, ()]),
    )


@quick
@given(st.data())
def test_indexing_is_that_of_every_leaf(data):
    batch = data.draw(batches())
    index = data.draw(indices(batch.shape[:2]))
    same(batch[index], per_leaf(lambda leaf: leaf[index], batch))


@quick
@given(st.data())
def test_rows_come_back_as_they_were_written(data):
    batch = data.draw(batches())
    index = data.draw(indices(batch.shape[:2]))
    before = copy.deepcopy(batch)
    batch[index] = batch[index]
    same(batch, before)
    other = copy.deepcopy(batch)
    other[index] = batch[index]
    same(other, batch)


@quick
@given(batches(), st.integers(1, 7), st.booleans())
def test_cat_undoes_split(batch, size, merge_last):
    parts = list(batch.split(size, shuffle=False, merge_last=merge_last))
    assert Batch.cat(parts) == batch
    assert sum(map(len, parts)) == len(batch)
    assert all(len(part) == size for part in parts[:-1])
    assert Batch.cat(parts[:1] * 2)[: len(parts[0])] == parts[0]


@quick
@given(batches(), st.integers(1, 7), st.integers(0, 9))
def test_shuffled_split_is_a_permutation_of_the_rows(batch, size, seed):
    batch.row = np.arange(len(batch))
    shuffled = Batch.cat(list(batch.split(size, generator=seed)))
    assert shuffled == batch[shuffled.row]
    assert sorted(shuffled.row) == list(range(len(batch)))


@quick
@given(batches(), st.integers(1, 3))
def test_indexing_undoes_stack(batch, count):
    stacked = Batch.stack([batch] * count)
    assert len(stacked) == count
    assert all(row == batch for row in stacked)
    same(Batch.stack([batch] * count, axis=1)[:, 0], batch)


@quick
@given(batches())
def test_stack_undoes_iteration(batch):
    same(Batch.stack(list(batch)), batch)


@quick
@given(batches())
def test_slices_cat_to_the_whole(batch):
    cut = len(batch) // 2
    assert Batch.cat([batch[:cut], batch[cut:]]) == batch


@quick
@given(
    batches(dtypes=NUMBERS),
    st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv]),
    st.sampled_from([2, 0.5, np.float64(3), np.int64(2)]),
)
def test_arithmetic_with_numbers_is_that_of_numpy(batch, function, number):
    batch = batch.to_numpy() + 1
    same(function(batch, number), per_leaf(lambda leaf: function(leaf, number), batch))
    same(function(number, batch), per_leaf(lambda leaf: function(number, leaf), batch))
    same(function(batch, batch), per_leaf(lambda leaf: function(leaf, leaf), batch))
    same(-batch, per_leaf(operator.neg, batch))


@quick
@given(batches(dtypes=NUMBERS))
def test_arithmetic_pairs_by_key_in_any_order(batch):
    backwards = unflatten(dict(reversed(list(flatten(batch)))))
    same(batch + backwards, batch * 2)
    same(batch - backwards, batch * 0)


@quick
@given(batches(dtypes=st.just(np.float64)), st.sampled_from([2, 0.5]))
def test_in_place_arithmetic_is_the_same(batch, number):
    expected = (batch + number) * number
    batch += number
    batch *= number
    same(batch, expected)


@quick
@given(batches())
def test_copies_and_pickles(batch):
    for other in (
        copy.copy(batch),
        copy.deepcopy(batch),
        pickle.loads(pickle.dumps(batch)),
        Batch(batch),
        Batch(batch.to_dict()),
        unflatten(dict(flatten(batch))),
        batch.apply(lambda leaf: leaf),
    ):
        assert other == batch
        same(other, batch)
        assert list(other.keys()) == list(batch.keys())
        assert repr(other) == repr(batch)


@quick
@given(batches(tensors=False))
def test_to_torch_and_back_is_the_identity(batch):
    there = batch.to_torch()
    assert there.shape == batch.shape
    same(there.to_numpy(), batch)
    assert there.to_numpy() == batch


@quick
@given(batches(), st.sampled_from([torch.float32, torch.float64, torch.int64]))
def test_to_torch_obeys_its_dtype(batch, dtype):
    for _, leaf in flatten(batch.to_torch(dtype)):
        assert leaf is None or isinstance(leaf, Batch) or leaf.dtype == dtype

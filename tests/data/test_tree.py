"""Nested batches as tables of leaves."""

import numpy as np
import pytest
import torch

from guerdon.data import Batch
from guerdon.data.batch import flatten, unflatten


def test_flatten_names_every_leaf_in_order():
    array, tensor = np.zeros(2), torch.zeros(2)
    batch = Batch(b={"y": array, "x": {"deep": tensor}}, a=3, n=None, e={}, l=["s", None])
    table = dict(flatten(batch))
    assert list(table) == [("b", "y"), ("b", "x", "deep"), ("a",), ("n",), ("e",), ("l",)]
    assert table["b", "y"] is array
    assert table["b", "x", "deep"] is tensor
    assert table["n",] is None
    assert table["e",] == Batch()


def test_mappings_flatten_like_batches():
    data = {"b": {"y": 1, "x": {}}, "a": 2}
    assert list(flatten(data)) == [(("b", "y"), 1), (("b", "x"), {}), (("a",), 2)]


@pytest.mark.parametrize(
    "batch",
    [
        Batch(),
        Batch(a=1),
        Batch(a={}, b={"c": {}}),
        Batch(a={"b": {"c": [1, 2], "n": None}, "s": "text"}, t=torch.zeros(2)),
        Batch({"a.b": [1], "": {"": [2]}, "items": {"keys": [3]}, "_data": [4]}),
    ],
)
def test_unflatten_undoes_flatten(batch):
    table = dict(flatten(batch))
    assert unflatten(table) == batch
    assert unflatten(dict(reversed(table.items()))) == batch
    assert list(unflatten(table).keys()) == list(batch.keys())


def test_a_single_leaf_has_the_empty_path():
    assert list(flatten(3)) == [((), 3)]
    with pytest.raises(ValueError, match="'' is a leaf, but other leaves"):
        unflatten({(): 3})


@pytest.mark.parametrize("leaf", [1, np.zeros(2), None, Batch(), Batch(x=1), {}])
@pytest.mark.parametrize("leaf_first", [True, False])
def test_a_leaf_cannot_have_others_below_it(leaf, leaf_first):
    items = [(("o", "a"), leaf), (("o", "a", "b", "c"), 1)]
    with pytest.raises(ValueError, match=r"'o\.a'"):
        unflatten(dict(items if leaf_first else reversed(items)))

import json

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from guerdon.data import Batch
from guerdon.data.spaces import (
    as_rows,
    check_rows,
    number_to_json,
    space_from_json,
    space_to_json,
)

SPACES = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.Box(np.array([-np.inf, 0.1], "f4"), np.array([0.1, np.inf], "f4")),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (2,), np.int64),
    spaces.Box(np.array([-(2**63), 0]), np.array([1, 2**62 + 1]), dtype=np.int64),
    spaces.Box(0.5, 1.5, ()),
    spaces.Box(0, 1, (0, 2)),
    spaces.Box(0, 1, (2,), np.float16),
    spaces.Box(0, 1, (2,), np.bool_),
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [0, -2]])),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 3)),
    spaces.Text(5),
    spaces.Text(9, min_length=0, charset="zé\n a"),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Tuple([spaces.MultiBinary(1)]))]),
    spaces.Tuple([]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back_from_strict_json(space):
    text = json.dumps(space_to_json(space), allow_nan=False)
    read = space_from_json(json.loads(text))
    assert read == space
    assert read.dtype == space.dtype
    if isinstance(space, spaces.Box):
        assert read.low.tobytes() == space.low.tobytes()
        assert read.high.tobytes() == space.high.tobytes()
        assert (read.bounded_below == space.bounded_below).all()
    if isinstance(space, spaces.Dict):
        assert list(read) == list(space)


@given(hnp.arrays("f4", 3, elements=st.floats(width=32, allow_nan=False)))
def test_bounds_come_back_to_the_bit(low):
    space = spaces.Box(low, np.full(3, np.inf, "f4"))
    read = space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False)))
    assert read.low.tobytes() == space.low.tobytes()


def test_equal_bounds_are_one_number():
    assert space_to_json(spaces.Box(-np.inf, 1, (9,))) == {
        "type": "Box",
        "shape": [9],
        "dtype": "float32",
        "low": "-inf",
        "high": 1.0,
    }


def test_other_spaces_are_refused():
    class MyBox(spaces.Box):
        pass

    with pytest.raises(ValueError, match="type Graph cannot be written as JSON"):
        space_to_json(spaces.Graph(spaces.Box(0, 1), None))
    with pytest.raises(ValueError, match="type MyBox"):
        space_to_json(MyBox(0, 1))
    with pytest.raises(ValueError, match="type Sequence"):
        space_to_json(spaces.Dict(x=spaces.Sequence(spaces.Discrete(2))))


@pytest.mark.parametrize(
    "data", [None, [], {}, {"type": "Graph"}, {"type": "Box", "shape": [2]}, {"type": "Discrete"}]
)
def test_what_is_no_space_is_refused(data):
    with pytest.raises(ValueError, match="not a space written by guerdon"):
        space_from_json(data)


def test_numbers():
    assert number_to_json(np.float32(0.5)) == 0.5
    assert number_to_json(float("nan")) == "nan"
    assert number_to_json(-np.inf) == "-inf"
    assert number_to_json(np.int64(3)) == 3


@pytest.mark.parametrize(
    "space", [space for space in SPACES if 0 not in (space.shape or ())], ids=str
)
def test_samples_fit_their_space(space):
    def batch(samples):
        if isinstance(samples[0], dict):
            return Batch({key: batch([sample[key] for sample in samples]) for key in samples[0]})
        if isinstance(samples[0], tuple):
            parts = enumerate(zip(*samples, strict=True))
            return Batch({str(i): batch(part) for i, part in parts})
        return np.array(samples, dtype=object if isinstance(samples[0], str) else None)

    space.seed(0)
    check_rows(space, batch([space.sample() for _ in range(5)]), "obs")


@pytest.mark.parametrize(
    ("space", "rows", "error"),
    [
        (spaces.Box(0, 1, (3,)), np.zeros((5, 2), "f4"), r"obs is float32 array of shape \(5, 2\)"),
        (spaces.Box(0, 1, (3,)), np.zeros((5, 3)), "obs is float64"),
        (spaces.Box(0, 1, (3,)), Batch(x=np.zeros((5, 3))), "obs is Batch"),
        (spaces.Box(0, 255, (3,), np.uint8), np.zeros((5, 3), "f4"), "obs is float32"),
        (spaces.Discrete(2), np.array([0, 1, 2]), "obs is 2 in row 2"),
        (spaces.Discrete(2, start=1), torch.tensor([0]), "obs is 0 in row 0"),
        (spaces.Discrete(2), np.array([0.0]), "needs integers"),
        (spaces.MultiDiscrete([2, 3]), np.array([[1, 2], [2, 0]]), "in row 1"),
        (spaces.MultiBinary(1), np.array([[2]]), "in row 0"),
        (spaces.Text(3), np.array([1]), "strings"),
        (spaces.Dict(a=spaces.Discrete(2)), Batch(b=np.array([0])), "keys b, but the space has a"),
        (spaces.Dict(a=spaces.Discrete(2)), np.array([0]), "obs has int64 array"),
        (spaces.Dict(a=spaces.Discrete(2)), Batch(a=np.array([5])), r"obs\.a is 5"),
    ],
)
def test_rows_that_do_not_fit(space, rows, error):
    with pytest.raises(ValueError, match=error):
        check_rows(space, rows, "obs")


def test_a_box_of_more_precision_takes_less():
    check_rows(spaces.Box(0, 1, (1,), np.float64), np.zeros((2, 1), "f4"), "obs")
    check_rows(spaces.Box(0, 1, (1,)), torch.zeros(2, 1), "obs")
    check_rows(spaces.Box(0, 1, (1,)), np.zeros((2, 1)), "act", "same_kind")


def test_whole_numbers_may_be_wider_where_they_stay_the_same():
    image = spaces.Box(0, 255, (2,), np.uint8)
    check_rows(image, np.array([[0, 255]], np.uint16), "obs", "same_kind")
    for rows in (np.array([[0, 256]], np.uint16), np.array([[0.0, 1.0]]), np.array([[0, 1]])):
        with pytest.raises(ValueError, match=f"obs is {rows.dtype}, which does not fit"):
            check_rows(image, rows, "obs", "same_kind")


def test_rows_get_the_dtypes_of_their_space():
    text = np.array(["a", "b"], object)
    space = spaces.Dict(
        a=spaces.Box(0, 1, (1,)),
        b=spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 255, (1,), np.uint8)]),
        c=spaces.Text(3),
    )
    rows = Batch(
        a=np.ones((2, 1)),
        b=Batch({"0": torch.tensor([0, 1], dtype=torch.int8), "1": np.ones((2, 1), np.uint8)}),
        c=text,
    )
    check_rows(space, rows, "obs", "same_kind")
    found = as_rows(space, rows)
    assert found.a.dtype == np.float32
    assert (found.b["0"].dtype, found.b["0"].tolist()) == (np.int64, [0, 1])
    assert found.b["1"] is rows.b["1"]
    assert found.c is text

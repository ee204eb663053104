"""A state comes back as it was, whatever is in it."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file

from guerdon.data.serializer import decode_part, encode_part

TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]


def through_files(value):
    with TemporaryDirectory() as folder:
        encoded, pieces = encode_part("part", value)
        path = Path(folder) / "part.safetensors"
        if pieces is None:
            return decode_part(encoded, None)
        path.write_bytes(b"".join(bytes(piece) for piece in pieces))
        return decode_part(encoded, path)


def same(left, right):
    """Whether two values are equal to the last bit, and of the same types throughout."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, torch.Tensor):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and left.contiguous().reshape(
            -1
        ).view(torch.uint8).tolist() == right.contiguous().reshape(-1).view(torch.uint8).tolist()
    if isinstance(left, np.ndarray | np.generic):
        if (left.dtype, left.shape) != (right.dtype, right.shape):
            return False
        if left.dtype == object:
            return same(left.ravel().tolist(), right.ravel().tolist())
        return left.tobytes() == right.tobytes()
    return left == right or (left != left and right != right)


def tensors():
    dtypes = st.sampled_from(TORCH_DTYPES)
    shapes = st.lists(st.integers(0, 3), max_size=3)

    def make(dtype, shape, data):
        count = math.prod(shape) * dtype.itemsize
        raw = torch.tensor(list(data[:count].ljust(count, b"\1")), dtype=torch.uint8)
        if dtype is torch.bool:
            raw %= 2
        return raw.view(dtype).reshape(shape)

    return st.builds(make, dtypes, shapes, st.binary(max_size=64))


numbers = st.integers() | st.integers(-(1 << 200), 1 << 200) | st.floats()
plain = st.none() | st.booleans() | numbers | st.text(max_size=5)
dtypes = (
    hnp.scalar_dtypes() | hnp.unicode_string_dtypes(max_len=4) | hnp.byte_string_dtypes(max_len=4)
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
scalars = hnp.arrays(dtypes, ()).map(lambda array: array[()])
keys = st.text(max_size=4) | st.integers() | st.tuples(st.text(max_size=3), st.text(max_size=3))
values = st.recursive(
    plain | arrays | scalars | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(values)
def test_any_nested_value_comes_back_to_the_last_bit(value):
    assert same(through_files(value), value)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_every_dtype_comes_back_without_an_axis_and_without_rows(dtype):
    for shape in ((), (0, 3), (2, 0)):
        value = torch.zeros(shape, dtype=dtype)
        assert same(through_files({"x": value})["x"], value)


def test_views_and_shared_memory_are_stored_each_on_its_own():
    base = torch.arange(24).reshape(4, 6)
    state = {
        "base": base,
        "again": base,
        "transposed": base.T,
        "strided": base[::2, 1::3],
        "expanded": torch.tensor([1.5, 2.5]).expand(3, 2),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "weight": torch.nn.Parameter(torch.ones(2)),
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3))[:, ::2],
        "reversed": np.arange(3)[::-1],
    }
    back = through_files(state)
    for key, value in state.items():
        assert torch.equal(
            torch.as_tensor(back[key]),
            torch.as_tensor(value.copy() if key == "reversed" else value),
        ), key
    back["base"][0, 0] = 99
    assert back["again"][0, 0] == back["transposed"][0, 0] == 0
    assert not back["weight"].requires_grad


def test_optimizer_states_and_generator_states_come_back():
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.grad = torch.tensor([0.5, -0.5])
    optimizer.step()
    state = {
        "optimizer": optimizer.state_dict(),
        "pcg": np.random.default_rng(3).bit_generator.state,
        "mersenne": np.random.MT19937(3).state,
        "torch": torch.Generator().manual_seed(3).get_state(),
    }
    assert same(through_files(state), state)


def test_arrays_of_objects_keep_lists_and_shapes():
    value = np.empty((2, 2), dtype=object)
    value[0, 0], value[0, 1], value[1, 0] = [1, 2], {"a": (None, 1.5)}, "text"
    back = through_files({"info": value})["info"]
    assert same(back, value)
    assert back[0, 0] == [1, 2]


def test_names_in_the_file_are_those_of_the_module(tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())
    _, pieces = encode_part("policy", network.state_dict())
    (tmp_path / "policy.safetensors").write_bytes(b"".join(bytes(piece) for piece in pieces))
    torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh()).load_state_dict(
        load_file(tmp_path / "policy.safetensors")
    )


def test_keys_that_would_get_the_same_name_do_not_collide():
    state = {
        "a.b": torch.tensor(1),
        "a": {"b": torch.tensor(2)},
        ("a", "b"): torch.tensor(3),
        "__metadata__": torch.tensor(4),
    }
    assert same(through_files(state), state)


@pytest.mark.parametrize(
    ("leaf", "what"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        (torch.zeros(2).to_sparse(), "tensor"),
        (torch.zeros(2, device="meta"), "meta"),
        (np.zeros(2, dtype=[("x", "f4")]), "array"),
        (np.ma.masked_array([1, 2], [True, False]), "array"),
    ],
)
def test_what_cannot_be_held_is_refused_by_its_name(leaf, what):
    with pytest.raises(TypeError, match=f"'policy.deep.0' is .*{what}"):
        encode_part("policy", {"deep": [leaf]})

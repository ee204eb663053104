"""What a `Batch` may hold: how values become leaves, and what is done to one leaf at a time.

A leaf is a NumPy array, a torch tensor, or a plain Python object (number, string, None, anything
else), which is kept as it is. `Batch` itself is the only inner node.
"""

import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Array = np.ndarray | torch.Tensor

# Plain values, stored without a look inside.
SCALARS = frozenset({int, float, bool, str, bytes, complex, type(None)})
_NUMBERS = frozenset({int, float, bool})


def describe(leaf: Any) -> str:
    """Says what a leaf is, for error messages: ``float32 array of shape (3, 4)``."""
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype} array of shape {leaf.shape}"
    if isinstance(leaf, torch.Tensor):
        place = "" if leaf.device.type == "cpu" else f" on {leaf.device}"
        dtype = str(leaf.dtype).removeprefix("torch.")
        return f"{dtype} tensor of shape {tuple(leaf.shape)}{place}"
    if hasattr(leaf, "keys"):
        return f"{type(leaf).__name__} of keys ({', '.join(map(str, leaf.keys()))})"
    plain_leaf = leaf.item() if isinstance(leaf, np.generic) else leaf
    return f"{type(leaf).__name__} {reprlib.repr(plain_leaf)}"


def from_ndarray(array: np.ndarray) -> np.ndarray:
    """Keeps numbers as they are and turns NumPy's fixed-width strings into Python strings."""
    return array.astype(object) if array.dtype.kind in "SU" else array


def plain(array: np.ndarray, key: str) -> np.ndarray:
    """The memory of a memory map, a matrix or another subclass, without what that class adds."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"key {key!r} is a masked array: fill it, or store its mask as a key")
    return array if type(array) is np.ndarray else array.view(np.ndarray)


def from_sequence(values: Sequence[Any], key: str) -> Array:
    """Makes one leaf of a list or tuple whose elements are no mappings."""
    kinds = set(map(type, values))
    if kinds <= _NUMBERS:
        return np.asarray(values)  # the common case
    if any(issubclass(kind, torch.Tensor) for kind in kinds):
        if not all(issubclass(kind, torch.Tensor) for kind in kinds):
            raise TypeError(_mix(values, key))
        return join(torch.stack, values, key)
    if kinds in ({str}, {bytes}):  # NumPy's own strings would lose NUL characters at their ends
        return np.array(values, dtype=object)
    if any(hasattr(kind, "keys") for kind in kinds):
        raise TypeError(_mix(values, key))
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(
            f"key {key!r} is a list of unequal shapes ({_sides(values)}): "
            "pad them, or store them under separate keys"
        ) from None
    return from_ndarray(array)


def _mix(values: Sequence[Any], key: str) -> str:
    firsts = {type(value): describe(value) for value in reversed(values)}
    return f"key {key!r} is a list that mixes {' and '.join(reversed(firsts.values()))}"


def _sides(values: Sequence[Any]) -> str:
    """Describe the first of the values that differ, for error messages."""
    return " and ".join(list(dict.fromkeys(map(describe, values)))[:4])


def join(function: Callable[..., Any], leaves: Sequence[Any], key: str, axis: int = 0) -> Array:
    """Concatenates or stacks the leaves of one key: one kind, one dtype, fitting shapes."""
    first = leaves[0]
    kind = np.ndarray if type(first) is np.ndarray else torch.Tensor
    dtype = first.dtype
    for leaf in leaves[1:]:
        if not isinstance(leaf, kind) or leaf.dtype != dtype:
            raise TypeError(f"key {key!r} does not fit: {describe(first)} and {describe(leaf)}")
    try:
        return function(leaves, axis)  # type: ignore[no-any-return]
    except (ValueError, RuntimeError, IndexError) as error:
        raise ValueError(f"key {key!r} does not fit along axis {axis}: {_sides(leaves)}") from error


def stack_values(values: Sequence[Any], key: str, axis: int, stack: bool) -> Array:
    """Stacks single values, which have no rows to concatenate, into one array."""
    first = values[0]
    for value in values:
        if type(value) is not type(first) and not _alike(first, value):
            raise TypeError(f"key {key!r} does not fit: {describe(first)} and {describe(value)}")
    if not stack:
        raise TypeError(f"key {key!r} holds {describe(first)}, which has no rows to join")
    if axis not in (0, -1):
        raise ValueError(f"key {key!r} holds {describe(first)}, which has no axis {axis}")
    return from_sequence(values, key)


def _alike(left: Any, right: Any) -> bool:
    """Whether two types go into one array: a number of Python goes with any other number."""
    kinds = [
        np.bool_ if isinstance(side, bool | np.bool_) else type(side) for side in (left, right)
    ]
    numbers = all(issubclass(kind, int | float | np.number) for kind in kinds)
    both_numpy = isinstance(left, np.generic) and isinstance(right, np.generic)
    return kinds[0] is kinds[1] or (numbers and not both_numpy)


def shape(leaf: Any) -> tuple[int, ...]:
    """The dimensions of a leaf; a Python object has none."""
    return tuple(leaf.shape) if isinstance(leaf, Array) else ()


def rows(leaf: Any, index: Any) -> Any:
    """The rows of one leaf; None survives every index."""
    if isinstance(leaf, torch.Tensor):
        return leaf[index if type(index) is int else torch_index(index, leaf)]
    if isinstance(leaf, np.ndarray):
        return leaf[index]
    if leaf is None:
        return None
    raise TypeError("it has no rows")


def torch_index(index: Any, leaf: torch.Tensor) -> Any:
    """An index that means to torch what it means to NumPy."""
    if type(index) is slice:  # torch knows no negative steps
        step = index.step
        return index if step is None or step > 0 else np.arange(*index.indices(len(leaf)))
    if isinstance(index, np.ndarray):  # torch takes uint8 for a mask
        return index.astype(np.int64) if index.dtype == np.uint8 else index
    if isinstance(index, list):  # torch takes a list of lists for a tuple
        return np.asarray(index) if index else index
    if isinstance(index, tuple):
        return tuple(torch_index(i, leaf) if isinstance(i, np.ndarray) else i for i in index)
    return index


def compute(function: Callable[..., Any], leaf: Any, others: tuple[Any, ...], key: str) -> Any:
    """``function(leaf, other)``, or an error that says for which key it failed."""
    tensors = {isinstance(s, torch.Tensor) for s in (leaf, *others) if isinstance(s, Array)}
    try:
        if len(tensors) > 1:
            raise TypeError("convert one side with to_torch or to_numpy")
        return function(leaf, *others)
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        kind = next((k for k in (TypeError, ZeroDivisionError) if isinstance(error, k)), ValueError)
        sides = " and ".join(describe(side) for side in (leaf, *others))
        raise kind(f"key {key!r} cannot be computed with: {sides}: {error}") from error


def to_torch(leaf: Any, dtype: torch.dtype | None, device: str | torch.device | None) -> Any:
    """Turns numbers and numeric arrays into tensors; other Python objects stay what they are."""
    if isinstance(leaf, np.ndarray):
        if leaf.dtype.kind not in "fiubc":
            return leaf
        leaf = _as_tensor(leaf)
    elif isinstance(leaf, np.number | np.bool_ | int | float | complex):
        leaf = torch.as_tensor(leaf)
    elif not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf if dtype is None and device is None else leaf.to(device=device, dtype=dtype)


def to_device(leaf: Any, device: torch.device) -> Any:
    """Return a numeric leaf as a tensor on a device, in single precision; others stay as they are.

    This is the one place where data of environments becomes data of learners. Nothing waits for the
    device.
    """
    if isinstance(leaf, np.ndarray):
        if leaf.dtype.kind not in "fiub":
            return leaf
        leaf = _as_tensor(leaf)
    elif not isinstance(leaf, torch.Tensor):
        return leaf
    dtype = torch.float32 if leaf.dtype == torch.float64 else leaf.dtype
    if dtype == leaf.dtype and leaf.device == device:
        return leaf  # even an idle `to` takes its time
    return leaf.to(device, dtype, non_blocking=device.type == "cuda")


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a numeric array as a tensor; memory is shared where torch can."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    flags = array.flags
    regular = flags.c_contiguous or all(
        stride >= 0 and stride % array.itemsize == 0 for stride in array.strides
    )
    return torch.from_numpy(array if flags.writeable and regular else array.copy())


def to_numpy(leaf: Any) -> Any:
    """Turns tensors into arrays; everything else stays what it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.dtype == torch.bfloat16:
        leaf = leaf.float()  # which NumPy does not have
    return leaf.numpy(force=True)


def equal(left: Any, right: Any) -> bool:
    """Whether two leaves are of one kind and hold the same values."""
    if isinstance(left, torch.Tensor):
        same = isinstance(right, torch.Tensor) and left.device == right.device
        return same and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        if not isinstance(right, np.ndarray) or left.shape != right.shape:
            return False
        if left.dtype == object == right.dtype:
            return all(map(equal, left.flat, right.flat))
        return np.array_equal(left, right)
    return not isinstance(right, Array) and bool(left == right)


def assign(leaf: Any, index: Any, value: Any, key: str) -> None:
    """Writes into a leaf, where NumPy and torch would cut decimals off without a word."""
    weak = type(value) in (bool, int, float, complex)  # takes the width of the leaf
    source = value
    try:
        if isinstance(leaf, np.ndarray):
            source = value if weak else np.asarray(to_numpy(value))
            dtype = np.result_type(leaf.dtype, value) if weak else source.dtype
            casting: Any = "safe" if leaf.dtype.kind in "iu" else "same_kind"
            fits = dtype == leaf.dtype or np.can_cast(dtype, leaf.dtype, casting)
        elif isinstance(leaf, torch.Tensor):
            index = torch_index(index, leaf)
            if weak:
                fits = torch.can_cast(torch.result_type(leaf, value), leaf.dtype)
            else:
                source = to_torch(value, None, leaf.device)
                fits = isinstance(source, torch.Tensor) and torch.can_cast(source.dtype, leaf.dtype)
                source = source.to(leaf.dtype) if fits else source
        else:
            raise TypeError("there are no rows to write to")
        if not fits:
            raise TypeError("the dtypes do not fit")
        leaf[index] = source
    except (TypeError, ValueError, RuntimeError, IndexError, OverflowError) as error:
        kind = next((k for k in (TypeError, IndexError) if isinstance(error, k)), ValueError)
        sides = f"{describe(leaf)} and cannot hold {describe(value)}"
        raise kind(f"key {key!r} is {sides} there: {error}") from error


def text(leaf: Any) -> str:
    """How a leaf is printed; NumPy's scalars look like Python's."""
    return repr(leaf.item() if isinstance(leaf, np.generic) else leaf)

"""Leaves of a `Batch`: conversion, and operations on one leaf.

A leaf is a NumPy array, a torch tensor, or any other Python object, which is kept unchanged. Inner
nodes are always of type `Batch`.
"""

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

Array = np.ndarray | torch.Tensor


def describe(leaf: Any) -> str:
    """Describe a leaf for error messages: ``float32 array of shape (3, 4)``."""
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


def check_like(found: Any, own: Any, name: str = "it") -> None:
    """Raise an error if saved values cannot be in the place of those of a new object.

    Only what both have is compared: types and dtypes, whole numbers, which have to be counters, and
    numbers, which have to be finite where they are in the new object.

    Args:
        found: The saved values.
        own: Those of the new object.
        name: What they are called in the error.
    """
    if isinstance(own, Mapping) and isinstance(found, Mapping):
        for key in own.keys() & found.keys():
            check_like(found[key], own[key], f"{name}.{key}")
    elif isinstance(own, list | tuple) and isinstance(found, list | tuple):
        for i, (each, mine) in enumerate(zip(found, own, strict=False)):
            check_like(each, mine, f"{name}[{i}]")
    elif not (isinstance(own, list) and found is None) and not _is_like(found, own):
        raise ValueError(f"{name} is {describe(found)}")


def _is_like(found: Any, own: Any) -> bool:
    found, own = (each.item() if isinstance(each, np.generic) else each for each in (found, own))
    if isinstance(own, Array):
        if not isinstance(found, Array) or not len(own.reshape(-1)):
            return isinstance(found, Array)
        alike = isinstance(found, torch.Tensor) == isinstance(own, torch.Tensor)
        return alike and found.dtype == own.dtype and (_is_finite(found) or not _is_finite(own))
    if type(own) is int:
        return type(found) is int and min(own, 0) <= found < 1 << (53 if own < 1 << 53 else 128)
    if type(own) is float:
        return type(found) in (int, float) and (math.isfinite(found) or not math.isfinite(own))
    return own is None or own in ([], (), {}) or isinstance(found, type(own))


def _is_finite(leaf: Array) -> bool:
    if isinstance(leaf, torch.Tensor):
        return bool(leaf.isfinite().all())
    return leaf.dtype.kind != "f" or bool(np.isfinite(leaf).all())


def _describe_all(values: Sequence[Any]) -> str:
    """Describe the first of the values that differ."""
    return " and ".join(list(dict.fromkeys(map(describe, values)))[:4])


# --- conversion


def from_ndarray(array: np.ndarray, key: str = "") -> np.ndarray:
    """Return a plain array of a subclass; fixed-width strings become Python strings."""
    if type(array) is not np.ndarray:
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"key {key!r} is a masked array: fill it, or store its mask as a key")
        array = array.view(np.ndarray)
    return array.astype(object) if array.dtype.kind in "SU" else array


def from_sequence(values: Sequence[Any], key: str) -> Array:
    """Convert a list or tuple without mappings to one leaf."""
    kinds = set(map(type, values))
    tensors = [issubclass(kind, torch.Tensor) for kind in kinds]
    if any(tensors) and all(tensors):
        return join(key, *values, stack=True)
    if any(tensors) or any(hasattr(kind, "keys") for kind in kinds):
        firsts = {type(value): value for value in reversed(values)}
        sides = _describe_all([*reversed(firsts.values())])
        raise TypeError(f"key {key!r} is a list that mixes {sides}")
    if kinds in ({str}, {bytes}):  # NumPy strings lose trailing NUL characters
        return np.array(values, dtype=object)
    try:
        return from_ndarray(np.asarray(values))
    except ValueError:
        raise ValueError(
            f"key {key!r} is a list of unequal shapes ({_describe_all(values)}): "
            "pad them, or store them under separate keys"
        ) from None


def to_torch(leaf: Any, dtype: torch.dtype | None, device: str | torch.device | None) -> Any:
    """Convert numbers and numeric arrays to tensors; other Python objects stay unchanged."""
    if isinstance(leaf, np.ndarray):
        if leaf.dtype.kind not in "fiubc":
            return leaf
        if not leaf.dtype.isnative:
            leaf = leaf.astype(leaf.dtype.newbyteorder("="))
        try:
            leaf = torch.from_numpy(leaf if leaf.flags.writeable else leaf.copy())
        except ValueError:  # strides that torch does not support
            leaf = torch.from_numpy(leaf.copy())
    elif isinstance(leaf, np.number | np.bool_ | int | float | complex):
        leaf = torch.as_tensor(leaf)
    elif not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf if dtype is None and device is None else leaf.to(device=device, dtype=dtype)


def to_device(leaf: Any, device: torch.device) -> Any:
    """Return a numeric array or tensor as a tensor on a device, in single precision.

    All data of environments becomes data of learners here. Copies do not wait for the device.
    """
    if isinstance(leaf, np.ndarray):
        leaf = to_torch(leaf, None, None)
    if not isinstance(leaf, torch.Tensor):
        return leaf
    dtype = torch.float32 if leaf.dtype is torch.float64 else leaf.dtype
    if dtype is leaf.dtype and leaf.device == device:
        return leaf  # even a `to` without effect costs time
    return leaf.to(device, dtype, non_blocking=device.type == "cuda")


def to_numpy(leaf: Any) -> Any:
    """Convert tensors to arrays; other objects stay unchanged."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.dtype == torch.bfloat16:
        leaf = leaf.float()  # NumPy does not support bfloat16
    return leaf.numpy(force=True)


# --- rows


def shape(leaf: Any) -> tuple[int, ...]:
    """Return the dimensions of a leaf; a Python object has none."""
    return tuple(leaf.shape) if isinstance(leaf, Array) else ()


def rows(index: Any, key: str, leaf: Any) -> Any:
    """Return the rows of one leaf."""
    try:
        if isinstance(leaf, np.ndarray):
            # Faster than indexing with an array of integers; same result.
            take = isinstance(index, np.ndarray) and index.dtype.kind in "iu" and leaf.ndim
            return leaf.take(index, 0) if take else leaf[index]
        if isinstance(leaf, torch.Tensor):
            return leaf[_torch_index(index, leaf)]
        raise TypeError("it has no rows")
    except (IndexError, TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else IndexError
        raise kind(f"key {key!r} is {describe(leaf)}: {error}") from None


def _torch_index(index: Any, leaf: torch.Tensor) -> Any:
    """Return an index with which torch selects the same as NumPy."""
    if isinstance(index, slice):  # torch does not support negative steps
        backwards = index.step is not None and index.step < 0
        return np.arange(*index.indices(len(leaf))) if backwards else index
    if isinstance(index, np.ndarray):  # torch treats uint8 as a mask
        return index.astype(np.int64) if index.dtype == np.uint8 else index
    if isinstance(index, list):  # torch treats a list of lists as a tuple
        return np.asarray(index) if index else index
    if isinstance(index, tuple):
        return tuple(_torch_index(i, leaf) if isinstance(i, np.ndarray) else i for i in index)
    return index


def assign(index: Any, key: str, leaf: Any, value: Any) -> None:
    """Write into a leaf; raise an error where NumPy and torch would silently truncate decimals."""
    weak = type(value) in (bool, int, float, complex)  # converted to the leaf's precision
    try:
        if isinstance(leaf, np.ndarray):
            source = value if weak else np.asarray(to_numpy(value))
            dtype = np.result_type(leaf.dtype, value) if weak else source.dtype
            casting: Any = "safe" if leaf.dtype.kind in "iu" else "same_kind"
            fits = np.can_cast(dtype, leaf.dtype, casting)
        elif isinstance(leaf, torch.Tensor):
            index = _torch_index(index, leaf)
            source = value if weak else to_torch(value, None, leaf.device)
            dtype = torch.result_type(leaf, value) if weak else getattr(source, "dtype", None)
            fits = isinstance(dtype, torch.dtype) and torch.can_cast(dtype, leaf.dtype)
            source = source.to(leaf.dtype) if fits and not weak else source
        else:
            raise TypeError("there are no rows to write to")
        if not fits:
            raise TypeError("the dtypes do not match")
        leaf[index] = source
    except (TypeError, ValueError, RuntimeError, IndexError, OverflowError) as error:
        kind = next((k for k in (TypeError, IndexError) if isinstance(error, k)), ValueError)
        sides = f"{describe(leaf)} and cannot hold {describe(value)}"
        raise kind(f"key {key!r} is {sides} there: {error}") from error


def emptied(index: Any, key: str, leaf: Any) -> Any:
    """Set rows of an array to 0, or None for objects; return 0 or None for other values."""
    if isinstance(leaf, Array):
        if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject:
            leaf[index] = None
        else:
            assign(index, key, leaf, False)
        return leaf
    if index is not ...:
        raise TypeError(f"key {key!r} is {describe(leaf)}: it has no rows")
    return type(leaf)(0) if isinstance(leaf, int | float | np.number) else None


# --- several leaves


def join(key: str, *column: Any, axis: int = 0, stack: bool) -> Array:
    """Concatenate or stack the leaves of one key, of the same kind, dtype and shape."""
    first = column[0]
    for leaf in column:
        if not _alike(first, leaf):
            raise TypeError(f"key {key!r} does not fit: {describe(first)} and {describe(leaf)}")
    if not isinstance(first, Array):
        if not stack:
            raise TypeError(f"key {key!r} holds {describe(first)}, which has no rows to join")
        if axis not in (0, -1):
            raise ValueError(f"key {key!r} holds {describe(first)}, which has no axis {axis}")
        return from_sequence(column, key)
    library: Any = np if isinstance(first, np.ndarray) else torch
    try:
        joined: Array = (library.stack if stack else library.concatenate)(column, axis)
    except (ValueError, RuntimeError, IndexError) as error:
        sides = _describe_all(column)
        raise ValueError(f"key {key!r} does not fit along axis {axis}: {sides}") from error
    return joined


def _alike(left: Any, right: Any) -> bool:
    """Return whether two leaves can share an array; a Python number matches any other number."""
    if isinstance(left, Array) or isinstance(right, Array):
        kind = np.ndarray if isinstance(left, np.ndarray) else torch.Tensor
        return isinstance(left, kind) and isinstance(right, kind) and left.dtype == right.dtype
    kinds = [
        np.bool_ if isinstance(side, bool | np.bool_) else type(side) for side in (left, right)
    ]
    numbers = all(issubclass(kind, int | float | np.number) for kind in kinds)
    both_numpy = isinstance(left, np.generic) and isinstance(right, np.generic)
    return kinds[0] is kinds[1] or (numbers and not both_numpy)


def compute(function: Callable[..., Any], key: str, *sides: Any) -> Any:
    """Return ``function(*sides)``; an error names the key."""
    tensors = {isinstance(side, torch.Tensor) for side in sides if isinstance(side, Array)}
    try:
        if len(tensors) > 1:
            raise TypeError("convert one side with to_torch or to_numpy")
        return function(*sides)
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        kind = next((k for k in (TypeError, ZeroDivisionError) if isinstance(error, k)), ValueError)
        described = " and ".join(map(describe, sides))
        raise kind(f"key {key!r} cannot be computed with: {described}: {error}") from error


def equal(left: Any, right: Any) -> bool:
    """Return whether two leaves have the same kind and values."""
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

"""What a `Batch` may hold: how values become leaves, and what is done to one leaf at a time.

A leaf is a NumPy array, a torch tensor, or a plain Python object (number, string, None, anything
else), which is kept as it is. `Batch` itself is the only inner node.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Array = np.ndarray | torch.Tensor

# Plain values, stored without a look inside.
SCALARS = (int, float, bool, str, bytes, complex, type(None))


def describe(leaf: Any) -> str:
    """Says what a leaf is, for error messages: ``float32 array of shape (3, 4)``."""
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype} array of shape {leaf.shape}"
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')} tensor of shape {tuple(leaf.shape)}"
    return f"{type(leaf).__name__} {leaf!r}"


def from_ndarray(array: np.ndarray) -> np.ndarray:
    """Keeps numbers as they are and turns NumPy's fixed-width strings into Python strings."""
    return array.astype(object) if array.dtype.kind in "SU" else array


def from_sequence(values: Sequence[Any], key: str) -> Array:
    """Makes one leaf of a list or tuple whose elements are no mappings."""
    tensors = [isinstance(value, torch.Tensor) for value in values]
    if any(tensors):
        if not all(tensors):
            odd = values[tensors.index(False)]
            raise TypeError(f"key {key!r} mixes tensors with {describe(odd)}: use one kind")
        return join(torch.stack, values, key)
    try:
        array = np.asarray(values)
    except ValueError:
        sides = sorted({str(np.shape(value)) for value in values if np.ndim(value)}) or ["ragged"]
        raise ValueError(
            f"key {key!r} is a list of elements of unequal shapes ({' and '.join(sides)}): "
            "pad them, or store them under separate keys"
        ) from None
    return from_ndarray(array)


def join(function: Callable[..., Any], leaves: Sequence[Any], key: str, axis: int = 0) -> Array:
    """Concatenates or stacks the leaves of one key: one kind, one dtype, fitting shapes."""
    first = leaves[0]
    kind, dtype = type(first), getattr(first, "dtype", None)
    for leaf in leaves:
        if type(leaf) is not kind or leaf.dtype != dtype:
            raise TypeError(f"key {key!r} does not fit: {describe(first)} and {describe(leaf)}")
    try:
        return function(leaves, axis)  # type: ignore[no-any-return]
    except (ValueError, RuntimeError, IndexError):
        odd = next((leaf for leaf in leaves if leaf.shape != first.shape), first)
        raise ValueError(
            f"key {key!r} does not fit along axis {axis}: {describe(first)} and {describe(odd)}"
        ) from None


def to_torch(leaf: Any, dtype: torch.dtype | None, device: str | torch.device | None) -> Any:
    """Turns numbers and numeric arrays into tensors; other Python objects stay what they are."""
    if isinstance(leaf, np.ndarray):
        if leaf.dtype == object:
            return leaf
        if not leaf.flags.writeable or any(stride < 0 for stride in leaf.strides):
            leaf = leaf.copy()  # torch cannot share such memory
        leaf = torch.from_numpy(leaf)
    elif isinstance(leaf, np.generic | int | float | complex):
        leaf = torch.as_tensor(leaf)
    elif not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.to(device=device, dtype=dtype)


def to_numpy(leaf: Any) -> Any:
    """Turns tensors into arrays; everything else stays what it is."""
    return leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf


def equal(left: Any, right: Any) -> bool:
    """Whether two leaves are of one kind and hold the same values."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and np.array_equal(left, right)
    return not isinstance(right, Array) and bool(left == right)


def assign(leaf: Any, index: Any, value: Any, key: str) -> None:
    """Writes into a leaf, where NumPy and torch would cut decimals off without a word."""
    if isinstance(leaf, np.ndarray):
        source = np.asarray(value)
        if not np.can_cast(source.dtype, leaf.dtype, "same_kind"):
            raise TypeError(f"key {key!r} is {describe(leaf)} and cannot hold {describe(value)}")
        value = source
    elif isinstance(leaf, torch.Tensor):
        value = torch.as_tensor(value, device=leaf.device)
        if not torch.can_cast(value.dtype, leaf.dtype):
            raise TypeError(f"key {key!r} is {describe(leaf)} and cannot hold {describe(value)}")
    else:
        raise TypeError(f"key {key!r} holds {describe(leaf)}, which has no rows to write to")
    try:
        leaf[index] = value
    except (ValueError, RuntimeError):
        raise ValueError(
            f"key {key!r}: a value of shape {tuple(value.shape)} does not fit "
            f"into shape {tuple(leaf[index].shape)}"
        ) from None


def text(leaf: Any) -> str:
    """How a leaf is printed; NumPy's scalars look like Python's."""
    return repr(leaf.item() if isinstance(leaf, np.generic) else leaf)

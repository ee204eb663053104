"""One field of a buffer: an array of rows, and what may be written into it."""

from typing import Any

import numpy as np
import torch

from guerdon.data.leaves import Array, describe
from guerdon.data.storage import Storage
from guerdon.data.tree import Path

LARGE = 2**63  # whole numbers up to here fit into 64 bits

# Single numbers that a column takes as they are, by its dtype.
PLAIN: dict[Any, tuple[type, ...]] = {
    np.dtype(np.float64): (float, np.float64, int),
    np.dtype(np.float32): (float, np.float32, int),
    np.dtype(np.int64): (int, np.int64),
    np.dtype(np.bool): (bool, np.bool),
}


class Column:
    """The rows of one leaf, and the checks that a value has to pass before it is written.

    Args:
        path: The keys that lead to the leaf.
        rows: Its values, one row a transition.
        storage: Where the rows live.
    """

    __slots__ = ("dtype", "path", "plain", "row_shape", "rows", "storage")

    def __init__(self, path: Path, rows: Array, storage: Storage) -> None:
        self.path = path
        self.rows: Any = rows
        self.storage = storage
        self.dtype: Any = rows.dtype
        self.row_shape: tuple[int, ...] = tuple(rows.shape[1:])
        self.plain = PLAIN.get(self.dtype, ()) if self.path[0] not in ("obs", "obs_next") else ()

    @property
    def name(self) -> str:
        """What the storage knows the rows as."""
        return rows_name(self.path)

    @property
    def label(self) -> str:
        """The dotted name, for messages."""
        return ".".join(self.path)

    def fit(self, value: Any, lead: tuple[int, ...]) -> Any:
        """The value as an array of shape ``lead + row_shape``, or an error that says what is off.

        Args:
            value: What the caller gave.
            lead: The leading shape: one number for a row an environment, empty for a single row.
        """
        shape = lead + self.row_shape
        if type(value) is np.ndarray and value.dtype == self.dtype and value.shape == shape:
            return value  # the hot path
        if (not shape and type(value) in self.plain) and (
            type(value) is not int or abs(value) < LARGE
        ):
            return value
        array = convert(value, self.path, self.storage)
        if tuple(array.shape) != shape:
            raise ValueError(
                f"{self.label!r} has shape {tuple(array.shape)}, but the buffer expects {shape}: "
                f"got {describe(value)}"
            )
        if array.dtype != self.dtype:
            # Python's numbers and lists have no dtype of their own; arrays do, and have to keep it.
            loose = self.path[0] == "rew" or not isinstance(value, Array) or value.ndim == 0
            fitting = _fitting(array, self.dtype) if loose else None
            if fitting is None:
                raise TypeError(
                    f"{self.label!r} is {array.dtype}, but the buffer holds {self.dtype}, as the "
                    f"first add decided, and {describe(value)} does not fit: convert it, or make a "
                    "new buffer"
                )
            array = fitting
        return array


def new_column(path: Path, value: Any, size: int, lead: int, storage: Storage) -> Column:
    """A column of empty rows for values like this one.

    Args:
        path: The keys that lead to the leaf.
        value: The first value; its dtype and row shape are the column's.
        size: Number of rows.
        lead: How many leading axes of the value are not part of a row.
        storage: Where the rows will live.
    """
    array = convert(value, path, storage)
    dtype = array.dtype
    if path == ("rew",) and not _adds_up(array):
        dtype = storage.convert(0.0).dtype
    return make_column(path, (size, *array.shape[lead:]), dtype, storage)


def make_column(path: Path, shape: tuple[int, ...], dtype: Any, storage: Storage) -> Column:
    """A column of empty rows, in the place of any that has the same path."""
    name = rows_name(path)
    storage.drop(name)  # a file may be left over from an `add` that failed
    return Column(path, storage.array(name, shape, dtype), storage)


def rows_name(path: Path) -> str:
    """A name for rows that those of no other path have, nor the bookkeeping."""
    return ".".join(["rows", *(key.replace("%", "%25").replace(".", "%2E") for key in path)])


def convert(value: Any, path: Path, storage: Storage) -> Array:
    """The value as an array of the storage's kind, or an error that says of which field it is."""
    try:
        return storage.convert(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{'.'.join(path)!r} is no array: {error}") from error


def take(rows: Any, index: np.ndarray) -> Any:
    """Rows of an array or tensor, in the shape of the index."""
    if type(rows) is np.ndarray:
        return rows.take(index, 0)
    return rows[torch.as_tensor(index, device=rows.device)]


def put(rows: Any, index: Any, values: Any) -> None:
    """Writes rows of an array or tensor."""
    if type(index) is np.ndarray and isinstance(rows, torch.Tensor):
        index = torch.as_tensor(index, device=rows.device)
    rows[index] = values


def cast(array: Any, dtype: Any) -> Any:
    """The array in another dtype."""
    return array.to(dtype) if isinstance(array, torch.Tensor) else array.astype(dtype)


def _adds_up(array: Any) -> bool:
    """Whether the compiled loops can add rewards of this dtype up."""
    if isinstance(array, torch.Tensor):
        return array.is_floating_point()
    return array.dtype in (np.float32, np.float64)


def _fitting(array: Any, dtype: Any) -> Any:
    """The array in another dtype, or None where more than precision would be lost."""
    tensor = isinstance(array, torch.Tensor)
    if tensor is not isinstance(dtype, torch.dtype):  # of Python objects there are no tensors
        return None
    if not tensor and array.dtype.hasobject:
        return None
    whole = not dtype.is_floating_point if tensor else dtype.kind in "iub"
    if whole:
        fitting = cast(array, dtype)
        return fitting if (fitting == array).all() and not _is_floating(array) else None
    fits = (
        torch.can_cast(array.dtype, dtype)
        if tensor
        else np.can_cast(array.dtype, dtype, "same_kind")
    )
    return cast(array, dtype) if fits else None


def _is_floating(array: Any) -> bool:
    if isinstance(array, torch.Tensor):
        return array.is_floating_point()
    return array.dtype.kind not in "iub"

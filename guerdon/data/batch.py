"""`Batch`: a dictionary and an array at once."""

from __future__ import annotations

import operator
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any, cast, final

import numpy as np
import torch

from guerdon.data import leaves
from guerdon.data.leaves import Array, describe

_new = object.__new__


@final
class Batch:
    """Named arrays, tensors and nested batches that are indexed, joined and computed with together.

    >>> batch = Batch(obs={"index": np.zeros((2, 3))}, act=torch.zeros(2, 2))
    >>> batch[:, 1] += 6
    >>> batch.obs["index"][-1]
    array([0., 6., 0.])

    Keys are strings, read as ``batch.key`` or ``batch["key"]``. A key that is named like a method
    (``items``, ``shape``) is read as ``batch["items"]``. Lists become arrays, dictionaries become
    batches, lists of dictionaries are stacked; arrays and tensors are kept by reference, dtype and
    all; anything else is kept as the Python object it is.

    Args:
        data: A mapping, another batch, or a sequence of either (which is stacked).
        **fields: More keys.
    """

    __slots__ = ("_data",)
    __array_ufunc__ = None  # so that `array + batch` is ours to compute, by key
    __hash__ = None  # type: ignore[assignment]
    _data: dict[str, Any]

    def __init__(self, data: Any = None, /, **fields: Any) -> None:
        rows: dict[str, Any] = {}
        _set_data(self, rows)
        if data is not None:
            rows.update(_mapping(data))
        for key, value in fields.items():
            kind = type(value)
            if kind is np.ndarray and value.dtype.kind in "fiub":
                rows[key] = value  # the hot path
            else:
                rows[key] = _leaf(value, key)

    # --- keys

    def __getattr__(self, key: str) -> Any:
        # Only called for what is no method. Names like __deepcopy__ are looked up by Python itself.
        if not key.startswith("__"):
            try:
                return self._data[key]
            except KeyError:
                pass
        raise AttributeError(_no_key(self, key))

    def __setattr__(self, key: str, value: Any) -> None:
        self._data[key] = _leaf(value, key)

    def __delattr__(self, key: str) -> None:
        if key not in self._data:
            raise AttributeError(_no_key(self, key))
        del self._data[key]

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def keys(self) -> KeysView[str]:
        """The keys, in the order in which they were set."""
        return self._data.keys()

    def values(self) -> ValuesView[Any]:
        """The leaves and sub-batches."""
        return self._data.values()

    def items(self) -> ItemsView[str, Any]:
        """Pairs of key and leaf or sub-batch."""
        return self._data.items()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self._data.get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """Removes a key and returns its value; without a default, a missing key is an error."""
        try:
            return self._data.pop(key, *default)
        except KeyError:
            raise KeyError(_no_key(self, key)) from None

    def update(self, data: Any = None, /, **fields: Any) -> None:
        """Sets keys from a mapping or batch and from keywords."""
        self._data.update(Batch(data, **fields)._data)

    def to_dict(self) -> dict[str, Any]:
        """The same as nested plain dictionaries."""
        return {k: v.to_dict() if type(v) is Batch else v for k, v in self._data.items()}

    # --- rows

    def __getitem__(self, index: Any) -> Any:
        if type(index) is str:
            try:
                return self._data[index]
            except KeyError:
                raise KeyError(_no_key(self, index)) from None
        if not self._data:
            raise IndexError("an empty Batch has no rows")
        # `take` gives the same as indexing with an array of integers, several times faster.
        take = type(index) is np.ndarray and index.dtype.kind in "iu"
        rows = {}
        for key, value in self._data.items():
            kind = type(value)
            try:
                if take and kind is np.ndarray:
                    rows[key] = value.take(index, 0)
                elif kind is Batch:
                    rows[key] = value[index] if value._data else value
                elif value is None:
                    rows[key] = None
                elif isinstance(value, Array):
                    rows[key] = value[index]
                else:
                    raise TypeError(f"key {key!r} holds {describe(value)}, which has no rows")
            except IndexError as error:
                raise IndexError(f"key {key!r}: {error}") from None
        return _wrap(rows)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str):
            self._data[index] = _leaf(value, index)
            return
        if isinstance(value, Batch | Mapping):
            value = Batch(value)._data
            _same_keys(self._data, value)
        elif not isinstance(value, int | float | np.generic):
            raise TypeError(f"rows are set from a Batch, a dict or a number, not {describe(value)}")
        for key, leaf in self._data.items():
            source = value[key] if isinstance(value, dict) else value
            if type(leaf) is Batch:
                if leaf._data:
                    leaf[index] = source
            elif leaf is not None or isinstance(source, Array):
                leaves.assign(leaf, index, source, key)

    def __len__(self) -> int:
        rows: int | None = None
        first = ""
        for key, leaf in _arrays(self):
            if not leaf.shape:
                raise TypeError(f"key {key!r} is a single value, so this Batch has no length")
            if rows is None:
                rows, first = leaf.shape[0], key
            elif leaf.shape[0] != rows:
                raise ValueError(
                    f"lengths differ: {first!r} has {rows} rows and {key!r} has {leaf.shape[0]}"
                )
        return rows or 0

    def __bool__(self) -> bool:
        return bool(self._data)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading dimensions that all leaves share."""
        common: tuple[int, ...] | None = None
        for _, leaf in _arrays(self):
            shape = tuple(leaf.shape)
            if common is None:
                common = shape
            while common != shape[: len(common)]:
                common = common[:-1]
        return common or ()

    def is_empty(self, recurse: bool = False) -> bool:
        """Whether there is no key; with ``recurse``, nothing but empty sub-batches."""
        if not recurse:
            return not self._data
        return all(type(v) is Batch and v.is_empty(recurse=True) for v in self._data.values())

    def split(
        self,
        size: int,
        shuffle: bool = True,
        merge_last: bool = False,
        generator: np.random.Generator | int | None = None,
    ) -> Iterator[Batch]:
        """Cuts the rows into batches of ``size``.

        Args:
            size: Rows a batch; -1 is all of them in one.
            shuffle: Whether rows come in random order.
            merge_last: Whether a last batch that would be smaller is joined to the one before.
            generator: Where the random order comes from: a generator or a seed.
        """
        total = len(self)
        if size == -1:
            size = max(total, 1)
        if size < 1:
            raise ValueError(f"split needs a size of 1 or more, or -1 for all rows, not {size}")
        order = np.random.default_rng(generator).permutation(total) if shuffle else None
        starts = list(range(0, total, size))
        if merge_last and len(starts) > 1 and total % size:
            starts.pop()
        for start, stop in zip(starts, [*starts[1:], total], strict=True):
            yield self[start:stop] if order is None else self[order[start:stop]]

    @staticmethod
    def cat(batches: Sequence[Any], axis: int = 0) -> Batch:
        """Joins batches along an axis they have. Batches without any key are passed over."""
        filled = [b for b in map(_as_batch, batches) if b._data]
        return _join(np.concatenate, torch.cat, filled, axis) if filled else Batch()

    @staticmethod
    def stack(batches: Sequence[Any], axis: int = 0) -> Batch:
        """Joins batches along a new axis."""
        filled = [_as_batch(b) for b in batches]
        return _join(np.stack, torch.stack, filled, axis) if filled else Batch()

    # --- conversion

    def apply(self, function: Callable[[Any], Any]) -> Batch:
        """A new batch with a function applied to every leaf that is not None."""
        return _wrap(
            {
                key: value.apply(function)
                if type(value) is Batch
                else (None if value is None else function(value))
                for key, value in self._data.items()
            }
        )

    def to_torch(
        self, dtype: torch.dtype | None = None, device: str | torch.device | None = None
    ) -> Batch:
        """Every number and numeric array as a tensor, of that dtype if one is given.

        Memory is shared where possible. What no tensor can hold (strings, objects) stays as it is.
        """
        return self.apply(lambda leaf: leaves.to_torch(leaf, dtype, device))

    def to_numpy(self) -> Batch:
        """Every tensor as an array; memory is shared where possible."""
        return self.apply(leaves.to_numpy)

    def __copy__(self) -> Batch:
        return self.apply(lambda leaf: leaf)

    def __reduce__(self) -> tuple[Any, ...]:
        return _wrap, (self._data,)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return self._data.keys() == other._data.keys() and all(
            value == other._data[key]
            if type(value) is Batch
            else leaves.equal(value, other._data[key])
            for key, value in self._data.items()
        )

    def __repr__(self) -> str:
        # Sub-batches first, as folders in a file list; then by name.
        ordered = sorted(self._data.items(), key=lambda item: (type(item[1]) is not Batch, item[0]))
        return layout("Batch", ordered)

    # --- arithmetic

    def __neg__(self) -> Batch:
        return _compute(operator.neg, self)

    def __add__(self, other: Any) -> Batch:
        return _compute(operator.add, self, other)

    def __sub__(self, other: Any) -> Batch:
        return _compute(operator.sub, self, other)

    def __mul__(self, other: Any) -> Batch:
        return _compute(operator.mul, self, other)

    def __truediv__(self, other: Any) -> Batch:
        return _compute(operator.truediv, self, other)

    def __radd__(self, other: Any) -> Batch:
        return _compute(lambda leaf, value: value + leaf, self, other)

    def __rsub__(self, other: Any) -> Batch:
        return _compute(lambda leaf, value: value - leaf, self, other)

    def __rmul__(self, other: Any) -> Batch:
        return _compute(lambda leaf, value: value * leaf, self, other)

    def __rtruediv__(self, other: Any) -> Batch:
        return _compute(lambda leaf, value: value / leaf, self, other)

    def __iadd__(self, other: Any) -> Batch:
        return _compute_in_place(operator.iadd, self, other)

    def __isub__(self, other: Any) -> Batch:
        return _compute_in_place(operator.isub, self, other)

    def __imul__(self, other: Any) -> Batch:
        return _compute_in_place(operator.imul, self, other)

    def __itruediv__(self, other: Any) -> Batch:
        return _compute_in_place(operator.itruediv, self, other)


_set_data = cast("Any", Batch.__dict__["_data"]).__set__


def _wrap(data: dict[str, Any]) -> Batch:
    """A batch around leaves that are known to be good."""
    batch = _new(Batch)
    _set_data(batch, data)
    return batch


def _as_batch(data: Any) -> Batch:
    return data if type(data) is Batch else Batch(data)


def _no_key(batch: Batch, key: str) -> str:
    return f"this Batch has no key {key!r}; it has: {', '.join(sorted(batch._data)) or 'none'}"


def _mapping(data: Any) -> dict[str, Any]:
    """The leaves of what `Batch` was called with."""
    if isinstance(data, Batch):
        return data._data
    if isinstance(data, Mapping):
        bad = [key for key in data if not isinstance(key, str)]
        if bad:
            raise TypeError(f"keys of a Batch are strings, not {bad[0]!r}")
        return {key: _leaf(value, key) for key, value in data.items()}
    if isinstance(data, list | tuple | np.ndarray) and _all_mappings(data):
        return Batch.stack(data)._data  # type: ignore[arg-type]
    raise TypeError(f"a Batch is made of mappings or a list of them, not of {describe(data)}")


def _all_mappings(values: Any) -> bool:
    return len(values) > 0 and all(isinstance(value, Batch | Mapping) for value in values)


def _leaf(value: Any, key: str) -> Any:
    """What a value is stored as."""
    kind = type(value)
    if kind is np.ndarray:
        if value.dtype == object and value.ndim == 1 and _all_mappings(value):
            return Batch.stack(value)
        return leaves.from_ndarray(value)
    if kind is Batch or kind in leaves.SCALARS or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Mapping):
        return Batch(value)
    if isinstance(value, list | tuple):
        if _all_mappings(value):
            return Batch.stack(value)
        return leaves.from_sequence(value, key)
    return value


def _arrays(batch: Batch, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf that counts for length and shape, under its dotted key."""
    for key, value in batch._data.items():
        if type(value) is Batch:
            yield from _arrays(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value if isinstance(value, Array) else np.asarray(None)


def _same_keys(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    if left.keys() != right.keys():
        key = min(left.keys() ^ right.keys())
        sides = "first but not in the second" if key in left else "second but not in the first"
        raise ValueError(
            f"keys differ: {key!r} is in the {sides} "
            f"({', '.join(sorted(left)) or 'none'} and {', '.join(sorted(right)) or 'none'})"
        )


def _join(
    numpy_join: Callable[..., Any],
    torch_join: Callable[..., Any],
    batches: Sequence[Batch],
    axis: int,
    prefix: str = "",
) -> Batch:
    first = batches[0]._data
    for batch in batches:
        if batch._data.keys() != first.keys():
            _same_keys(first, batch._data)
    joined: dict[str, Any] = {}
    for key, value in first.items():
        column = [batch._data[key] for batch in batches]
        kind = type(value)
        if kind is np.ndarray:
            joined[key] = leaves.join(numpy_join, column, prefix + key, axis)
        elif isinstance(value, torch.Tensor):
            joined[key] = leaves.join(torch_join, column, prefix + key, axis)
        elif kind is Batch and all(type(leaf) is Batch for leaf in column):
            joined[key] = _join(numpy_join, torch_join, column, axis, f"{prefix}{key}.")
        elif all(leaf is None for leaf in column):
            joined[key] = None
        else:
            joined[key] = _join_objects(numpy_join, column, prefix + key)
    return _wrap(joined)


def _join_objects(numpy_join: Callable[..., Any], column: list[Any], key: str) -> Any:
    """Single values can be stacked into an array; there is nothing to concatenate."""
    odd = next((leaf for leaf in column if isinstance(leaf, Batch | np.ndarray)), None)
    if odd is not None:
        raise TypeError(f"key {key!r} does not fit: {describe(column[0])} and {describe(odd)}")
    if numpy_join is not np.stack:
        raise TypeError(f"key {key!r} holds {describe(column[0])}, which has no rows to join")
    return leaves.from_sequence(column, key)


def _compute(function: Callable[..., Any], batch: Batch, *others: Any, prefix: str = "") -> Batch:
    """A new batch of ``function(leaf, other)``; batches are paired by key."""
    result: dict[str, Any] = {}
    for key, leaf, other in _pairs(batch, others):
        name = prefix + key
        if type(leaf) is Batch:
            result[key] = _compute(function, leaf, *other, prefix=f"{name}.")
        elif leaf is None:
            result[key] = None
        else:
            try:
                result[key] = function(leaf, *other)
            except (TypeError, ValueError, RuntimeError) as error:
                raise type(error)(_no_sum(name, leaf, other)) from error
    return _wrap(result)


def _compute_in_place(function: Callable[..., Any], batch: Batch, other: Any) -> Batch:
    for key, leaf, (value,) in _pairs(batch, (other,)):
        if type(leaf) is Batch:
            _compute_in_place(function, leaf, value)
        elif leaf is not None:
            try:
                batch._data[key] = function(leaf, value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise type(error)(_no_sum(key, leaf, (value,))) from error
    return batch


def _pairs(batch: Batch, others: tuple[Any, ...]) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    paired = [Batch(other)._data for other in others if isinstance(other, Batch | Mapping)]
    for other in paired:
        _same_keys(batch._data, other)
    for key, leaf in batch._data.items():
        yield key, leaf, tuple(other[key] for other in paired) if paired else others


def _no_sum(key: str, leaf: Any, other: tuple[Any, ...]) -> str:
    sides = " and ".join(describe(side) for side in (leaf, *other))
    return f"key {key!r} cannot be computed with: {sides}"


def layout(name: str, items: Sequence[tuple[str, Any]]) -> str:
    """The printed form: a line a key, what is nested indented below it."""
    if not items:
        return f"{name}()"
    lines = []
    for key, value in items:
        indent = "\n" + " " * (len(key) + 6)
        lines.append(f"    {key}: {leaves.text(value).replace(chr(10), indent)},\n")
    return f"{name}(\n{''.join(lines)})"

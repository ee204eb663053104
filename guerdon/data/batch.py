"""`Batch`: a dictionary and an array at once."""

from __future__ import annotations

import operator
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any, cast, final

import numpy as np
import torch

from guerdon.data import leaves
from guerdon.data.leaves import describe

_new = object.__new__


def _binary(
    function: Callable[[Any, Any], Any], in_place: bool = False
) -> Callable[[Batch, Any], Batch]:
    """The method of `Batch` that computes something with another batch or value."""

    def method(self: Batch, other: Any) -> Batch:
        return _compute(function, self, other, in_place=in_place)

    return method


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
        given = _mapping(fields)
        _set_data(self, given if data is None else {**_mapping(data), **given})

    # --- keys

    def __getattr__(self, key: str) -> Any:
        # Only called for what is no method. Names like __deepcopy__ are looked up by Python itself.
        if not (key.startswith("__") and key.endswith("__")):
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

    def replace(self, **fields: Any) -> Batch:
        """A new batch with some fields added or changed; the others are shared, not copied."""
        return from_leaves({**self._data, **Batch(**fields)._data})

    def to_dict(self) -> dict[str, Any]:
        """The same as nested plain dictionaries."""
        return {k: v.to_dict() if type(v) is Batch else v for k, v in self._data.items()}

    # --- rows

    def __getitem__(self, index: Any) -> Any:
        kind = type(index)
        if kind is str:
            try:
                return self._data[index]
            except KeyError:
                raise KeyError(_no_key(self, index)) from None
        # `take` gives the same as indexing with an array of integers, several times faster.
        take = kind is np.ndarray and index.dtype.kind in "iu"
        if not take and isinstance(index, str):
            return self[str.__str__(index)]  # a member of an enumeration, a string of NumPy
        if not self._data:
            raise IndexError("an empty Batch has no rows")
        rows = {}
        try:
            for key, value in self._data.items():
                kind = type(value)
                if kind is np.ndarray:
                    rows[key] = value.take(index, 0) if take and value.ndim else value[index]
                elif kind is Batch:
                    rows[key] = value[index] if value._data else Batch()
                else:
                    rows[key] = leaves.rows(value, index)
        except (IndexError, TypeError, ValueError) as error:
            error_type = TypeError if isinstance(error, TypeError) else IndexError
            if kind is Batch:  # whose error begins with the rest of the key
                rest = str(error).removeprefix("key '")
                raise error_type(f"key '{key}.{rest}") from None
            raise error_type(f"key {key!r} is {describe(value)}: {error}") from None
        return from_leaves(rows)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str):
            self._data[index] = _leaf(value, index)
        elif isinstance(value, _NODES):
            _set_rows(self, index, _as_batch(value))
        elif isinstance(value, int | float | np.generic):
            _set_rows(self, index, value)
        else:
            raise TypeError(f"rows are set from a Batch, a dict or a number, not {describe(value)}")

    def __len__(self) -> int:
        rows: int | None = None
        first = ""
        for key, leaf in _leaves(self):
            shape = leaves.shape(leaf)
            if not shape:
                raise TypeError(f"key {key!r} is a single value, so this Batch has no length")
            if rows is None:
                rows, first = shape[0], key
            elif shape[0] != rows:
                raise ValueError(
                    f"lengths differ: {first!r} has {rows} rows and {key!r} has {shape[0]}"
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
        for _, leaf in _leaves(self):
            shape = leaves.shape(leaf)
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
        """Cuts the rows into batches of ``size``; without rows, there are none.

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
        bounds = zip(starts, [*starts[1:], total], strict=True) if starts else ()
        parts = (slice(start, stop) for start, stop in bounds)
        return (self[part] if order is None else self[order[part]] for part in parts)

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
        return from_leaves(
            {
                key: value.apply(function)
                if type(value) is Batch
                else (None if value is None else _leaf(function(value), key))
                for key, value in self._data.items()
            }
        )

    def to_torch(
        self, dtype: torch.dtype | None = None, device: str | torch.device | None = None
    ) -> Batch:
        """Every number and numeric array as a tensor, of that dtype if one is given.

        Memory is shared where possible. What no tensor can hold (strings, dates, objects) stays as
        it is.
        """
        return self.apply(lambda leaf: leaves.to_torch(leaf, dtype, device))

    def to_device(self, device: torch.device) -> Batch:
        """Every numeric leaf as a tensor on a device, in single precision."""
        return self.apply(lambda leaf: leaves.to_device(leaf, device))

    def to_numpy(self) -> Batch:
        """Every tensor as an array; memory is shared where possible."""
        return self.apply(leaves.to_numpy)

    def __copy__(self) -> Batch:
        return self.apply(lambda leaf: leaf)

    def __reduce__(self) -> tuple[Any, ...]:
        return from_leaves, (self._data,)

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

    __add__ = _binary(operator.add)
    __sub__ = _binary(operator.sub)
    __mul__ = _binary(operator.mul)
    __truediv__ = _binary(operator.truediv)
    __radd__ = _binary(lambda leaf, other: other + leaf)
    __rsub__ = _binary(lambda leaf, other: other - leaf)
    __rmul__ = _binary(lambda leaf, other: other * leaf)
    __rtruediv__ = _binary(lambda leaf, other: other / leaf)
    __iadd__ = _binary(operator.iadd, in_place=True)
    __isub__ = _binary(operator.isub, in_place=True)
    __imul__ = _binary(operator.imul, in_place=True)
    __itruediv__ = _binary(operator.itruediv, in_place=True)


_NODES = (Batch, Mapping)
_set_data = cast("Any", Batch.__dict__["_data"]).__set__


def from_leaves(data: dict[str, Any]) -> Batch:
    """A batch around leaves that are known to be good."""
    batch = _new(Batch)
    _set_data(batch, data)
    return batch


def _as_batch(data: Any) -> Batch:
    return data if type(data) is Batch else Batch(data)


def _no_key(batch: Batch, key: str) -> str:
    if key in batch._data:
        return f"the key {key!r} is named like Python's own attributes: read it as batch[{key!r}]"
    return f"this Batch has no key {key!r}; it has: {', '.join(sorted(batch._data)) or 'none'}"


def _mapping(data: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of what `Batch` was called with."""
    if isinstance(data, Batch):
        return data._data
    if isinstance(data, Mapping):
        rows: dict[str, Any] = {}
        for key, value in data.items():
            if type(value) is np.ndarray and value.dtype.kind in "fiub" and type(key) is str:
                rows[key] = value  # the hot path
            elif isinstance(key, str):
                rows[key] = _leaf(value, prefix + key)
            else:
                raise TypeError(f"keys of a Batch are strings, not {key!r}")
        return rows
    if isinstance(data, list | tuple) and not data:
        return {}
    if isinstance(data, list | tuple | np.ndarray) and _all_mappings(data):
        return Batch.stack(data)._data  # type: ignore[arg-type]
    raise TypeError(f"a Batch is made of mappings or a list of them, not of {describe(data)}")


def _all_mappings(values: Any) -> bool:
    if len(values) == 0 or type(values[0]) in leaves.SCALARS:
        return False
    return all(isinstance(value, _NODES) for value in values)


def _leaf(value: Any, key: str) -> Any:
    """What a value is stored as."""
    kind = type(value)
    if kind is Batch or kind in leaves.SCALARS or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype == object and value.ndim == 1 and _all_mappings(value):
            return _from_sequence(value, key)
        return leaves.from_ndarray(leaves.plain(value, key))
    if isinstance(value, Mapping):
        return from_leaves(_mapping(value, f"{key}."))
    if isinstance(value, list | tuple):
        return _from_sequence(value, key)
    return value


def _from_sequence(values: Any, key: str) -> Any:
    """What a list is stored as; lists of mappings, and lists of lists of them, are stacked."""
    first = values[0] if len(values) else None
    if isinstance(first, list | tuple):
        while isinstance(first, list | tuple) and first:
            first = first[0]
        if isinstance(first, (*_NODES, torch.Tensor)):
            values = [_leaf(value, key) for value in values]
    if _all_mappings(values):
        return _join(np.stack, torch.stack, [_as_batch(value) for value in values], 0, f"{key}.")
    return leaves.from_sequence(values, key)


def _leaves(batch: Batch, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf but None under its dotted key."""
    for key, value in batch._data.items():
        if type(value) is Batch:
            yield from _leaves(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value


def _same_keys(left: Batch, right: Batch, prefix: str) -> None:
    if left._data.keys() != right._data.keys():
        key = min(left._data.keys() ^ right._data.keys())
        order = "first but not in the second" if key in left else "second but not in the first"
        sides = [", ".join(sorted(side._data)) or "none" for side in (left, right)]
        raise ValueError(f"keys differ: {prefix + key!r} is in the {order} ({' and '.join(sides)})")


def _same_node(left: Any, right: Any, key: str) -> None:
    """A sub-batch goes with a sub-batch only, and None with None."""
    nested = type(left) is Batch, type(right) is Batch
    if nested[0] is not nested[1] or (left is None and right is not None):
        raise TypeError(f"key {key!r} does not fit: {describe(left)} and {describe(right)}")


def _set_rows(batch: Batch, index: Any, value: Any, prefix: str = "") -> None:
    paired = type(value) is Batch
    if paired:
        _same_keys(batch, value, prefix)
    for key, leaf in batch._data.items():
        source = value._data[key] if paired else value
        if paired:
            _same_node(leaf, source, prefix + key)
        if type(leaf) is Batch:
            _set_rows(leaf, index, source, f"{prefix}{key}.")
        elif leaf is not None:
            leaves.assign(leaf, index, source, prefix + key)


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
            _same_keys(batches[0], batch, prefix)
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
            joined[key] = leaves.stack_values(column, prefix + key, axis, numpy_join is np.stack)
    return from_leaves(joined)


def _compute(
    function: Callable[..., Any],
    batch: Batch,
    *others: Any,
    in_place: bool = False,
    prefix: str = "",
) -> Batch:
    """A batch of ``function(leaf, other)``; the keys of two batches are paired."""
    paired = [_as_batch(other) for other in others if isinstance(other, _NODES)]
    for other in paired:
        _same_keys(batch, other, prefix)
    result = batch._data if in_place else {}
    for key, leaf in batch._data.items():
        name, values = prefix + key, others
        if paired:
            values = tuple(other._data[key] for other in paired)
            _same_node(leaf, values[0], name)
        if type(leaf) is Batch:
            result[key] = _compute(function, leaf, *values, in_place=in_place, prefix=f"{name}.")
        elif leaf is None:
            result[key] = None
        else:
            result[key] = leaves.compute(function, leaf, values, name)
    return batch if in_place else from_leaves(result)


def layout(name: str, items: Sequence[tuple[str, Any]]) -> str:
    """The printed form: a line a key, what is nested indented below it."""
    if not items:
        return f"{name}()"
    lines = []
    for key, value in items:
        indent = "\n" + " " * (len(key) + 6)
        lines.append(f"    {key}: {leaves.text(value).replace(chr(10), indent)},\n")
    return f"{name}(\n{''.join(lines)})"

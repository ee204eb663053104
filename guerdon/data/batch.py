"""`Batch`: a dictionary of arrays that is indexed like an array."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from functools import partial
from itertools import pairwise
from typing import Any, cast, final

import numpy as np
import torch

from guerdon.data import leaves
from guerdon.data.leaves import describe

_PRINTED = 200  # arrays with more elements are printed as shape and dtype


def _arithmetic(
    function: Callable[[Any, Any], Any], in_place: bool = False
) -> Callable[[Batch, Any], Batch]:
    """Return a method of `Batch` for a binary operation with another batch or value."""
    compute = partial(leaves.compute, function)

    def method(self: Batch, other: Any) -> Batch:
        return _map_with(compute, self, other, out=self if in_place else None)

    return method


@final
class Batch:
    """Named arrays, tensors and nested batches that are indexed, joined and computed with together.

    >>> batch = Batch(obs={"index": np.zeros((2, 3))}, act=torch.zeros(2, 2))
    >>> batch[:, 1] += 6
    >>> batch.obs["index"][-1]
    array([0., 6., 0.])

    Keys are strings, read as ``batch.key`` or ``batch["key"]``. A key with the name of a method
    (``items``, ``shape``) is read as ``batch["items"]``. Lists become arrays, dictionaries become
    batches, lists of dictionaries are stacked; arrays and tensors are kept by reference with their
    dtype; any other Python object is kept unchanged.

    Args:
        data: A mapping, another batch, or a sequence of either (which is stacked).
        **fields: More keys.
    """

    __slots__ = ("_data",)
    __array_ufunc__ = None  # so that NumPy leaves `array + batch` to Batch
    __hash__ = None  # type: ignore[assignment]
    _data: dict[str, Any]

    def __init__(self, data: Any = None, /, **fields: Any) -> None:
        given = {} if data is None else _mapping(data)
        _set_data(self, {**given, **_mapping(fields)})

    # --- keys

    def __getattr__(self, key: str) -> Any:
        # Called only if there is no such method. Python looks up names like __deepcopy__ here, too.
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
        """Return the keys, in the order in which they were set."""
        return self._data.keys()

    def values(self) -> ValuesView[Any]:
        """Return the leaves and sub-batches, in the order of `keys`."""
        return self._data.values()

    def items(self) -> ItemsView[str, Any]:
        """Return pairs of key and leaf or sub-batch."""
        return self._data.items()

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        return self._data.get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key and return its value; raise an error if it is missing and has no default."""
        try:
            return self._data.pop(key, *default)
        except KeyError:
            raise KeyError(_no_key(self, key)) from None

    def update(self, data: Any = None, /, **fields: Any) -> None:
        """Set keys from a mapping or batch and from keywords."""
        self._data.update(Batch(data, **fields)._data)

    def replace(self, **fields: Any) -> Batch:
        """Return a new batch with some fields added or changed; other fields are not copied."""
        return from_leaves({**self._data, **_mapping(fields)})

    def to_dict(self) -> dict[str, Any]:
        """Return the batch as nested plain dictionaries."""
        return {k: v.to_dict() if type(v) is Batch else v for k, v in self._data.items()}

    # --- rows

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            try:
                return self._data[str.__str__(index)]  # a member of an enumeration, too
            except KeyError:
                raise KeyError(_no_key(self, index)) from None
        if not self._data:
            raise IndexError("an empty Batch has no rows")
        return _map(partial(leaves.rows, index), self)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str):
            self._data[index] = _leaf(value, index)
        elif isinstance(value, (*_NODES, int, float, np.generic)):
            _map_with(partial(leaves.assign, index), self, value)
        else:
            raise TypeError(f"rows are set from a Batch, a dict or a number, not {describe(value)}")

    def __len__(self) -> int:
        lengths: dict[int, str] = {}  # with the first key that has it
        for key, shape in _shapes(self).items():
            if not shape:
                raise TypeError(f"key {key!r} is a single value, so this Batch has no length")
            lengths.setdefault(shape[0], key)
        if len(lengths) > 1:
            (rows, first), (other, second), *_ = lengths.items()
            raise ValueError(
                f"lengths differ: {first!r} has {rows} rows and {second!r} has {other}"
            )
        return next(iter(lengths), 0)

    def __bool__(self) -> bool:
        return bool(self._data)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading dimensions that all leaves share."""
        shapes = list(_shapes(self).values())
        common = shapes[0] if shapes else ()
        for shape in shapes:
            while common != shape[: len(common)]:
                common = common[:-1]
        return common

    def is_empty(self, recurse: bool = False) -> bool:
        """Return whether there is no key; with ``recurse``, no key other than empty sub-batches."""
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
        """Yield batches of ``size`` rows.

        Args:
            size: Rows per batch; -1 for one batch of all rows.
            shuffle: Whether rows come in random order.
            merge_last: Whether a last batch that would be smaller is joined to the previous one.
            generator: Random generator or seed for the order.
        """
        total = len(self)
        if size == -1:
            size = max(total, 1)
        if size < 1:
            raise ValueError(f"split needs a size of 1 or more, or -1 for all rows, not {size}")
        order = np.random.default_rng(generator).permutation(total) if shuffle else None
        stops = [*range(size, total, size), total] if total else []
        if merge_last and len(stops) > 1 and total % size:
            del stops[-2]
        parts = (slice(*bounds) for bounds in pairwise([0, *stops]))
        return (self[part] if order is None else self[order[part]] for part in parts)

    @staticmethod
    def cat(batches: Sequence[Any], axis: int = 0) -> Batch:
        """Concatenate batches along an existing axis; batches without keys are ignored."""
        filled = [b for b in map(_as_batch, batches) if b._data]
        return _map(partial(leaves.join, axis=axis, stack=False), *filled) if filled else Batch()

    @staticmethod
    def stack(batches: Sequence[Any], axis: int = 0) -> Batch:
        """Stack batches along a new axis."""
        filled = [_as_batch(b) for b in batches]
        return _map(partial(leaves.join, axis=axis, stack=True), *filled) if filled else Batch()

    @staticmethod
    def empty(batch: Any, index: Any = ...) -> Batch:
        """Return a copy of a batch with rows set to 0; see `empty_`."""
        return copy.deepcopy(_as_batch(batch)).empty_(index)

    # --- in place, as PyTorch marks it

    def cat_(self, batches: Any) -> None:
        """Append a batch or a sequence of them; see `cat`."""
        more = [batches] if isinstance(batches, _NODES) else batches
        _set_data(self, Batch.cat([self, *more])._data)

    def stack_(self, batches: Sequence[Any], axis: int = 0) -> None:
        """Stack this batch, unless it has no keys, and others; see `stack`."""
        own = [from_leaves(self._data)] if self._data else []
        _set_data(self, Batch.stack([*own, *batches], axis)._data)

    def empty_(self, index: Any = ...) -> Batch:
        """Set rows of arrays, by default all, to 0 or None; other values to 0 or None if all."""
        return _map(partial(leaves.emptied, index), self, out=self)

    def to_numpy_(self) -> None:
        """Convert tensors; see `to_numpy`."""
        _map(lambda _, leaf: leaves.to_numpy(leaf), self, out=self)

    def to_torch_(
        self, dtype: torch.dtype | None = None, device: str | torch.device | None = None
    ) -> None:
        """Convert numbers and numeric arrays; see `to_torch`."""
        _map(lambda _, leaf: leaves.to_torch(leaf, dtype, device), self, out=self)

    # --- conversion

    def apply(self, function: Callable[[Any], Any]) -> Batch:
        """Return a new batch with a function applied to every leaf that is not None."""
        return _map(lambda key, leaf: _leaf(function(leaf), key), self)

    def to_torch(
        self, dtype: torch.dtype | None = None, device: str | torch.device | None = None
    ) -> Batch:
        """Return the batch with numbers and numeric arrays as tensors.

        Memory is shared where possible. Strings, dates and objects stay unchanged.
        """
        return self.apply(lambda leaf: leaves.to_torch(leaf, dtype, device))

    def to_device(self, device: torch.device) -> Batch:
        """Return the batch with numeric leaves as tensors on a device, in single precision."""
        moved = {}
        for key, value in self._data.items():
            nested = type(value) is Batch
            moved[key] = value.to_device(device) if nested else leaves.to_device(value, device)
        return from_leaves(moved)

    def to_numpy(self) -> Batch:
        """Return the batch with tensors as arrays; memory is shared where possible."""
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
        # Sub-batches first, then the other keys; both by name.
        ordered = sorted(self._data.items(), key=lambda item: (type(item[1]) is not Batch, item[0]))
        return layout("Batch", ordered)

    # --- arithmetic

    def __neg__(self) -> Batch:
        return _map(partial(leaves.compute, operator.neg), self)

    __add__ = _arithmetic(operator.add)
    __sub__ = _arithmetic(operator.sub)
    __mul__ = _arithmetic(operator.mul)
    __truediv__ = _arithmetic(operator.truediv)
    __radd__ = _arithmetic(lambda leaf, other: other + leaf)
    __rsub__ = _arithmetic(lambda leaf, other: other - leaf)
    __rmul__ = _arithmetic(lambda leaf, other: other * leaf)
    __rtruediv__ = _arithmetic(lambda leaf, other: other / leaf)
    __iadd__ = _arithmetic(operator.iadd, in_place=True)
    __isub__ = _arithmetic(operator.isub, in_place=True)
    __imul__ = _arithmetic(operator.imul, in_place=True)
    __itruediv__ = _arithmetic(operator.itruediv, in_place=True)


Path = tuple[str, ...]
"""The keys that lead to a leaf."""
_NODES = (Batch, Mapping)
_set_data = cast("Any", Batch.__dict__["_data"]).__set__


def from_leaves(data: dict[str, Any]) -> Batch:
    """Return a batch of leaves that are known to be valid, without checks."""
    batch = object.__new__(Batch)
    _set_data(batch, data)
    return batch


def _as_batch(data: Any) -> Batch:
    return data if type(data) is Batch else Batch(data)


def _no_key(batch: Batch, key: str) -> str:
    if key in batch._data:
        return f"the key {key!r} is named like Python's own attributes: read it as batch[{key!r}]"
    return f"this Batch has no key {key!r}; it has: {', '.join(sorted(batch._data)) or 'none'}"


# --- conversion of values to leaves


def _mapping(data: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of the argument of `Batch`."""
    if isinstance(data, Batch):
        return data._data
    if isinstance(data, Mapping):
        for key in data:
            if not isinstance(key, str):
                raise TypeError(f"keys of a Batch are strings, not {key!r}")
        return {key: _leaf(value, prefix + key) for key, value in data.items()}
    if isinstance(data, list | tuple) and not data:
        return {}
    if isinstance(data, list | tuple | np.ndarray) and _all_mappings(data):
        return Batch.stack(data)._data  # type: ignore[arg-type]
    raise TypeError(f"a Batch is made from a mapping or a list of them, not from {describe(data)}")


def _leaf(value: Any, key: str) -> Any:
    if type(value) in (Batch, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject and value.ndim == 1 and _all_mappings(value):
            return _from_sequence(value, key)
        return leaves.from_ndarray(value, key)
    if isinstance(value, Mapping):
        return from_leaves(_mapping(value, f"{key}."))
    if isinstance(value, list | tuple):
        return _from_sequence(value, key)
    return value


def _from_sequence(values: Any, key: str) -> Any:
    """Return a list as a leaf; lists of mappings, also nested ones, are stacked."""
    first: Any = values
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if isinstance(first, (*_NODES, torch.Tensor)) and isinstance(values[0], list | tuple):
        values = [_leaf(value, key) for value in values]
    if _all_mappings(values):
        join = partial(leaves.join, axis=0, stack=True)
        return _map(join, *map(_as_batch, values), prefix=f"{key}.")
    return leaves.from_sequence(values, key)


def _all_mappings(values: Any) -> bool:
    return len(values) > 0 and all(isinstance(value, _NODES) for value in values)


# --- trees


def flatten(data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every leaf of a batch or nested mapping with its path; empty sub-batches are leaves."""
    if isinstance(data, Batch | Mapping) and (data or not path):
        for key, value in data.items():
            yield from flatten(value, (*path, key))
    else:
        yield path, data


def unflatten(table: Mapping[Path, Any]) -> Batch:
    """Return a batch from paths and leaves; the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, leaf in table.items():
        node = tree
        for depth, key in enumerate(path[:-1], 1):
            node = node.setdefault(key, {})
            if type(node) is not dict or path[:depth] in table:
                raise ValueError(f"{'.'.join(path[:depth])!r} is a leaf, but {path} is below it")
        if not path or path[-1] in node:
            raise ValueError(f"{'.'.join(path)!r} is a leaf, but other leaves are below it")
        node[path[-1]] = leaf
    return Batch(tree)


def _map(
    function: Callable[..., Any], *batches: Batch, out: Batch | None = None, prefix: str = ""
) -> Batch:
    """Return a batch of ``function(dotted key, *leaves)`` over batches with the same keys.

    None stays None. Results are written to ``out`` if it is given.
    """
    first, *others = batches
    for other in others:
        if other._data.keys() != first._data.keys():
            raise ValueError(_different_keys(first, other, prefix))
    result = {} if out is None else out._data
    for key, leaf in first._data.items():
        name, nested = prefix + key, type(leaf) is Batch
        column = [other._data[key] for other in others]
        for value in column:
            if (type(value) is Batch) is not nested or (leaf is None and value is not None):
                sides = f"{describe(leaf)} and {describe(value)}"
                raise TypeError(f"key {name!r} does not fit: {sides}")
        if nested:
            inner = None if out is None else leaf
            result[key] = _map(function, leaf, *column, out=inner, prefix=f"{name}.")
        else:
            result[key] = None if leaf is None else function(name, leaf, *column)
    return from_leaves(result) if out is None else out


def _map_with(
    function: Callable[..., Any], batch: Batch, other: Any, out: Batch | None = None
) -> Batch:
    """`_map` with another batch, or with one value for every leaf."""
    if isinstance(other, _NODES):
        return _map(function, batch, _as_batch(other), out=out)
    return _map(lambda key, leaf: function(key, leaf, other), batch, out=out)


def _different_keys(left: Batch, right: Batch, prefix: str) -> str:
    key = min(left._data.keys() ^ right._data.keys())
    order = "first but not in the second" if key in left else "second but not in the first"
    sides = [", ".join(sorted(side._data)) or "none" for side in (left, right)]
    return f"keys differ: {prefix + key!r} is in the {order} ({' and '.join(sides)})"


def _shapes(batch: Batch) -> dict[str, tuple[int, ...]]:
    """Return the shape of every leaf other than None, by its dotted key."""
    found = {".".join(path): leaf for path, leaf in flatten(batch) if type(leaf) is not Batch}
    return {key: leaves.shape(leaf) for key, leaf in found.items() if leaf is not None}


def layout(name: str, items: Sequence[tuple[str, Any]]) -> str:
    """Return the printed form: one line per key, nested keys indented."""
    if not items:
        return f"{name}()"
    lines = []
    for key, value in items:
        if isinstance(value, leaves.Array) and math.prod(value.shape) > _PRINTED:
            text = describe(value)
        else:
            text = repr(value.item() if isinstance(value, np.generic) else value)
        indent = "\n" + " " * (len(key) + 6)
        lines.append(f"    {key}: {text.replace(chr(10), indent)},\n")
    return f"{name}(\n{''.join(lines)})"

"""`Batch`: a dictionary and an array at once."""

from __future__ import annotations

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

_PRINTED = 200  # numbers of an array that are printed; more are described


def _arithmetic(
    function: Callable[[Any, Any], Any], in_place: bool = False
) -> Callable[[Batch, Any], Batch]:
    """The method of `Batch` that computes something with another batch or value."""
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
        given = {} if data is None else _mapping(data)
        _set_data(self, {**given, **_mapping(fields)})

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
        return from_leaves({**self._data, **_mapping(fields)})

    def to_dict(self) -> dict[str, Any]:
        """The same as nested plain dictionaries."""
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
        stops = [*range(size, total, size), total] if total else []
        if merge_last and len(stops) > 1 and total % size:
            del stops[-2]
        parts = (slice(*bounds) for bounds in pairwise([0, *stops]))
        return (self[part] if order is None else self[order[part]] for part in parts)

    @staticmethod
    def cat(batches: Sequence[Any], axis: int = 0) -> Batch:
        """Joins batches along an axis they have. Batches without any key are passed over."""
        filled = [b for b in map(_as_batch, batches) if b._data]
        return _map(partial(leaves.join, axis=axis, stack=False), *filled) if filled else Batch()

    @staticmethod
    def stack(batches: Sequence[Any], axis: int = 0) -> Batch:
        """Joins batches along a new axis."""
        filled = [_as_batch(b) for b in batches]
        return _map(partial(leaves.join, axis=axis, stack=True), *filled) if filled else Batch()

    # --- conversion

    def apply(self, function: Callable[[Any], Any]) -> Batch:
        """A new batch with a function applied to every leaf that is not None."""
        return _map(lambda key, leaf: _leaf(function(leaf), key), self)

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
        moved = {}
        for key, value in self._data.items():
            nested = type(value) is Batch
            moved[key] = value.to_device(device) if nested else leaves.to_device(value, device)
        return from_leaves(moved)

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
    """A batch around leaves that are known to be good."""
    batch = object.__new__(Batch)
    _set_data(batch, data)
    return batch


def _as_batch(data: Any) -> Batch:
    return data if type(data) is Batch else Batch(data)


def _no_key(batch: Batch, key: str) -> str:
    if key in batch._data:
        return f"the key {key!r} is named like Python's own attributes: read it as batch[{key!r}]"
    return f"this Batch has no key {key!r}; it has: {', '.join(sorted(batch._data)) or 'none'}"


# --- what values are stored as


def _mapping(data: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of what `Batch` was called with."""
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
    raise TypeError(f"a Batch is made of mappings or a list of them, not of {describe(data)}")


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
    """What a list is stored as; lists of mappings, and lists of lists of them, are stacked."""
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
    """Every leaf of a batch or nested mapping with its path; an empty sub-batch is a leaf too."""
    if isinstance(data, Batch | Mapping) and (data or not path):
        for key, value in data.items():
            yield from flatten(value, (*path, key))
    else:
        yield path, data


def unflatten(table: Mapping[Path, Any]) -> Batch:
    """The batch that `flatten` took apart."""
    tree: dict[str, Any] = {}
    for path, leaf in table.items():
        node = tree
        for depth, key in enumerate(path[:-1], 1):
            node = node.setdefault(key, {})
            if type(node) is not dict or path[:depth] in table:
                raise ValueError(f"{'.'.join(path[:depth])!r} is a leaf, and {path} lies below it")
        if not path or path[-1] in node:
            raise ValueError(f"the leaf {'.'.join(path)!r} would take the place of others below it")
        node[path[-1]] = leaf
    return Batch(tree)


def _map(
    function: Callable[..., Any], *batches: Batch, out: Batch | None = None, prefix: str = ""
) -> Batch:
    """A batch of ``function(dotted key, *leaves)`` over batches with the same keys.

    None stays None. The results go to ``out``, if that is given.
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
    """`_map` with another batch, or with a value that goes with every leaf."""
    if isinstance(other, _NODES):
        return _map(function, batch, _as_batch(other), out=out)
    return _map(lambda key, leaf: function(key, leaf, other), batch, out=out)


def _different_keys(left: Batch, right: Batch, prefix: str) -> str:
    key = min(left._data.keys() ^ right._data.keys())
    order = "first but not in the second" if key in left else "second but not in the first"
    sides = [", ".join(sorted(side._data)) or "none" for side in (left, right)]
    return f"keys differ: {prefix + key!r} is in the {order} ({' and '.join(sides)})"


def _shapes(batch: Batch) -> dict[str, tuple[int, ...]]:
    """The shape of every leaf but None, by its dotted key."""
    found = {".".join(path): leaf for path, leaf in flatten(batch) if type(leaf) is not Batch}
    return {key: leaves.shape(leaf) for key, leaf in found.items() if leaf is not None}


def layout(name: str, items: Sequence[tuple[str, Any]]) -> str:
    """The printed form: a line a key, what is nested indented below it."""
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

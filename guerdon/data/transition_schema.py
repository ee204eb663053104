"""Checks what is added to a buffer: names, shapes and dtypes, as the first `add` decided them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from guerdon.data.batch import Batch
from guerdon.data.leaves import Array, describe, to_numpy
from guerdon.data.tree import Path, flatten, unflatten

FIELDS = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next", "info", "policy")
"""The usual fields, in the order in which they are read."""
REQUIRED = ("obs", "act", "rew")
RESERVED = ("mask", "first", "cut", "weight", "source", "before", "annotations")
"""Names that reading adds to a batch."""
ENDS = ("terminated", "truncated", "done")
_BOOL = np.dtype(bool)
_TRUE, _FALSE = np.array([True]), np.array([False])


class Leaf(NamedTuple):
    """Shape and dtype of one leaf of a transition."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def scalar(self) -> Any:
        """Type of NumPy scalars of this dtype."""
        return getattr(self.dtype, "type", None)


class Layout(NamedTuple):
    """The fields of a transition."""

    leaves: dict[Path, Leaf]
    """By path, without the ends."""
    only_done: bool
    """Whether ends were only ever given as ``done``."""
    keys: set[str]
    """Names of the fields."""
    groups: dict[Path, set[str]]
    """Keys of the nested fields."""


def make_layout(leaves: dict[Path, Leaf], only_done: bool) -> Layout:
    """Make the layout of these leaves."""
    groups: dict[Path, set[str]] = {}
    for path in leaves:
        for depth in range(1, len(path)):
            groups.setdefault(path[:depth], set()).add(path[depth])
    keys = {path[0] for path in leaves} | {"terminated", "truncated"}
    return Layout(leaves, only_done, keys, groups)


class Schema:
    """Checks transitions against a layout, which the first one decides.

    Args:
        convert: Turns a value into an array of the storage.
        keep_next: Whether ``obs_next`` is stored.
    """

    def __init__(self, convert: Callable[[Any], Array], keep_next: bool = True) -> None:
        self.layout = Layout({}, False, set(), {})
        """The expected fields; set this to what `check` returned when there are columns for it."""
        self._convert = convert
        self._keep_next = keep_next

    def check(
        self, fields: Mapping[str, Any], lead: tuple[int, ...], envs: np.ndarray
    ) -> tuple[dict[Path, Any], np.ndarray, np.ndarray, Layout]:
        """Check a transition of each environment; an error names the field that is wrong.

        Args:
            fields: The transitions.
            lead: The leading shape: ``(n,)``, or ``()`` for a single row.
            envs: The environments, for error messages.

        Returns:
            The values by path, ``terminated``, ``truncated``, and the layout that has these fields:
            `layout` itself if nothing is new.
        """
        layout = self.layout
        expected = layout.leaves
        if not self._matches(fields):
            fields, layout = self._extended(fields, lead)
            expected = layout.leaves
        leaves = {}
        for path, leaf in expected.items():
            value = fields[path[0]] if len(path) == 1 else _dig(fields, path)
            if type(value) is np.ndarray:
                good = value.dtype is leaf.dtype and value.shape == lead + leaf.shape
            else:
                good = not (lead or leaf.shape) and type(value) is leaf.scalar
            leaves[path] = value if good else self._fit(path, leaf, value, lead)
        terminated = _end(fields["terminated"], "terminated", lead)
        truncated = _end(fields["truncated"], "truncated", lead)
        _check_rewards(leaves["rew",], fields["rew"], envs)
        return leaves, terminated, truncated, layout

    def _matches(self, fields: Mapping[str, Any]) -> bool:
        """Whether the keys are the expected ones, as in nearly every step."""
        _, only_done, keys, groups = self.layout
        if fields.keys() != keys or only_done:
            return False
        if fields["terminated"] is None or fields["truncated"] is None:
            return False
        return not groups or all(_keys(_dig(fields, path)) == ks for path, ks in groups.items())

    def _extended(
        self, fields: Mapping[str, Any], lead: tuple[int, ...]
    ) -> tuple[dict[str, Any], Layout]:
        """Return the fields with all expected keys, and the layout with the keys that are new."""
        known, only_done, *_ = self.layout
        both = fields.get("terminated") is not None or fields.get("truncated") is not None
        only_done = (only_done or not known) and not both
        fields = self._normalized(fields)
        if known:
            fields, leaves = self._with_info(fields, lead)
        else:
            leaves = self._first_leaves(fields, lead)
        if len(leaves) == len(known) and only_done == self.layout.only_done:
            return fields, self.layout
        return fields, make_layout(leaves, only_done)

    def _normalized(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Add both kinds of ends, join lists of dictionaries, drop what is not stored."""
        fields = {
            key: _joined(value)
            for key, value in fields.items()
            if value is not None or key not in ("info", "policy")
        }
        if not self._keep_next:
            fields.pop("obs_next", None)
        for key in ("info", "policy"):
            if key in fields and key not in self.layout.keys and not _keys(fields[key]):
                fields.pop(key)
        return _with_ends(fields)

    def _first_leaves(self, fields: dict[str, Any], lead: tuple[int, ...]) -> dict[Path, Leaf]:
        """Return the leaves of a first transition."""
        reserved = [key for key in RESERVED if key in fields]
        if reserved:
            raise ValueError(f"{reserved[0]!r} is a name that samples use: rename that field")
        missing = [key for key in REQUIRED if key not in fields]
        if self._keep_next and "obs_next" not in fields:
            missing.append("obs_next")
        if missing:
            hint = (
                " (or make the buffer with ignore_obs_next=True)" if "obs_next" in missing else ""
            )
            raise ValueError(f"add() needs {missing[0]!r}{hint}; it was given {_names(fields)}")
        found = {
            path: self._new_leaf(path, value, lead)
            for path, value in flatten(fields)
            if path[0] not in ENDS and not isinstance(value, Batch | Mapping)
        }
        if self._keep_next:  # the next observation is an observation
            given = {path[1:] for path in found if path[0] == "obs_next"}
            wanted = {path[1:]: leaf for path, leaf in found.items() if path[0] == "obs"}
            _same_keys(
                {".".join(path) for path in given}, {".".join(path) for path in wanted}, "obs_next."
            )
            found |= {("obs_next", *path): leaf for path, leaf in wanted.items()}
        return found

    def _new_leaf(self, path: Path, value: Any, lead: tuple[int, ...]) -> Leaf:
        array = self._array(path, value)
        shape = tuple(array.shape)
        if shape[: len(lead)] != lead:
            raise ValueError(
                f"{'.'.join(path)!r} has shape {shape}, but with a row an environment it starts "
                f"with {lead[0]}"
            )
        dtype = array.dtype
        if path == ("rew",):
            numpy = isinstance(dtype, np.dtype)
            if numpy and dtype.kind not in "biuf":
                raise TypeError(f"'rew' is {dtype}, but rewards are numbers: {describe(value)}")
            if not (dtype.char in "fd" if numpy else dtype.is_floating_point):
                dtype = self._convert(0.0).dtype
        return Leaf(shape[len(lead) :], dtype)

    def _with_info(
        self, fields: dict[str, Any], lead: tuple[int, ...]
    ) -> tuple[dict[str, Any], dict[Path, Leaf]]:
        """Compare the keys; only those of ``info`` may change, and missing ones are filled."""
        known, _, keys, groups = self.layout
        _same_keys(set(fields) - {"info"}, keys - {"info"}, "")
        for path, inner in groups.items():
            if path[0] != "info":
                _same_keys(_keys(_dig(fields, path)), inner, ".".join(path) + ".")
        if "info" not in fields and "info" not in keys:
            return fields, known
        given = {
            ("info", *path): value
            for path, value in flatten(Batch(fields.get("info", {})))
            if not isinstance(value, Batch)
        }
        expected = dict(known)
        for path, value in given.items():
            if path not in expected:
                expected[path] = self._new_leaf(path, value, lead)
        for path, leaf in known.items():
            if path[0] == "info" and path not in given:
                full: Any = torch.full if isinstance(leaf.dtype, torch.dtype) else np.full
                empty = full(lead + leaf.shape, fill_value(leaf.dtype), dtype=leaf.dtype)
                given[path] = self._convert(empty)
        info = unflatten({path[1:]: value for path, value in given.items()})
        return {**fields, "info": info}, expected

    def _fit(self, path: Path, leaf: Leaf, value: Any, lead: tuple[int, ...]) -> Any:
        """Return the value as an array or scalar of the right shape and dtype."""
        if not lead and not leaf.shape and isinstance(leaf.dtype, np.dtype):
            scalar = _scalar(value, leaf.dtype)
            if scalar is not None:
                return scalar
        array, shape, name = self._array(path, value), lead + leaf.shape, ".".join(path)
        if tuple(array.shape) != shape:
            raise ValueError(
                f"{name!r} has shape {tuple(array.shape)}, but the buffer expects {shape}: "
                f"got {describe(value)}"
            )
        if array.dtype == leaf.dtype:
            return array
        # Python numbers and lists have no dtype of their own; arrays do, and have to keep it.
        loose = path == ("rew",) or not isinstance(value, Array) or value.ndim == 0
        fitting = _cast(array, leaf.dtype) if loose else None
        if fitting is None:
            raise TypeError(
                f"{name!r} is {array.dtype}, but the buffer holds {leaf.dtype}, as the first add "
                f"decided, and {describe(value)} does not fit: convert it, or make a new buffer"
            )
        return fitting

    def _array(self, path: Path, value: Any) -> Any:
        try:
            return self._convert(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{'.'.join(path)!r} is no array: {error}") from error


def last_frames(fields: Mapping[str, Any], axis: int) -> dict[str, Any]:
    """Return the fields with only the last frame of stacked observations."""
    last = (slice(None),) * axis + (-1,)

    def cut(value: Any) -> Any:
        if isinstance(value, Mapping | Batch):
            return {key: cut(leaf) for key, leaf in value.items()}
        return (value if isinstance(value, Array) else np.asarray(value))[last]

    names = [key for key in ("obs", "obs_next") if key in fields]
    return {**fields, **{key: cut(fields[key]) for key in names}}


def fill_value(dtype: Any) -> Any:
    """Return the value of rows that were added without this key of ``info``."""
    if isinstance(dtype, torch.dtype):
        return float("nan") if dtype.is_floating_point else 0
    return {"O": None, "f": float("nan")}.get(dtype.kind, 0)


def _dig(fields: Any, path: Path) -> Any:
    for key in path:
        fields = fields[key]
    return fields


def _names(keys: Any) -> str:
    return ", ".join(repr(key) for key in sorted(keys)) or "nothing"


def _keys(fields: Any) -> set[str]:
    return set(fields.keys()) if isinstance(fields, Mapping | Batch) else set()


def _same_keys(given: set[str], keys: set[str], prefix: str) -> None:
    missing, extra = sorted(keys - given), sorted(given - keys)
    if missing:
        raise ValueError(
            f"add() lacks {prefix + missing[0]!r}: the buffer holds {_names(keys)}, "
            f"and was given {_names(given)}"
        )
    if extra:
        raise ValueError(
            f"add() was given {prefix + extra[0]!r}, which the first add did not have: "
            f"the buffer holds {_names(keys)}"
        )


def _with_ends(fields: dict[str, Any]) -> dict[str, Any]:
    """Add ``terminated`` and ``truncated``, from whichever of the three ends were given."""
    given = {key: _as_bool(fields[key]) for key in ENDS if fields.get(key) is not None}
    if "done" in given and len({end.shape for end in given.values()}) > 1:
        shapes = " and ".join(f"{key!r} {end.shape}" for key, end in given.items())
        raise ValueError(f"the ends have different shapes: {shapes}")
    if "terminated" not in given and "done" not in given:
        raise ValueError(f"add() needs 'done' or 'terminated'; it was given {_names(fields)}")
    done = given.get("done", np.False_)
    terminated = given.get("terminated", done & ~given.get("truncated", np.False_))
    truncated = given.get("truncated", done & ~terminated)
    if "done" in given and ((terminated | truncated) != done).any():
        raise ValueError("'done' is not 'terminated' or 'truncated': leave it out")
    ends = {"terminated": terminated, "truncated": truncated}
    return {**{key: value for key, value in fields.items() if key != "done"}, **ends}


def _end(value: Any, name: str, lead: tuple[int, ...]) -> np.ndarray:
    if not lead and type(value) in (bool, np.bool_):
        return _TRUE if value else _FALSE
    end = value if type(value) is np.ndarray and value.dtype is _BOOL else _as_bool(value)
    if end.shape != lead:
        raise ValueError(f"{name!r} has shape {end.shape}, but the buffer expects {lead}")
    return end if lead else end.reshape(-1)


def _as_bool(value: Any) -> np.ndarray:
    return np.asarray(to_numpy(value)).astype(bool)


def _check_rewards(rew: Any, given: Any, envs: np.ndarray) -> None:
    if isinstance(rew, torch.Tensor):
        if isinstance(given, torch.Tensor) and given.is_cuda:
            return  # would wait for the device at every step; a run checks its losses instead
        rew = np.asarray(to_numpy(given))
    if type(rew) is np.ndarray and rew.ndim == 1:
        total = rew.dot(rew)  # NaN if any is, and the cheapest sum there is
        if total == total:
            return
    bad = rew != rew  # NaN alone
    if np.count_nonzero(bad) if type(bad) is np.ndarray else bad:
        env = envs[np.flatnonzero(bad)[0] * len(envs) // np.size(bad)]
        raise ValueError(f"'rew' is NaN in environment {env}: nothing was added")


def _joined(value: Any) -> Any:
    """Stack a list of dictionaries, as vector environments may give it."""
    rows = isinstance(value, list | tuple) and len(value) > 0
    return Batch(value) if rows and all(isinstance(v, Mapping | Batch) for v in value) else value


def _scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a Python number as a scalar of the dtype, or None where `_cast` has to decide."""
    kind = type(value)
    if (kind is int and dtype.kind in "iuf") or (kind is float and dtype.kind == "f"):
        try:
            return dtype.type(value)
        except OverflowError:
            pass
    return None


def _cast(array: Any, dtype: Any) -> Any:
    """Return the array in another dtype, or None where more than precision would be lost."""
    tensor = isinstance(array, torch.Tensor)
    if tensor is not isinstance(dtype, torch.dtype) or (not tensor and array.dtype.hasobject):
        return None
    if _is_whole(dtype):
        fits = _is_whole(array.dtype)
    elif tensor:
        fits = torch.can_cast(array.dtype, dtype)
    else:
        fits = np.can_cast(array.dtype, dtype, "same_kind")
    if not fits:
        return None
    cast = array.to(dtype) if tensor else array.astype(dtype)
    return cast if not _is_whole(dtype) or bool((cast == array).all()) else None


def _is_whole(dtype: Any) -> bool:
    if isinstance(dtype, torch.dtype):
        return not (dtype.is_floating_point or dtype.is_complex)
    return dtype.kind in "iub"

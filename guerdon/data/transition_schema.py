"""Checks transitions that are added to a buffer: names, shapes and dtypes of the first `add`."""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
import torch

from guerdon.data.batch import Batch, Path, unflatten
from guerdon.data.leaves import Array, describe, to_numpy

FIELDS = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next", "info", "policy")
"""Standard fields, in reading order."""
REQUIRED = ("obs", "act", "rew")
RESERVED = ("mask", "first", "cut", "weight", "source", "before", "annotations")
"""Field names that reading adds to a batch."""
ENDS = ("terminated", "truncated", "done")
_BOOL = np.dtype(bool)
_NODES = (Batch, Mapping)
_ARRAYS: Any = (np.ndarray, torch.Tensor, np.generic)
_NUMBERS = frozenset({int, float, bool})


class Leaf(NamedTuple):
    """Shape and dtype of one leaf of a transition."""

    shape: tuple[int, ...]
    dtype: Any


Layout = dict[Path, Leaf]
"""Leaves of a transition by path, without terminated and truncated."""


class Schema:
    """Checks transitions against a layout, which the first one determines.

    Args:
        convert: Converts a value to an array of the storage.
        keep_next: Whether ``obs_next`` is stored.
        last_frame: Whether only the last frame of stacked observations is stored.
    """

    def __init__(
        self, convert: Callable[[Any], Array], keep_next: bool = True, last_frame: bool = False
    ) -> None:
        self.layout: Layout = {}
        """Expected fields; set to the result of `check` once columns for it exist."""
        self._convert = convert
        self._keep_next = keep_next
        self._last_frame = last_frame

    def check(
        self, fields: Mapping[str, Any], envs: np.ndarray, single: bool = False
    ) -> tuple[dict[Path, Any], np.ndarray, np.ndarray, Layout]:
        """Check one transition per environment; an error names the wrong field.

        Args:
            fields: Transitions; None counts as not given.
            envs: Environments.
            single: Whether the fields have no environment axis.

        Returns:
            The values by path, ``terminated``, ``truncated``, and the layout of these fields:
            `layout` itself if nothing is new.
        """
        rows, lead = len(envs), envs.shape
        given: dict[Path, Any] = {}
        _flatten(fields, single, (), given)
        terminated, truncated = _ends(given, rows, single)
        if self._last_frame or not self._keep_next:
            given = self._stored(given)
        layout = self.layout
        if given.keys() != layout.keys():
            layout = self._extended(given, rows, single)
        rewards = given["rew",]
        for path, (shape, dtype) in layout.items():
            value = given[path]
            # The first comparisons are cheap, and sufficient in nearly every step.
            plain = type(value) is np.ndarray and value.dtype is dtype
            if not (plain and value.shape == lead + shape):
                given[path] = self._fit(path, layout[path], value, rows, single)
        _check_rewards(given["rew",], rewards, envs)
        return given, terminated, truncated, layout

    def _stored(self, given: dict[Path, Any]) -> dict[Path, Any]:
        """Return the leaves that are stored."""
        if not self._keep_next:
            given = {path: value for path, value in given.items() if path[0] != "obs_next"}
        if self._last_frame:
            for path in given:
                if path[0] in ("obs", "obs_next"):
                    array = self._array(path, given[path])
                    if len(array.shape) < 2:
                        raise ValueError(
                            f"{'.'.join(path)!r} has no axis of stacked frames, of which "
                            "'save_only_last_obs' stores the last: make the buffer without it"
                        )
                    given[path] = array[:, -1]
        return given

    def _extended(self, given: dict[Path, Any], rows: int, single: bool) -> Layout:
        """Return the layout with new leaves, and fill missing leaves.

        After the first transition, only leaves of ``info`` may be new or missing.
        """
        known = self.layout
        if known:
            _same_keys(given.keys(), known.keys())
        else:
            self._check_first(given)
        leaves = dict(known)
        for path, value in given.items():
            if path not in leaves:
                leaves[path] = self._new_leaf(path, value, rows, single)
        for path in known.keys() - given.keys():
            leaf = known[path]
            full: Any = torch.full if isinstance(leaf.dtype, torch.dtype) else np.full
            empty = full((rows, *leaf.shape), fill_value(leaf.dtype), dtype=leaf.dtype)
            given[path] = self._convert(empty)
        if not known and self._keep_next:  # same layout as the observation
            leaves |= {("obs_next", *p[1:]): leaf for p, leaf in leaves.items() if p[0] == "obs"}
        if len(leaves) == len(known):
            return known
        unflatten(dict.fromkeys(leaves))  # raises an error if a leaf is below another
        return leaves

    def _check_first(self, given: dict[Path, Any]) -> None:
        """Check the names of a first transition."""
        names = {path[0] for path in given}
        reserved = [key for key in RESERVED if key in names]
        if reserved:
            raise ValueError(f"{reserved[0]!r} is a reserved name: rename that field")
        required = (*REQUIRED, "obs_next") if self._keep_next else REQUIRED
        missing = [key for key in required if key not in names]
        if missing:
            hint = (
                " (or make the buffer with ignore_obs_next=True)" if missing == ["obs_next"] else ""
            )
            raise ValueError(f"add() needs {missing[0]!r}{hint}; it was given {_names(given)}")
        if self._keep_next:
            after = {path for path in given if path[0] == "obs_next"}
            _same_keys(after, {("obs_next", *path[1:]) for path in given if path[0] == "obs"})

    def _new_leaf(self, path: Path, value: Any, rows: int, single: bool) -> Leaf:
        array = self._array(path, value)
        shape = tuple(array.shape)
        if shape[:1] != (rows,):
            raise ValueError(
                f"{'.'.join(path)!r} has shape {shape}, but one row per environment starts "
                f"with {rows}"
            )
        dtype = array.dtype
        if path == ("rew",):
            numpy = isinstance(dtype, np.dtype)
            if numpy and dtype.kind not in "biuf":
                raise TypeError(
                    f"'rew' is {dtype}, but rewards are numbers: {_describe(value, single)}"
                )
            if not (dtype.char in "fd" if numpy else dtype.is_floating_point):
                dtype = self._convert(0.0).dtype
        return Leaf(shape[1:], dtype)

    def _fit(self, path: Path, leaf: Leaf, value: Any, rows: int, single: bool) -> Any:
        """Return the value as an array of the right shape and dtype."""
        array, shape, name = self._array(path, value), (rows, *leaf.shape), ".".join(path)
        if tuple(array.shape) != shape:
            raise ValueError(
                f"{name!r} has shape {tuple(array.shape[single:])}, but the buffer expects "
                f"{shape[single:]}: got {_describe(value, single)}"
            )
        if array.dtype == leaf.dtype:
            return array
        # Python numbers and lists are converted; arrays have to keep their dtype.
        loose = path == ("rew",) or not isinstance(value, Array) or (single and not leaf.shape)
        fitting = _cast(array, leaf.dtype) if loose else None
        if fitting is None:
            raise TypeError(
                f"{name!r} is {array.dtype}, but the buffer holds {leaf.dtype}, as the first add "
                f"decided, and {_describe(value, single)} does not fit: convert it, or make a new "
                "buffer"
            )
        return fitting

    def _array(self, path: Path, value: Any) -> Any:
        try:
            return self._convert(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{'.'.join(path)!r} is not an array: {error}") from error


def fill_value(dtype: Any) -> Any:
    """Return the value of ``info`` keys for rows that were added without them."""
    if isinstance(dtype, torch.dtype):
        return float("nan") if dtype.is_floating_point else 0
    return {"O": None, "f": float("nan")}.get(dtype.kind, 0)


def _flatten(fields: Any, single: bool, prefix: Path, found: dict[Path, Any]) -> None:
    """Collect all leaves; those of a single row get an environment axis."""
    for key, value in fields.items():
        path: Path = (key,)
        if prefix:
            path = prefix + path
        if isinstance(value, _ARRAYS):
            found[path] = value[None] if single else value
        elif single and type(value) in _NUMBERS:
            found[path] = np.array([value])
        elif isinstance(value, _NODES):
            _flatten(value, single, path, found)
        elif isinstance(value, list | tuple) and value and isinstance(value[0], _NODES):
            _flatten(Batch(value), single, path, found)  # vector environments may return this
        elif value is not None or prefix:
            found[path] = [value] if single else value


def _describe(value: Any, single: bool) -> str:
    return describe(value[0] if single else value)


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(repr(".".join(path)) for path in sorted(paths)) or "nothing"


def _same_keys(given: Set[Path], known: Set[Path]) -> None:
    """Raise an error unless all paths outside of ``info`` are the same."""
    missing, extra = (
        sorted(path for path in paths if path[0] != "info")
        for paths in (known - given, given - known)
    )
    if missing:
        raise ValueError(
            f"add() lacks {'.'.join(missing[0])!r}: the buffer holds {_names(known)}, "
            f"and was given {_names(given)}"
        )
    if extra:
        raise ValueError(
            f"add() was given {'.'.join(extra[0])!r}, which the first add did not have: "
            f"the buffer holds {_names(known)}"
        )


def _ends(given: dict[Path, Any], rows: int, single: bool) -> tuple[np.ndarray, np.ndarray]:
    """Remove and return terminated and truncated; ``done`` alone means ``terminated``."""
    terminated = _end(given, "terminated", rows, single)
    truncated = _end(given, "truncated", rows, single)
    done = _end(given, "done", rows, single)
    if done is None:  # the usual case
        if terminated is None:
            raise ValueError(f"add() needs 'done' or 'terminated'; it was given {_names(given)}")
        return terminated, np.zeros(rows, bool) if truncated is None else truncated
    if terminated is None:
        terminated = done if truncated is None else done & ~truncated
    if truncated is None:
        truncated = done & ~terminated
    if ((terminated | truncated) != done).any():
        raise ValueError("'done' is not 'terminated' or 'truncated': leave it out")
    return terminated, truncated


def _end(given: dict[Path, Any], name: str, rows: int, single: bool) -> Any:
    value = given.pop((name,), None)
    if value is None:
        return None
    end = value if type(value) is np.ndarray else np.asarray(to_numpy(value))
    if end.shape != (rows,):
        raise ValueError(
            f"{name!r} has shape {end.shape[single:]}, but the buffer expects {(rows,)[single:]}"
        )
    return end if end.dtype is _BOOL else end.astype(bool)


def _check_rewards(rew: Any, given: Any, envs: np.ndarray) -> None:
    if isinstance(rew, torch.Tensor):
        if isinstance(given, torch.Tensor) and given.is_cuda:
            return  # avoids synchronising at every step; a run checks its losses
        rew = np.asarray(to_numpy(given))
    flat = rew if rew.ndim == 1 else rew.ravel()
    total = flat.dot(flat)  # NaN if any reward is NaN; cheapest sum
    if total != total:
        env = envs[np.flatnonzero(flat != flat)[0] * len(envs) // flat.size]
        raise ValueError(f"'rew' is NaN in environment {env}: nothing was added")


def _cast(array: Any, dtype: Any) -> Any:
    """Return the array in another dtype, or None if more than precision would be lost."""
    tensor = isinstance(array, torch.Tensor)
    if tensor is not isinstance(dtype, torch.dtype) or (not tensor and array.dtype.hasobject):
        return None
    if _category(array.dtype) > _category(dtype):
        return None
    cast = array.to(dtype) if tensor else array.astype(dtype)
    return cast if _category(dtype) or bool((cast == array).all()) else None


def _category(dtype: Any) -> int:
    """Return 0 for integers; then floats, complex numbers, objects: each includes the previous."""
    if isinstance(dtype, torch.dtype):
        return 2 if dtype.is_complex else int(dtype.is_floating_point)
    return "fcO".find(dtype.kind) + 1

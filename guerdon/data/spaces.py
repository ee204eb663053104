"""Gymnasium spaces as JSON, and checks of data against a space."""

import math
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from guerdon.data.batch import Batch
from guerdon.data.leaves import describe, to_numpy
from guerdon.limits import Budget

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple and Text"
_Numbers = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary


def space_to_json(space: Space[Any]) -> dict[str, Any]:
    """Describe a space as strict JSON; infinite bounds are the strings "inf" and "-inf"."""
    # Exact type: the additional rules of a subclass would be lost.
    kind: Any = type(space)
    return {"type": kind.__name__, **_details(kind, space)}


def space_from_json(data: Any) -> Space[Any]:
    """Return the space that `space_to_json` described; one beyond the limits is an error."""
    try:
        return _from_json(data, Budget())
    except Exception as error:  # Gymnasium and NumPy raise many kinds
        raise ValueError(
            f"this is not a space written by guerdon: {data!r:.300} ({error})"
        ) from None


def _details(kind: Any, space: Any) -> dict[str, Any]:
    if kind is spaces.Box:
        low = _bounds(space.low, space.bounded_below, "-inf")
        high = _bounds(space.high, space.bounded_above, "inf")
        shape = [int(n) for n in space.shape]
        return {"shape": shape, "dtype": space.dtype.name, "low": low, "high": high}
    if kind is spaces.Discrete:
        return {"n": int(space.n), "start": int(space.start), "dtype": space.dtype.name}
    if kind is spaces.MultiDiscrete:
        counts = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {**counts, "dtype": space.dtype.name}
    if kind is spaces.MultiBinary:
        return {"n": space.n if isinstance(space.n, int) else list(space.n)}
    if kind is spaces.Dict:
        if not all(isinstance(key, str) for key in space.spaces):
            raise ValueError(f"a Dict space needs strings as keys to be written as JSON: {space}")
        return {"spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}
    if kind is spaces.Tuple:
        return {"spaces": [space_to_json(part) for part in space.spaces]}
    if kind is spaces.Text:
        lengths = {"min_length": space.min_length, "max_length": space.max_length}
        return {**lengths, "characters": "".join(space.character_list)}
    raise ValueError(f"a space of type {kind.__name__} cannot be written as JSON: use {_SUPPORTED}")


def _from_json(data: Any, budget: Budget) -> Space[Any]:
    kind = data["type"]
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        budget.spend(memory=math.prod(shape) * (2 * dtype.itemsize + 2))  # Gymnasium fills them
        low, high = (_from_bounds(data[side], shape, dtype) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"], dtype=data["dtype"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(data["nvec"], dtype=data["dtype"], start=data["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":  # a list of pairs, since Gymnasium sorts dictionaries
        return spaces.Dict([(key, _from_json(part, budget)) for key, part in data["spaces"]])
    if kind == "Tuple":
        return spaces.Tuple([_from_json(part, budget) for part in data["spaces"]])
    if kind == "Text":
        lengths = {"min_length": data["min_length"], "max_length": data["max_length"]}
        return spaces.Text(**lengths, charset=data["characters"])
    raise ValueError(f"its type is not one of {_SUPPORTED}")


def number_to_json(number: float) -> int | float | str:
    """Return a finite number unchanged, any other as "inf", "-inf" or "nan"."""
    if isinstance(number, int | np.integer):
        return int(number)
    number = float(number)
    return number if math.isfinite(number) else str(number)


def _bounds(bound: np.ndarray, bounded: np.ndarray, open_end: str) -> Any:
    """Return one number if all are equal, else a nested list."""
    if bound.dtype.kind == "i" and bound.size and not bounded.any():
        return open_end  # Gymnasium uses the integer limits
    values = [number_to_json(value) for value in bound.ravel().tolist()]
    if len(set(map(repr, values))) == 1:
        return values[0]
    return np.array(values, dtype=object).reshape(bound.shape).tolist()


def _from_bounds(data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    if isinstance(data, list):
        return np.array(data, dtype).reshape(shape)  # converts "inf", too
    return float(data) if isinstance(data, str) else data


def check_rows(space: Space[Any], rows: Any, name: str, casting: Any = "safe") -> None:
    """Check rows against the keys, shape, dtype and range of a space.

    Rows of a Dict space are a `Batch` by key, rows of a Tuple space a `Batch` by position ("0",
    "1", ...). Bounds of a Box are not checked: environments violate them.

    Args:
        space: The space; unknown kinds of spaces are not checked.
        rows: An array or tensor, or a `Batch` of them.
        name: Name of the rows for error messages.
        casting: Required conversion from an array's dtype to a Box's, as in `numpy.can_cast`;
            integers must keep their values.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = part_spaces(space)
        keys = rows.keys() if isinstance(rows, Batch) else None
        if keys != parts.keys():
            found = describe(rows) if keys is None else f"the keys {', '.join(keys)}"
            raise ValueError(f"{name} has {found}, but the space has {', '.join(parts)}")
        for key, part in parts.items():
            check_rows(part, rows[key], f"{name}.{key}", casting)
    elif isinstance(space, spaces.Text):
        if not isinstance(rows, np.ndarray) or not all(isinstance(text, str) for text in rows):
            raise ValueError(f"{name} must be an array of strings for {space}")
    elif isinstance(space, _Numbers):
        _check_numbers(space, rows, name, casting)


def as_rows(space: Space[Any], rows: Any) -> Any:
    """Return rows that passed `check_rows` as arrays with the dtypes of a space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return Batch({key: as_rows(part, rows[key]) for key, part in part_spaces(space).items()})
    if isinstance(space, _Numbers):
        return to_numpy(rows).astype(space.dtype, copy=False)
    return rows


def in_spaces(rows: Batch, observation_space: Any, action_space: Any, what: str) -> Batch:
    """Return transitions in the dtypes of a run's spaces; raise an error if they do not match."""
    by_name = {"obs": observation_space, "obs_next": observation_space, "act": action_space}
    found = {name: space for name, space in by_name.items() if name in rows}
    for name, space in found.items():
        check_rows(space, rows[name], f"{name} of {what}", "same_kind")
    return rows.replace(**{name: as_rows(space, rows[name]) for name, space in found.items()})


def as_rows_of(space: Any, value: Any, name: str) -> tuple[Any, bool]:
    """Return one element of a space, or several [N, ...], as rows, and whether it is one.

    Errors are those of `fitting`.
    """
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
        raise ValueError(f"{name} is a pair, as reset() returns it: give its first part")
    one = _is_one(space, value)
    return fitting(space, value, name, one=one), one


def _is_one(space: Any, value: Any) -> bool:
    while isinstance(space, spaces.Dict | spaces.Tuple) and part_spaces(space):
        key, space = next(iter(part_spaces(space).items()))
        value = value[key] if hasattr(value, "keys") and key in value else ()
    try:
        return np.ndim(value) == len(space.shape or ())
    except ValueError:  # lists of different lengths
        return False


def fitting(space: Any, rows: Any, name: str, *, one: bool = False) -> Any:
    """Return rows of a user in the dtypes of a space; raise an error if they do not fit.

    Args:
        space: The space; None if it is unknown, so that only NaN and infinity are errors.
        rows: See `check_rows`; lists are converted, and parts that the space has not are left out.
        name: Name of the rows for error messages.
        one: Whether this is one element, which becomes a row.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = part_spaces(space)
        keys = rows.keys() if hasattr(rows, "keys") else ()
        if missing := [key for key in parts if key not in keys]:
            raise ValueError(
                f"{name} is {describe(rows)}, without {missing[0]!r}: it needs the parts "
                f"{', '.join(parts)}"
            )
        found = {
            key: fitting(part, rows[key], f"{name}.{key}", one=one) for key, part in parts.items()
        }
        return Batch(found)
    if space is None:
        check_finite(rows, name)
        return rows
    array = _as_array(space, rows, name)
    array = array[None] if one else array
    if isinstance(space, _Numbers):
        array = _as_numbers(space, array, name)
    check_rows(space, array, name)
    return array


def _as_array(space: Any, rows: Any, name: str) -> np.ndarray:
    array = None
    if not hasattr(rows, "keys"):
        with suppress(TypeError, ValueError):  # such as lists of different lengths
            array = np.asarray(to_numpy(rows))
    if array is None or (isinstance(space, _Numbers) and array.dtype.kind not in "biuf"):
        raise ValueError(f"{name} is {describe(rows)}, but has to be {_shown(space)}")
    return array


def _shown(space: Any) -> str:
    """Describe a space without bounds, which may be long."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = [f"{key}: {_shown(part)}" for key, part in part_spaces(space).items()]
        return f"parts ({', '.join(parts)})"
    is_box = isinstance(space, spaces.Box)
    return f"{space.dtype} numbers of shape {space.shape}" if is_box else str(space)


def _as_numbers(space: Any, array: np.ndarray, name: str) -> np.ndarray:
    """Return rows in the dtype of a space, which must not change their values but by rounding."""
    if array.shape[1:] != space.shape:
        raise ValueError(f"{name} has the shape {array.shape[1:]}, but its space {space.shape}")
    cast = array
    if array.dtype != space.dtype:
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(space.dtype)
    if cast.dtype.kind == "f":
        check_finite(cast, name)
    elif not np.can_cast(array.dtype, cast.dtype) and (cast != array).any():
        place = tuple(np.argwhere(cast != array)[0])
        raise ValueError(f"{name} has the value {array[place]}, but has to be {_shown(space)}")
    return cast


def check_finite(rows: Any, name: str) -> None:
    """Raise an error if an array or tensor, or one of a `Batch`, has NaN or infinite numbers."""
    if isinstance(rows, Batch):
        for key, part in rows.items():
            check_finite(part, f"{name}.{key}")
        return
    array = to_numpy(rows)
    floats = isinstance(array, np.ndarray) and array.dtype.kind in "fc"
    if floats and not (finite := np.isfinite(array)).all():
        place = tuple(np.argwhere(~finite)[0].tolist())
        at = f" at index {place if len(place) > 1 else place[0]}" if place else ""
        raise ValueError(f"{name} is {array[place]}{at}, not a finite number")


def check_same_layout(space: Any, other: Any, name: str) -> None:
    """Raise an error unless an environment's space has the parts and shapes of a model's."""
    if _layout(space) != _layout(other):
        raise ValueError(
            f"the {name} of this environment are {_shown(space)}, but the policy or reward was "
            f"made for {_shown(other)}: use the environment that it was trained in, or one like it"
        )


def _layout(space: Any) -> Any:
    """Return parts, shapes and numbers of choices; bounds of a Box do not matter."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return {key: _layout(part) for key, part in part_spaces(space).items()}
    if isinstance(space, spaces.Box):
        return space.shape, space.dtype.kind
    return space


def leaf_names(space: Any, name: str) -> list[str]:
    """Return the dotted names of all arrays of a space."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [name]
    parts = part_spaces(space).items()
    return [leaf for key, part in parts for leaf in leaf_names(part, f"{name}.{key}")]


def part_spaces(space: spaces.Dict | spaces.Tuple[Any]) -> dict[str, Space[Any]]:
    """Return the parts of a Dict or Tuple space by key; those of a Tuple are "0", "1", ..."""
    pairs: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    return {str(key): part for key, part in pairs}


def _check_numbers(space: Any, rows: Any, name: str, casting: Any) -> None:
    if not isinstance(rows, np.ndarray | torch.Tensor) or tuple(rows.shape[1:]) != space.shape:
        raise ValueError(f"{name} is {describe(rows)}, but a row must be of shape {space.shape}")
    array = rows.detach().cpu().numpy() if isinstance(rows, torch.Tensor) else rows
    if isinstance(space, spaces.Box):
        fits = np.can_cast(array.dtype, space.dtype, casting)
        if fits and space.dtype.kind in "iu" and not np.can_cast(array.dtype, space.dtype):
            fits = bool((array.astype(space.dtype) == array).all())  # otherwise they would overflow
        if not fits:
            raise ValueError(f"{name} is {array.dtype}, which does not fit {space}")
        return
    if array.dtype.kind not in ("biu" if isinstance(space, spaces.MultiBinary) else "iu"):
        raise ValueError(f"{name} is {array.dtype}, but {space} needs integers")
    if isinstance(space, spaces.MultiBinary):
        first, count = 0, 2
    else:
        first, count = space.start, space.n if isinstance(space, spaces.Discrete) else space.nvec
    shifted = array.astype(np.int64) - first
    wrong = (shifted < 0) | (shifted >= count)
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        raise ValueError(f"{name} is {array[row]} in row {row}, which is outside {space}")

"""Batches of observations and infos, one row per environment."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from guerdon.envs.checks import ARRAYS, NUMBERS, SUCCESS


def stack(space: Space[Any], observations: Sequence[Any]) -> Any:
    """Batch the observations of several environments."""
    n = len(observations)
    if isinstance(space, spaces.Dict):
        return {
            key: stack(part, [observation[key] for observation in observations])
            for key, part in space.spaces.items()
        }
    if not isinstance(space, ARRAYS):
        out: Any = create_empty_array(space, n)
        return concatenate(space, observations, out)
    batch = np.array(observations)  # faster than `concatenate`; does not broadcast or cast
    if batch.shape[1:] != space.shape or batch.dtype != space.dtype:
        batch = _fitted(space, batch)
    return batch


def _fitted(space: Space[Any], batch: np.ndarray) -> np.ndarray:
    """Convert to the dtype of a space; raise an error if that changes more than the precision."""
    if batch.shape[1:] != space.shape or batch.dtype.kind not in NUMBERS:
        raise ValueError(f"observations are {batch.dtype} of shape {batch.shape}")
    cast = batch.astype(space.dtype)
    if not np.can_cast(batch.dtype, cast.dtype, "same_kind") and (cast != batch).any():
        raise ValueError(f"observations are {batch.dtype}, not {cast.dtype}")
    return cast


def unstack(space: Space[Any], actions: Any, n: int) -> Sequence[Any]:
    """Split a batch of actions."""
    if isinstance(actions, np.ndarray):
        return list(actions)
    return list(iterate(batch_space(space, n), actions))


def copied(data: Any) -> Any:
    """Copy the arrays of nested data."""
    if isinstance(data, np.ndarray):
        return data.copy()
    if isinstance(data, dict):
        return {key: copied(value) for key, value in data.items()}
    return tuple(map(copied, data)) if isinstance(data, tuple) else data


def replaced(obs: Any, ids: Sequence[int] | np.ndarray, rows: Any) -> Any:
    """Copy a batch of observations and replace some rows.

    Args:
        obs: Batch of observations.
        ids: Indices of the rows to replace.
        rows: A batch like `obs`, or a mapping from each index to one observation.
    """
    if isinstance(obs, dict):
        return {key: replaced(part, ids, _part(rows, ids, key)) for key, part in obs.items()}
    if isinstance(obs, tuple) and isinstance(obs[0], np.ndarray | dict | tuple):
        return tuple(replaced(part, ids, _part(rows, ids, i)) for i, part in enumerate(obs))
    result = list(obs) if isinstance(obs, tuple) else obs.copy()  # a tuple of strings
    for i in ids:
        result[i] = rows[i]
    return tuple(result) if isinstance(obs, tuple) else result


def _part(rows: Any, ids: Sequence[int] | np.ndarray, key: Any) -> Any:
    if isinstance(rows, tuple) or (isinstance(rows, dict) and key in rows):
        return rows[key]
    return {i: rows[i][key] for i in ids}


def batch_info(infos: Mapping[int, dict[str, Any]], n: int) -> dict[str, Any]:
    """Batch infos in Gymnasium's layout: ``key``, and the mask ``_key`` of rows with this key.

    Args:
        infos: Infos by row; rows without one may be left out.
        n: Number of rows.
    """
    batch: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos.values() for key in info):
        found = {i: info[key] for i, info in infos.items() if key in info}
        nested = all(isinstance(value, dict) for value in found.values())
        batch[key] = batch_info(found, n) if nested else _info_array(found, n)
        batch[f"_{key}"] = mask = np.zeros(n, bool)
        mask[list(found)] = True
    return batch


def _info_array(found: dict[int, Any], n: int) -> np.ndarray:
    try:
        values = np.asarray(list(found.values()))
    except ValueError:  # arrays of different shapes
        values = np.empty(0, object)
    if values.dtype.kind not in "biufc":
        array = np.full(n, None, object)
        for i, value in found.items():
            array[i] = value
    elif len(found) == n:
        array = values
    else:
        array = np.zeros((n, *values.shape[1:]), values.dtype)
        array[list(found)] = values
    return array


def final_info(info: dict[str, Any], done: np.ndarray) -> dict[str, Any]:
    """Return the infos of transitions from the info of SAME_STEP autoreset.

    Args:
        info: Gymnasium's info: of the reset for finished rows, with the info of the last step in
            ``final_info``.
        done: Mask of finished rows.
    """
    dropped = ("final_obs", "_final_obs", "final_info", "_final_info")
    new = {key: value for key, value in info.items() if key not in dropped}
    return _merged(new, info.get("final_info") or {}, done) if "final_info" in info else new


def _merged(new: dict[str, Any], final: dict[str, Any], done: np.ndarray) -> dict[str, Any]:
    """Take the rows of `done` from `final`; keys missing there have no value."""
    merged = final | new
    for key, value in new.items():
        if isinstance(value, dict):
            merged[key] = _merged(value, final.get(key, {}), done)
        elif key in final:
            merged[key] = value.astype(np.result_type(value, final[key]))
            merged[key][done] = final[key][done]
        elif key[:1] == "_" and key[1:] in new:
            merged[key] = value & ~done
    return merged


def reported_success(
    info: Mapping[str, Any], n_rows: int, names: Sequence[str] = SUCCESS
) -> np.ndarray:
    """Return success of the rows of a step: 1 or 0; NaN if ``info`` does not report it."""
    success: np.ndarray = np.full(n_rows, np.nan, np.float32)
    for name in names:
        if info.get(name) is not None:
            new = np.isnan(success) & (column(info.get(f"_{name}", True), f"_{name}", n_rows) > 0)
            success[new] = column(info[name], name, n_rows)[new]
    return success


def column(values: Any, name: str, n_rows: int) -> np.ndarray:
    """Return one value per row; a scalar is repeated."""
    # Does not import torch, which environment processes do not need.
    array = np.asarray(values.numpy(force=True) if hasattr(values, "numpy") else values)
    if array.ndim and array.size != n_rows:
        raise ValueError(
            f"{name!r} has the shape {array.shape} for {n_rows} rows: give one value per row, "
            f"whether its episode ended or not"
        )
    return array.reshape(n_rows) if array.ndim else np.full(n_rows, array)

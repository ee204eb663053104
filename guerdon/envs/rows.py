"""Batches of observations and infos, row by row; observations may be nested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gymnasium import Space

_PROBED = 3
ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def stack(space: Space[Any], observations: Sequence[Any]) -> Any:
    """One batch of the observations of several environments."""
    n = len(observations)
    if isinstance(space, spaces.Dict):
        return {
            key: stack(part, [observation[key] for observation in observations])
            for key, part in space.spaces.items()
        }
    if not isinstance(space, ARRAY_SPACES):
        out: Any = create_empty_array(space, n)
        return concatenate(space, observations, out)
    batch = np.empty((n, *(space.shape or ())), space.dtype)
    for i, observation in enumerate(observations):
        batch[i] = observation
    return batch


def unstack(space: Space[Any], actions: Any, n: int) -> Sequence[Any]:
    """The actions of a batch, one by one."""
    if isinstance(actions, np.ndarray):
        return list(actions)
    return list(iterate(batch_space(space, n), actions))


def copied(data: Any) -> Any:
    """The same arrays in memory of their own."""
    if isinstance(data, dict):
        return {key: copied(value) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(copied(value) for value in data)
    return data.copy() if isinstance(data, np.ndarray) else data


def arrays(data: Any) -> Iterator[np.ndarray]:
    """Every array in nested data."""
    if isinstance(data, dict):
        data = tuple(data.values())
    if isinstance(data, tuple):
        for value in data:
            yield from arrays(value)
    elif isinstance(data, np.ndarray):
        yield data


def replaced(obs: Any, ids: Sequence[int] | np.ndarray, rows: Any) -> Any:
    """Observations with some rows taken from elsewhere.

    Args:
        obs: Arrays, nested as the space is; they stay as they are.
        ids: The numbers of the rows to take.
        rows: Nested arrays like `obs`, or something that gives one observation for each number.
    """
    if isinstance(obs, dict):
        return {key: replaced(part, ids, _part(rows, ids, key)) for key, part in obs.items()}
    if isinstance(obs, tuple) and isinstance(obs[0], np.ndarray | dict | tuple):
        return tuple(replaced(part, ids, _part(rows, ids, i)) for i, part in enumerate(obs))
    result = list(obs) if isinstance(obs, tuple) else obs.copy()  # a tuple of texts
    for i in ids:
        result[i] = rows[i]
    return tuple(result) if isinstance(obs, tuple) else result


def _part(rows: Any, ids: Sequence[int] | np.ndarray, key: Any) -> Any:
    if isinstance(rows, tuple) or (isinstance(rows, dict) and key in rows):
        return rows[key]
    return {i: rows[i][key] for i in ids}


# --- infos


def batch_info(infos: Mapping[int, dict[str, Any]], n: int) -> dict[str, Any]:
    """Infos of single environments in Gymnasium's layout: `key`, and `_key` for who has it.

    Args:
        infos: By number of the row; rows without any may be left out.
        n: How many rows there are.
    """
    batch: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos.values() for key in info):
        found = {i: info[key] for i, info in infos.items() if key in info}
        if all(isinstance(value, dict) for value in found.values()):
            batch[key] = batch_info(found, n)
        else:
            batch[key] = _info_array(found, n)
        mask = np.zeros(n, bool)
        mask[list(found)] = True
        batch[f"_{key}"] = mask
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
    """SAME_STEP's info as that of the transitions: ended rows tell of their end, not of the reset.

    Args:
        info: As Gymnasium gives it: of the new episode, with that of the old in ``final_info``.
        done: The rows that ended.
    """
    dropped = ("final_obs", "_final_obs", "final_info", "_final_info")
    new = {key: value for key, value in info.items() if key not in dropped}
    final = info.get("final_info")
    return _merged(new, final, done) if isinstance(final, dict) else new


def _merged(new: dict[str, Any], final: dict[str, Any], done: np.ndarray) -> dict[str, Any]:
    """`new`, with the rows of `done` from `final`: what is not in there has no value for them."""
    merged = dict(new)
    for key, value in new.items():
        if isinstance(value, dict):
            merged[key] = _merged(value, final.get(key, {}), done)
        elif key not in final:
            merged[key] = value & ~done if key[1:] in new and key[0] == "_" else value
        else:
            merged[key] = value.astype(np.result_type(value, final[key]))
            merged[key][done] = final[key][done]
    return merged | {key: value for key, value in final.items() if key not in new}


# --- arrays that are given again


class ReuseProbe:
    """Finds out whether an environment gives its arrays again, overwritten; then copies them.

    The first batches are copied in any case and kept: while they live, an array that overlaps
    with one of them is the same memory.

    Args:
        found: Whether it is already known to.
    """

    def __init__(self, found: bool) -> None:
        self.found = found
        self.active = True
        """Whether batches still have to go through `settled`."""
        self._seen: list[list[np.ndarray]] = []

    def settled(self, batch: Any) -> Any:
        """A batch that the environment will not change."""
        if not self.found:
            new = list(arrays(batch))
            self.found = any(
                np.may_share_memory(a, b) for seen in self._seen for a in seen for b in new
            )
            self._seen.append(new)
            if self.found or len(self._seen) == _PROBED:
                self._seen.clear()
                self.active = self.found
        return copied(batch)

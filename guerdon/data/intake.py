"""From what `add` is given to checked arrays in the order of the columns."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from guerdon.data.batch import Batch
from guerdon.data.columns import Column, convert, new_column
from guerdon.data.kernels import DUMMY
from guerdon.data.leaves import Array, to_numpy
from guerdon.data.ring import Ring
from guerdon.data.tree import Path, flatten, unflatten

REQUIRED = ("obs", "act", "rew")
TAKEN = ("mask", "weight", "source")  # keys that samples add to a batch
ENDS = ("terminated", "truncated", "done")
_BOOL = np.dtype(bool)


Checked = tuple[list[Any], list[Any], np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Intake:
    """Checks every `add` before anything is written; the first one decides keys, shapes and dtypes.

    Args:
        ring: Whose columns are filled.
        save_only_last_obs: Whether observations come as stacks of which the last frame is kept.
    """

    def __init__(self, ring: Ring, save_only_last_obs: bool) -> None:
        self.only_done = False
        """Whether ends were only ever given as `done`."""
        self._ring = ring
        self._save_only_last_obs = save_only_last_obs
        self._keys: set[str] = set()
        self._groups: dict[Path, set[str]] = {}
        self._reward = 0
        self._one = {"rew": np.zeros(1), **{end: np.zeros(1, bool) for end in ENDS}}

    def __call__(
        self, fields: dict[str, Any], n: int, single: bool, dummy: Any, frames: bool = False
    ) -> Checked:
        """The values as arrays, in the order in which `Ring.write` takes them.

        Args:
            fields: What `add` was given.
            n: Number of environments.
            single: Whether this is one row without a leading axis.
            dummy: Which rows are no transitions, or None.
            frames: Whether observations are single frames already, whatever the buffer's option.
        """
        if not n:
            raise ValueError("env_ids names no environment: there is nothing to add")
        lead = () if single else (n,)
        ring, columns, only_done = self._ring, self._ring.columns, False
        if self._save_only_last_obs and not frames:
            fields = _last_frames(fields, 0 if single else 1)
        if not self._expected(fields):
            only_done = "terminated" not in fields and "truncated" not in fields
            only_done = only_done and (self.only_done or not columns)
            fields = self._normal(fields)
            if not columns:
                self._start(fields, lead)
                self.only_done = only_done
            fields, new = self._matched(fields, lead)
            columns = ring.columns + new
        values = []
        for column in columns:
            path = column.path
            value = fields[path[0]] if len(path) == 1 else _dig(fields, path)
            # What `fit` would say too; without the call this is hot.
            if not (
                type(value) is np.ndarray
                and value.dtype is column.dtype
                and value.shape == lead + column.row_shape
            ):
                value = column.fit(value, lead)
            values.append(value)
        nexts = [column.fit(_dig(fields, column.path), lead) for column in ring.table]
        checked = (
            values,
            nexts,
            _flat(values[self._reward], self._one["rew"]),
            self._end(fields["terminated"], "terminated", lead),
            self._end(fields["truncated"], "truncated", lead),
            ring.no_marks[:n] if dummy is None else _marks(dummy, n),
        )
        if only_done != self.only_done or len(columns) > len(ring.columns):
            self._change(columns, only_done, rewards=checked[2])
        return checked

    def _change(self, columns: list[Column], only_done: bool, rewards: np.ndarray) -> None:
        """Takes to new columns and kinds of ends, once nothing can be wrong any more."""
        if np.isnan(rewards).any():
            raise ValueError("'rew' is NaN: nothing was added")
        self.only_done = only_done
        if len(columns) > len(self._ring.columns):
            self._ring.columns = columns
            self._ring.version += 1
            self._index()

    def _expected(self, fields: dict[str, Any]) -> bool:
        """Whether the keys are those of the columns, in which case they need no second look."""
        return fields.keys() == self._keys and (
            not self._groups
            or all(_keys(_dig(fields, path)) == keys for path, keys in self._groups.items())
        )

    def _normal(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields with both kinds of ends, in one piece, and without what is not kept."""
        fields = {
            key: _joined(value)
            for key, value in fields.items()
            if value is not None or key not in ("info", "policy")
        }
        if "done" in fields or "terminated" not in fields or "truncated" not in fields:
            fields = _with_ends(fields)
        if not self._ring.keeps_next:
            fields = {key: value for key, value in fields.items() if key != "obs_next"}
        return fields

    def _end(self, value: Any, name: str, lead: tuple[int, ...]) -> np.ndarray:
        if type(value) is np.ndarray and value.dtype is _BOOL and value.shape == lead and lead:
            return value
        if type(value) is bool and not lead:
            self._one[name][0] = value
            return self._one[name]
        ends = _as_bool(value)
        if tuple(ends.shape) != lead:
            raise ValueError(
                f"{name!r} has shape {tuple(ends.shape)}, but the buffer expects {lead}"
            )
        return _flat(ends, self._one[name])

    def adopt(self, columns: list[Column], table: list[Column], only_done: bool) -> None:
        """Takes columns that exist already, as of a buffer that is loaded."""
        self.only_done = only_done
        rew = next(column for column in columns if column.path == ("rew",))
        self._ring.start(columns, table, agents=int(np.prod(rew.row_shape)))
        self._index()

    def _start(self, fields: dict[str, Any], lead: tuple[int, ...]) -> None:
        """Makes the columns for values like these."""
        taken = [key for key in TAKEN if key in fields]
        if taken:
            raise ValueError(f"{taken[0]!r} is what samples call something else: rename that field")
        missing = [key for key in REQUIRED if key not in fields]
        if self._ring.keeps_next and "obs_next" not in fields:
            missing.append("obs_next")
        if missing:
            hint = (
                " (or make the buffer with ignore_obs_next=True)" if "obs_next" in missing else ""
            )
            raise ValueError(f"add() needs {missing[0]!r}{hint}; it was given {_names(fields)}")
        ring, storage = self._ring, self._ring.storage
        leaves = [
            (path, leaf)
            for path, leaf in flatten(fields)
            if path[0] not in ENDS and not isinstance(leaf, Batch | Mapping)
        ]
        for path, leaf in leaves:
            shape = tuple(convert(leaf, path, storage).shape)
            if shape[: len(lead)] != lead:
                raise ValueError(
                    f"{'.'.join(path)!r} has shape {shape}, but with a row an environment "
                    f"it starts with {lead[0]}"
                )
        leaves.sort(key=lambda item: item[0][0] != "obs")  # the ring wants observations first
        columns = [
            new_column(path, leaf, ring.n_rows, len(lead), storage)
            for path, leaf in leaves
            if path[0] != "obs_next"
        ]
        table = []
        if ring.keeps_next:
            for path, leaf in leaves:
                if path[0] == "obs":
                    place = ("obs_next", *path[1:])
                    table.append(new_column(place, leaf, 2 * ring.n_envs + 16, len(lead), storage))
        self.adopt(columns, table, self.only_done)

    def forget(self) -> None:
        """Undoes the first `add`, which decided on columns and then failed."""
        for column in (*self._ring.columns, *self._ring.table):
            self._ring.storage.drop(column.name)
        self._ring.columns, self._ring.table = [], []
        self._keys, self._groups = set(), {}

    def _index(self) -> None:
        """Remembers which keys to expect where."""
        columns = self._ring.columns
        paths = [column.path for column in (*columns, *self._ring.table)]
        self._keys = {path[0] for path in paths} | {"terminated", "truncated"}
        self._groups = {}
        for path in paths:
            for depth in range(1, len(path)):
                self._groups.setdefault(path[:depth], set()).add(path[depth])
        self._reward = [column.path for column in columns].index(("rew",))
        dtype = columns[self._reward].dtype
        self._one["rew"] = np.zeros(1, dtype if isinstance(dtype, np.dtype) else np.float64)

    def _matched(
        self, fields: dict[str, Any], lead: tuple[int, ...]
    ) -> tuple[dict[str, Any], list[Column]]:
        """The fields with exactly the expected keys, or an error that names the odd one.

        Only `info` may change: environments report what they please. A row that lacks a key of it
        reads NaN, 0, False or None there.

        Returns:
            The fields, and columns for what is new in `info`.
        """
        for key in ("info", "policy"):
            if key in fields and key not in self._keys and not _keys(fields[key]):
                fields = {k: v for k, v in fields.items() if k != key}
        new: list[Column] = []
        _same(fields.keys() - {"info"}, self._keys - {"info"}, "")
        for path, keys in self._groups.items():
            if path[0] != "info":
                _same(_keys(_dig(fields, path)), keys, ".".join(path) + ".")
        if "info" in fields or "info" in self._keys:
            info, new = self._matched_info(fields.get("info", {}), lead)
            fields = {**fields, "info": info}
        return fields, new

    def _matched_info(self, info: Any, lead: tuple[int, ...]) -> tuple[Batch, list[Column]]:
        given = {
            ("info", *path): leaf
            for path, leaf in flatten(Batch(info))
            if not isinstance(leaf, Batch)
        }
        known = {column.path: column for column in self._ring.columns if column.path[0] == "info"}
        ring, new = self._ring, []
        for path, leaf in given.items():
            if path not in known:
                column = new_column(path, leaf, ring.n_rows, len(lead), ring.storage)
                column.rows[...] = _nothing(column)
                new.append(column)
        for path, column in known.items():
            if path not in given:
                given[path] = _filled(column, lead + column.row_shape)
        return unflatten({path[1:]: leaf for path, leaf in given.items()}), new


def _nothing(column: Column) -> Any:
    """What a row reads that was added without this key."""
    if column.dtype == object:
        return None
    floating = (
        column.dtype.is_floating_point
        if isinstance(column.rows, torch.Tensor)
        else (column.dtype.kind == "f")
    )
    return float("nan") if floating else 0


def _filled(column: Column, shape: tuple[int, ...]) -> Any:
    if isinstance(column.rows, torch.Tensor):
        return column.rows.new_full(shape, _nothing(column))
    return np.full(shape, _nothing(column), column.dtype)


def _dig(fields: Any, path: Path) -> Any:
    for key in path:
        fields = fields[key]
    return fields


def _names(keys: Any) -> str:
    return ", ".join(repr(key) for key in sorted(keys)) or "nothing"


def _keys(fields: Any) -> set[str]:
    return set(fields.keys()) if isinstance(fields, Mapping | Batch) else set()


def _same(given: set[str], keys: set[str], prefix: str) -> None:
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
    """The fields with `terminated` and `truncated`, from whichever of the three ends were given."""
    given = {key: _as_bool(fields[key]) for key in ENDS if fields.get(key) is not None}
    if len({end.shape for end in given.values()}) > 1:
        shapes = " and ".join(f"{key!r} {end.shape}" for key, end in given.items())
        raise ValueError(f"the ends have different shapes: {shapes}")
    if "terminated" not in given and "done" not in given:
        raise ValueError(f"add() needs 'done' or 'terminated'; it was given {_names(fields)}")
    # What is not given is the rest of what is; without `done`, nothing is missing.
    done = given.get("done", np.False_)
    terminated = given.get("terminated", done & ~given.get("truncated", np.False_))
    truncated = given.get("truncated", done & ~terminated)
    if "done" in given and ((terminated | truncated) != done).any():
        raise ValueError("'done' is not 'terminated' or 'truncated': leave it out")
    ends = {"terminated": terminated, "truncated": truncated}
    return {**{key: value for key, value in fields.items() if key != "done"}, **ends}


def _as_bool(value: Any) -> np.ndarray:
    if value is None:
        raise ValueError("an end is None: give 'terminated' and 'truncated' as truth values")
    return np.asarray(to_numpy(value)).astype(bool)


def _joined(value: Any) -> Any:
    """A list of dictionaries, as vector environments may give it, as a dictionary of arrays."""
    rows = isinstance(value, list | tuple) and len(value) > 0
    return Batch(value) if rows and all(isinstance(v, Mapping | Batch) for v in value) else value


def _last_frames(fields: dict[str, Any], axis: int) -> dict[str, Any]:
    last = (slice(None),) * axis + (-1,)

    def cut(value: Any) -> Any:
        if isinstance(value, Mapping | Batch):
            return {key: cut(leaf) for key, leaf in value.items()}
        return (value if isinstance(value, Array) else np.asarray(value))[last]

    names = [key for key in ("obs", "obs_next") if key in fields]
    return {**fields, **{key: cut(fields[key]) for key in names}}


def _flat(value: Any, one: np.ndarray) -> np.ndarray:
    """A reward or an end as the kernels want it: in one dimension, in NumPy."""
    if type(value) is np.ndarray:
        return value if value.ndim == 1 else value.reshape(-1)
    if isinstance(value, torch.Tensor):  # numba has no half precision
        return np.asarray(to_numpy(value), np.float64).reshape(-1)
    one[0] = value  # a plain number
    return one


def _marks(dummy: Any, n: int) -> np.ndarray:
    marks = np.asarray(dummy, dtype=bool).reshape(-1)
    if marks.size != n:
        raise ValueError(f"'dummy' marks {marks.size} rows, but {n} are added")
    return np.where(marks, np.uint8(DUMMY), np.uint8(0))

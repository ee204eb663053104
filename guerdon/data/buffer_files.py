"""Buffers as files: saved in one piece, or living in a folder of memory-mapped arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.columns import Column, make_column, rows_name
from guerdon.data.files import atomic_file, read_arrays, write_arrays

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from guerdon.data.replay_buffer import ReplayBuffer
    from guerdon.data.storage import DiskStorage, Storage

BOOKKEEPING = ("book", "flags", "link", "returns")


def state_dict(buffer: ReplayBuffer) -> dict[str, Any]:
    """What it takes to make the same buffer again, its generator included; rows are not copied."""
    ring = buffer._ring
    ring.recover()  # as whoever loads it does, so that both go on in the same places
    rows = ring.limit()
    arrays: dict[tuple[str, ...], Any] = {
        ("ring", name): getattr(ring, name).copy() for name in BOOKKEEPING
    }
    for column in ring.columns:
        arrays["columns", *column.path] = column.rows[:rows]
    for column in ring.table:
        arrays["table", *column.path] = column.rows
    meta = {
        **_description(buffer),
        "only_done": buffer._intake.only_done,
        "generator": buffer._generator.bit_generator.state,
    }
    return {"meta": meta, "arrays": arrays}


def load_state_dict(buffer: ReplayBuffer, state: dict[str, Any]) -> None:
    """Fills a buffer of the same kind and options with what `state_dict` gave."""
    meta, arrays = state["meta"], state["arrays"]
    _check_same(meta, _description(buffer), "the saved buffer")
    ring, storage = buffer._ring, buffer._storage
    if buffer._disk:  # its files are written anew, and must not be taken for whole before they are
        ring.clear()
    n_saved = len(arrays["ring", "flags"])
    if n_saved > ring.n_rows:  # a buffer that grows has grown
        ring.grow(n_saved // ring.n_envs)
    columns, table = [], []
    for path, array in arrays.items():
        if path[0] == "columns":
            columns.append(_filled(path[1:], array, ring.n_rows, storage))
        elif path[0] == "table":
            table.append(_filled(path[1:], array, len(array), storage))
    if columns:
        buffer._intake.adopt(columns, table, meta["only_done"])
        if buffer._disk:
            describe_changes(buffer, buffer._disk)
    for name in BOOKKEEPING:
        held, saved = getattr(ring, name), arrays["ring", name]
        held[...] = 0
        held[: len(saved)] = saved
    ring.recover()
    buffer._generator.bit_generator.state = meta["generator"]


def save(buffer: ReplayBuffer, path: str | Path) -> None:
    """Writes `state_dict` to a file."""
    state = buffer.state_dict()
    write_arrays(path, state["arrays"], state["meta"])


def load(kind: type[Any], path: str | Path, storage: str | torch.device | Storage) -> Any:
    """Makes the buffer that a file holds."""
    arrays, meta = read_arrays(path)
    if meta.get("kind") != kind.__name__:
        raise ValueError(f"{path} holds a {meta.get('kind')}, not a {kind.__name__}")
    return restore(kind, {"meta": meta, "arrays": arrays}, storage)


def restore(
    kind: type[Any], state: dict[str, Any], storage: str | torch.device | Storage = "memory"
) -> Any:
    """Makes the buffer that a state describes."""
    buffer = kind(**state["meta"]["options"], storage=storage)
    buffer.load_state_dict(state)
    return buffer


# --- folders


def check_folder(buffer: ReplayBuffer, storage: DiskStorage) -> None:
    """Sees that a folder is new, or holds a buffer like this one."""
    meta = storage.read_meta()
    if meta is not None:
        _check_same(meta, _description(buffer), f"the buffer in {storage.folder}")
    elif any(not path.name.startswith(".meta.json.") for path in storage.folder.iterdir()):
        raise ValueError(f"{storage.folder} is not empty and holds no buffer: name a new folder")
    else:
        _describe(storage, _description(buffer), [], [], only_done=False)


def reopen(buffer: ReplayBuffer, storage: DiskStorage) -> None:
    """Takes over what a folder holds, and cuts episodes that were under way: nobody goes on."""
    meta = storage.read_meta() or {"columns": [], "table": []}
    names = [rows_name(entry["path"]) for entry in (*meta["columns"], *meta["table"])]
    if not names or not all(map(storage.holds, names)):  # without files, the first add failed
        return
    # Arrays grow one after the other, so whoever was killed there left some longer than others.
    ring = buffer._ring
    columns = [_reopened(entry, ring.n_rows, storage) for entry in meta["columns"]]
    for column in columns:
        column.rows = column.rows[: ring.n_rows]
    table = [_reopened(entry, 2 * ring.n_envs, storage) for entry in meta["table"]]
    longest = max((len(column.rows) for column in table), default=0)
    for column in table:
        column.rows = storage.grow(column.name, column.rows, longest)
    buffer._intake.adopt(columns, table, meta["only_done"])
    ring.repair()
    ring.cut(ring.envs)


def describe_changes(buffer: ReplayBuffer, storage: DiskStorage) -> None:
    """Writes what `reopen` has to know, if it changed; before rows of new columns are written."""
    columns, table = buffer._ring.columns, buffer._ring.table
    stamp = (len(columns), buffer._intake.only_done)
    if stamp != storage.stamp:
        _describe(storage, _description(buffer), columns, table, buffer._intake.only_done)
        storage.stamp = stamp


def _describe(
    storage: DiskStorage,
    description: dict[str, Any],
    columns: list[Column],
    table: list[Column],
    only_done: bool,
) -> None:
    meta = {
        **description,
        "only_done": only_done,
        "columns": [_entry(column) for column in columns],
        "table": [_entry(column) for column in table],
    }
    with atomic_file(storage.folder / "meta.json") as file:
        file.write(json.dumps(meta, indent=1).encode())


def _reopened(entry: dict[str, Any], rows: int, storage: DiskStorage) -> Column:
    path = tuple(entry["path"])
    shape = (rows, *entry["shape"])
    return Column(path, storage.array(rows_name(path), shape, np.dtype(entry["dtype"])), storage)


def _entry(column: Column) -> dict[str, Any]:
    return {
        "path": list(column.path),
        "dtype": column.dtype.str,
        "shape": list(column.row_shape),
    }


def _description(buffer: ReplayBuffer) -> dict[str, Any]:
    return {"kind": type(buffer).__name__, "options": buffer.options()}


def _check_same(theirs: dict[str, Any], ours: dict[str, Any], what: str) -> None:
    if theirs["kind"] != ours["kind"]:
        raise ValueError(f"{what} is a {theirs['kind']}, not a {ours['kind']}")
    for name, value in ours["options"].items():
        if theirs["options"].get(name) != value:
            raise ValueError(
                f"{what} was made with {name}={theirs['options'].get(name)!r}, not {value!r}"
            )


def _filled(path: tuple[str, ...], array: Any, rows: int, storage: Storage) -> Column:
    values = storage.convert(array)
    column = make_column(path, (rows, *values.shape[1:]), values.dtype, storage)
    column.rows[: len(values)] = values
    return column

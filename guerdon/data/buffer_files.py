"""Files of buffers: saved buffers, and buffers that live in a folder of memory-mapped arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.files import atomic_file
from guerdon.data.kernels import PENDING, VALID
from guerdon.data.transition_schema import Layout, Leaf

if TYPE_CHECKING:
    import torch

    from guerdon.data.batch import Path
    from guerdon.data.replay_buffer import ReplayBuffer
    from guerdon.data.storage import DiskStorage, Storage

_META = "meta.json"
BOOKKEEPING = ("final", "written", "flags")  # flags last: they make rows valid


def column_name(path: Path) -> str:
    """Return a unique name of a column, different from the names of the bookkeeping."""
    return ".".join(["rows", *(key.replace("%", "%25").replace(".", "%2E") for key in path)])


def training_state(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return everything needed to restore the buffer; columns are not copied."""
    buffer._refresh()  # loading does this, too, so that both write to the same rows next
    arrays: dict[tuple[str, ...], Any] = {
        ("book", name): getattr(buffer, f"_{name}").copy() for name in BOOKKEEPING
    }
    filled = int(min(buffer._written.max(initial=0), buffer.capacity))
    for path, column in buffer._columns.items():
        by_env = column.reshape(buffer.n_envs, buffer.capacity, *column.shape[1:])
        arrays["columns", *path] = by_env[:, :filled]
    for path, table in buffer._finals.items():
        arrays["finals", *path] = table
    meta = {**_description(buffer), "generator": buffer._generator.bit_generator.state}
    return {"meta": meta, "arrays": arrays}


def load_training_state(buffer: ReplayBuffer, state: dict[str, Any]) -> None:
    """Fill a buffer of the same kind and options from a `training_state`."""
    meta, arrays = state["meta"], state["arrays"]
    _check_same(meta, _description(buffer), "the saved buffer")
    buffer._columns, buffer._finals = {}, {}
    if buffer._disk:  # files that are being rewritten must not look complete
        buffer.reset()
        describe(buffer, buffer._disk, {})
    saved = len(arrays["book", "flags"]) // buffer.n_envs
    if saved != buffer.capacity:  # buffers that grow
        buffer._make_bookkeeping(saved)
    layout: Layout = {}
    for path, array in arrays.items():
        if path[0] == "book":
            continue
        values = buffer._storage.convert(array)
        lead = 2 if path[0] == "columns" else 1
        leaf = Leaf(tuple(values.shape[lead:]), values.dtype)
        rows = buffer.size if path[0] == "columns" else len(values)
        column = buffer._new_column(path[1:], leaf, rows)
        if path[0] == "columns":
            column.reshape(buffer.n_envs, buffer.capacity, *leaf.shape)[:, : values.shape[1]] = (
                values
            )
            buffer._columns[path[1:]] = column
        else:
            column[...] = values
            buffer._finals[path[1:]] = column
        if path[1] != "annotations":
            layout[path[1:]] = leaf
    buffer.schema.layout = layout
    if buffer._disk:
        describe(buffer, buffer._disk, {**buffer._columns, **buffer._finals})
    for name in BOOKKEEPING:
        getattr(buffer, f"_{name}")[...] = arrays["book", name]
    buffer._refresh()
    buffer._generator.bit_generator.state = meta["generator"]


def restore(
    kind: type[Any], state: dict[str, Any], storage: str | torch.device | Storage = "memory"
) -> Any:
    """Make the buffer of a training state."""
    buffer = kind(**state["meta"]["options"], storage=storage)
    buffer.load_training_state(state)
    return buffer


# --- folders


def check_folder(buffer: ReplayBuffer, storage: DiskStorage) -> None:
    """Check that a folder is new, or has a buffer with the same options."""
    if (storage.folder / _META).exists():
        theirs = json.loads((storage.folder / _META).read_text())
        _check_same(theirs, _description(buffer), f"the buffer in {storage.folder}")
    elif any(not path.name.startswith(f".{_META}.") for path in storage.folder.iterdir()):
        raise ValueError(f"{storage.folder} is not empty and has no buffer: choose a new folder")
    else:
        describe(buffer, storage, {})


def reopen(buffer: ReplayBuffer, storage: DiskStorage) -> None:
    """Load the buffer of a folder, and cut the episodes that were running."""
    meta = json.loads((storage.folder / _META).read_text())
    leaves = {
        tuple(entry["path"]): Leaf(tuple(entry["shape"]), np.dtype(entry["dtype"]))
        for entry in meta["leaves"]
    }
    # No files: the first add failed.
    if not leaves or not all(storage.path(column_name(path)).exists() for path in leaves):
        return
    for path, leaf in leaves.items():
        final = path[0] == "obs_next"
        rows = 2 * buffer.n_envs if final else buffer.size
        column = storage.array(column_name(path), (rows, *leaf.shape), leaf.dtype)
        (buffer._finals if final else buffer._columns)[path] = column
    stored = {path: leaf for path, leaf in leaves.items() if path[0] != "annotations"}
    buffer.schema.layout = stored
    # A process that was killed while writing left an invalid newest row.
    envs = buffer._envs[buffer._written > 0]
    heads = buffer._heads(envs)
    buffer._written[envs[buffer._flags[heads] & VALID == 0]] -= 1
    if len(stored) < len(leaves):  # these rows can no longer be annotated
        buffer._flags[buffer._flags & PENDING != 0] &= np.uint8(0xFF ^ VALID)
    buffer._final[(buffer._flags & VALID == 0) & (buffer._final > 2 * buffer.n_envs)] = 0
    buffer._refresh()
    buffer.cut()


def describe(buffer: ReplayBuffer, storage: DiskStorage, arrays: dict[Path, Any]) -> None:
    """Write the description that `reopen` reads, before rows of new columns are written."""
    leaves = [
        {"path": list(path), "dtype": array.dtype.str, "shape": list(array.shape[1:])}
        for path, array in arrays.items()
    ]
    meta = {**_description(buffer), "leaves": leaves}
    with atomic_file(storage.folder / _META) as file:
        file.write(json.dumps(meta, indent=1).encode())


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

"""Files of buffers: saved buffers, and buffers that live in a folder of memory-mapped arrays.

A saved buffer is a folder of `guerdon.data.serializer`, with a checksum of every file.

A folder of memory-mapped arrays has ``meta.json``, with a checksum of itself. While a buffer uses
the folder, ``meta.json`` has a session. When the buffer is deleted or Python exits, the arrays are
flushed to the disk, and ``meta.json`` gets their checksums instead, which takes about a second per
GiB then and when the folder is opened. So these are detected:

- in a folder that was closed like this: any change of any file;
- in a folder of a process that was killed: a change of ``meta.json``, a file of another size, and
  bookkeeping that cannot be right; but not changed values in columns. The row that was being
  written is dropped.

In any case all indices are checked before they are used, since checksums can be forged.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.files import atomic_file
from guerdon.data.kernels import PENDING, VALID
from guerdon.data.serializer import check_file, describe_file, manifest_text, parse_manifest
from guerdon.data.transition_schema import REQUIRED, Layout, Leaf
from guerdon.limits import (
    TEXT_BYTES,
    DamagedError,
    open_regular,
    parse_json,
    read_bytes,
    reading,
)

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

    import torch

    from guerdon.data.batch import Path
    from guerdon.data.replay_buffer import ReplayBuffer
    from guerdon.data.storage import DiskStorage, Storage

_META = "meta.json"
BOOKKEEPING = ("final", "written", "flags")  # flags last: they make rows valid
_MOST_WRITTEN = 2**60
_ALL_FLAGS = 63


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
    capacity = _check_state(buffer, arrays)
    buffer._columns, buffer._finals = {}, {}
    if buffer._disk:  # files that are being rewritten must not look complete
        buffer.reset()
        describe(buffer, buffer._disk, {})
    if capacity != buffer.capacity:  # buffers that grow
        buffer._make_bookkeeping(capacity)
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


# --- checks


def _check_state(buffer: ReplayBuffer, arrays: dict[Any, Any]) -> int:
    """Check the shapes and indices of a training state, and return its capacity."""
    final, written, flags = (np.asarray(arrays["book", name]) for name in BOOKKEEPING)
    capacity = flags.size // buffer.n_envs
    if "size" in buffer.options() and capacity != buffer.capacity:
        raise DamagedError(f"it has {flags.size} rows, but was made with {buffer.size}")
    columns = {path[1:]: array for path, array in arrays.items() if path[0] == "columns"}
    finals = {path[1:]: array for path, array in arrays.items() if path[0] == "finals"}
    n_finals = min((len(table) for table in finals.values()), default=0)
    _check_bookkeeping(buffer.n_envs, capacity, n_finals, final, written, flags)
    lead = buffer.n_envs, int(min(written.max(), capacity))
    if any(tuple(column.shape[:2]) != lead for column in columns.values()):
        raise DamagedError("its columns do not have the rows that were written")
    leaves = {path: Leaf(tuple(each.shape[2:]), each.dtype) for path, each in columns.items()}
    _check_leaves(buffer, leaves | _leaves(finals))
    return capacity


def _check_leaves(buffer: ReplayBuffer, leaves: Layout) -> None:
    """Check that there are the required columns, and next observations like the observations."""
    obs, obs_next = (
        {path[1:]: leaf for path, leaf in leaves.items() if path[0] == name}
        for name in ("obs", "obs_next")
    )
    if leaves and not {path[0] for path in leaves}.issuperset(REQUIRED):
        raise DamagedError(f"it does not have all of {', '.join(REQUIRED)}")
    if leaves and "float" not in str(getattr(leaves.get(("rew",)), "dtype", None)):
        raise DamagedError("its rewards are not an array of floats")
    if obs_next != ({} if buffer.ignore_obs_next else obs):
        raise DamagedError("its next observations are not like its observations")


def _check_bookkeeping(n_envs: int, capacity: int, n_finals: int, *book: np.ndarray) -> None:
    """Raise an error for numbers with which compiled code would leave its arrays."""
    final, written, flags = book
    wanted = {"final": np.int32, "written": np.int64, "flags": np.uint8}
    found = dict(zip(wanted, book, strict=True))
    if {name: array.dtype for name, array in found.items()} != wanted or not capacity:
        raise DamagedError("its bookkeeping has other dtypes, or is empty")
    if any(found[name].shape != (n_envs * capacity,) for name in ("final", "flags")) or (
        written.shape != (n_envs,)
    ):
        raise DamagedError("its bookkeeping does not have the size of the buffer")
    if written.min() < 0 or written.max() > _MOST_WRITTEN or flags.max() > _ALL_FLAGS:
        raise DamagedError("its counters or flags are out of range")
    for rows, count in zip(flags.reshape(n_envs, capacity), written.tolist(), strict=True):
        if (rows[count:] & VALID).any():
            raise DamagedError("it has transitions in rows that were never written")
    owned = final[final > 2 * n_envs]
    if final.min() < 0 or final.max() > n_finals or len(np.unique(owned)) < len(owned):
        raise DamagedError("its next observations are not where it says")
    if 0 < n_finals < 2 * n_envs:
        raise DamagedError("it has too few next observations")


# --- folders


def check_folder(buffer: ReplayBuffer, storage: DiskStorage, capacity: int) -> Layout:
    """Check that a folder is new or has a whole buffer with the same options, and take it over.

    Returns:
        The columns of the buffer; none if nothing was ever added.
    """
    folder, leaves = storage.folder, Layout()
    if (folder / _META).exists():
        meta = _read_meta(folder / _META)
        with reading(folder / _META):
            for entry in meta["leaves"]:
                leaf = Leaf(tuple(map(int, entry["shape"])), np.dtype(entry["dtype"]))
                leaves[tuple(map(str, entry["path"]))] = leaf
            theirs = {"kind": str(meta["kind"]), "options": dict(meta["options"])}
            files = {str(name): dict(entry) for name, entry in meta.get("files", {}).items()}
        _check_same(theirs, _description(buffer), f"the buffer in {folder}")
        for name, entry in files.items():
            check_file(folder, name, entry)
        with reading(folder):
            _check_leaves(buffer, leaves)
            _check_sizes(storage, buffer.n_envs, capacity, leaves)
    elif any(not path.name.startswith(f".{_META}.") for path in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and has no buffer: choose a new folder")
    _describe(buffer, folder, leaves)
    return leaves


def _check_sizes(storage: DiskStorage, n_envs: int, capacity: int, leaves: Layout) -> None:
    """Check that all files have the size of their arrays; some tables may have grown."""
    rows, minimum = n_envs * capacity, 2 * n_envs
    wanted = {"final": 4 * rows, "written": 8 * n_envs, "flags": rows} if leaves else {}
    for path, leaf in leaves.items():
        size = max(int(np.prod(leaf.shape)) * leaf.dtype.itemsize, 1)
        wanted[column_name(path)] = size * (minimum if path[0] == "obs_next" else rows)
    for name, size in wanted.items():
        with open_regular(storage.path(name)) as file:
            held = os.fstat(file.fileno()).st_size
        if held < size or (held > size and not name.startswith("rows.obs_next")):
            raise DamagedError(f"{name}.bin has {held} bytes instead of {size}")


def reopen(buffer: ReplayBuffer, storage: DiskStorage, leaves: Layout) -> None:
    """Load the buffer of a folder, and cut the episodes that were running."""
    for path, leaf in leaves.items():
        final = path[0] == "obs_next"
        rows = 2 * buffer.n_envs if final else buffer.size
        column = storage.array(column_name(path), (rows, *leaf.shape), leaf.dtype)
        (buffer._finals if final else buffer._columns)[path] = column
    stored = {path: leaf for path, leaf in leaves.items() if path[0] != "annotations"}
    buffer.schema.layout = stored
    for name in () if leaves else BOOKKEEPING:  # the first add failed, or never was
        getattr(buffer, f"_{name}")[...] = 0
    # A process that was killed while writing left an invalid newest row, or one not yet counted.
    envs = buffer._envs[(buffer._written >= 0) & (buffer._written < buffer.capacity)]
    buffer._flags[envs * buffer.capacity + buffer._written[envs]] = 0
    envs = buffer._envs[buffer._written > 0]
    heads = buffer._heads(envs)
    buffer._written[envs[buffer._flags[heads] & VALID == 0]] -= 1
    if len(stored) < len(leaves):  # these rows can no longer be annotated
        buffer._flags[buffer._flags & PENDING != 0] &= np.uint8(0xFF ^ VALID)
    buffer._final[(buffer._flags & VALID == 0) & (buffer._final > 2 * buffer.n_envs)] = 0
    with reading(storage.folder):
        book = (getattr(buffer, f"_{name}") for name in BOOKKEEPING)
        _check_bookkeeping(buffer.n_envs, buffer.capacity, buffer._n_finals, *book)
    buffer._refresh()
    buffer.cut()
    weakref.finalize(buffer, _close, storage.folder, buffer._session, os.getpid())


def _close(folder: pathlib.Path, session: str, process: int) -> None:
    """Write the checksums of all files, unless the folder is gone or was opened by another."""
    if process != os.getpid():  # a fork
        return
    with suppress(OSError, ValueError):
        meta = _read_meta(folder / _META)
        if meta.get("session") != session:
            return
        files = {}
        for path in sorted(folder.glob("*.bin")):
            with open_regular(path) as file:
                os.fsync(file.fileno())
                files[path.name] = describe_file(file)
        kept = {key: meta[key] for key in ("kind", "options", "leaves")}
        _write_meta(folder / _META, {**kept, "files": files})


def describe(buffer: ReplayBuffer, storage: DiskStorage, arrays: Mapping[Path, Any]) -> None:
    """Write the description that `reopen` reads, before rows of new columns are written."""
    _describe(buffer, storage.folder, _leaves(arrays))


def _leaves(arrays: Mapping[Path, Any]) -> Layout:
    return {path: Leaf(tuple(array.shape[1:]), array.dtype) for path, array in arrays.items()}


def _describe(buffer: ReplayBuffer, folder: pathlib.Path, leaves: Layout) -> None:
    described = [
        {"path": list(path), "dtype": leaf.dtype.str, "shape": list(leaf.shape)}
        for path, leaf in leaves.items()
    ]
    content = {**_description(buffer), "leaves": described, "session": buffer._session}
    _write_meta(folder / _META, content)


def _write_meta(path: pathlib.Path, content: dict[str, Any]) -> None:
    with atomic_file(path) as file:
        file.write(manifest_text(content))


def _read_meta(path: pathlib.Path) -> dict[str, Any]:
    data = read_bytes(path, TEXT_BYTES)
    meta = parse_json(data, path)
    if isinstance(meta, dict) and meta.keys() == {"kind", "options", "leaves"}:
        return meta  # of earlier versions, without checksums
    return parse_manifest(data, path)


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

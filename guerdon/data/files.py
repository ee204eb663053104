"""Files of arrays: written whole or not at all, and read without running anything."""

import json
import os
import pathlib
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import torch

from guerdon.data.batch import Batch
from guerdon.data.leaves import describe
from guerdon.data.tree import Path

FORMAT = "guerdon arrays"
VERSION = 1

# What numpy has no dtype for (bfloat16, float8) is stored as integers of the same width.
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a binary file that appears under its name only when all of it is written.

    Until then it has a temporary name in the same folder. When anything goes wrong, the temporary
    file is removed and whatever had the name before is untouched.
    """
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {path.parent}")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_arrays(
    path: str | os.PathLike[str],
    arrays: Mapping[Path, Any],
    meta: dict[str, Any],
    compress: bool = False,
) -> None:
    """Writes leaves, as `flatten` gives them, to one .npz file.

    A leaf is an array of numbers, a tensor, a number, a string, None, an empty `Batch`, or an array
    of objects that JSON holds (numbers, strings, None, lists and dictionaries of them). What would
    not be read back the same is an error.

    Args:
        path: The file; it is replaced as a whole.
        arrays: The leaves by their path.
        meta: Anything that JSON holds, kept beside the leaves.
        compress: Whether to compress: smaller files, several times slower.
    """
    if not _same_after_json(meta):
        raise TypeError("meta must hold nothing but numbers, strings, None, lists and dicts")
    entries: dict[str, np.ndarray] = {}
    leaves = [_encode(key, leaf, entries) for key, leaf in arrays.items()]
    content = {"format": FORMAT, "version": VERSION, "meta": meta, "leaves": leaves}
    entries["meta"] = np.frombuffer(json.dumps(content).encode(), dtype=np.uint8)
    save: Any = np.savez_compressed if compress else np.savez
    with atomic_file(path) as file:
        save(file, allow_pickle=False, **entries)


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[Path, Any], dict[str, Any]]:
    """Reads the leaves and the meta that `write_arrays` wrote; tensors come to the CPU."""
    path = pathlib.Path(path)
    with path.open("rb") as file:  # opened here: numpy does not close a file that it cannot read
        start = file.read(2)
        if start not in (b"PK", b"P", b""):  # how a zip file starts, and what may be left of one
            raise ValueError(f"{path} is not a file written by guerdon")
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as archive:
                content = _read_content(path, archive)
                leaves = {tuple(leaf["path"]): _decode(leaf, archive) for leaf in content["leaves"]}
                return leaves, content["meta"]
        except _Unreadable as error:
            raise ValueError(str(error)) from None
        except Exception as error:  # a damaged archive can fail in any way
            raise ValueError(f"{path} is damaged: {error}") from error


class _Unreadable(Exception):  # noqa: N818 - never leaves this module
    """The file is whole, but it is not one that this version reads."""


def _read_content(path: pathlib.Path, archive: Any) -> dict[str, Any]:
    if "meta" not in archive:
        raise _Unreadable(f"{path} is not a file written by guerdon")
    content = json.loads(archive["meta"].tobytes())
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _Unreadable(f"{path} is not a file written by guerdon")
    if content["version"] > VERSION:
        raise _Unreadable(
            f"{path} has format {content['version']} and this guerdon reads up to {VERSION}: "
            "upgrade guerdon"
        )
    return content


def _encode(path: Path, leaf: Any, entries: dict[str, np.ndarray]) -> dict[str, Any]:
    """Describes one leaf; what is no JSON goes to the entries of the archive, by number."""
    described: dict[str, Any] = {"path": list(path)}
    if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_quantized:
        described |= {"kind": "tensor", "device": str(leaf.device), "entry": str(len(entries))}
        described["dtype"] = str(leaf.dtype).removeprefix("torch.")
        entries[described["entry"]] = _tensor_to_array(leaf)
    elif isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biufc":
        kind = "array" if isinstance(leaf, np.ndarray) else "scalar"
        described |= {"kind": kind, "entry": str(len(entries))}
        entries[described["entry"]] = np.asarray(leaf)
    elif isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OU":
        values = leaf.ravel().tolist()
        odd = next((value for value in values if not _same_after_json(value)), None)
        if odd is not None:
            raise TypeError(_no_file(path, f"an array of objects with a {type(odd).__name__}"))
        described |= {"kind": "objects", "shape": list(leaf.shape), "values": values}
    elif isinstance(leaf, Batch) and not leaf:
        described["kind"] = "batch"
    elif _same_after_json(leaf) and not isinstance(leaf, list | dict):
        described |= {"kind": "value", "value": leaf}
    else:
        raise TypeError(_no_file(path, describe(leaf)))
    return described


def _decode(leaf: dict[str, Any], archive: Any) -> Any:
    kind = leaf["kind"]
    if kind == "array":
        return archive[leaf["entry"]]
    if kind == "scalar":
        return archive[leaf["entry"]][()]
    if kind == "tensor":
        tensor = torch.from_numpy(archive[leaf["entry"]])
        dtype = getattr(torch, leaf["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"there is no dtype {leaf['dtype']!r}")
        return tensor if tensor.dtype == dtype else tensor.view(dtype)
    if kind == "objects":
        array = np.empty(len(leaf["values"]), dtype=object)
        for i, value in enumerate(leaf["values"]):
            array[i] = value  # one by one: numpy would take lists apart
        return array.reshape(leaf["shape"])
    if kind == "batch":
        return Batch()
    if kind == "value":
        return leaf["value"]
    raise ValueError(f"it holds a leaf of the unknown kind {kind!r}")


def _tensor_to_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.contiguous().view(_CARRIERS[tensor.dtype.itemsize]).numpy()


def _same_after_json(value: Any) -> bool:
    """Whether JSON gives back what it got; it would turn tuples to lists and keys to strings."""
    kind = type(value)
    if kind is list:
        return all(map(_same_after_json, value))
    if kind is dict:
        return all(type(key) is str and _same_after_json(item) for key, item in value.items())
    return value is None or kind in (bool, int, float, str)


def _no_file(path: Path, what: str) -> str:
    return (
        f"key {'.'.join(path)!r} is {what}, which a file of arrays cannot hold: "
        "make it numbers or strings, or leave it out"
    )


def sync_folder(folder: pathlib.Path) -> None:
    """Makes a new name in a folder last through a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

"""Serializes trees of arrays and plain values to folders: safetensors, JSON, and checksums.

Checkpoints, saved buffers, reward models, demonstrations and preference segments are such folders:
one safetensors file for each part with arrays, other values in ``state.json``, and
``manifest.json`` with the checksum of every file. Reading runs no code.
"""

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import safetensors
import torch

import guerdon
from guerdon.data.files import atomic_folder, set_aside
from guerdon.data.leaves import describe
from guerdon.limits import DAMAGE, TEXT_BYTES, open_regular, parse_json, read_bytes, read_json
from guerdon.limits import DamagedError as DamagedError

VERSION = 1

_MANIFEST, _STATE = "manifest.json", "state.json"
_PLAIN = "biufcmMSU"  # kinds of NumPy dtypes that are fully described by their bytes
# dtypes that NumPy, torch and safetensors share; leaves of other dtypes are stored as bytes.
_CODES = {"bool": "BOOL", "bfloat16": "BF16"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind in ("uint", "int", "float")
    for bits in (8, 16, 32, 64)
}


def write_tree(
    folder: str | os.PathLike[str],
    tree: Mapping[str, Any] | Iterable[tuple[str, Any]],
    kind: str,
) -> None:
    """Write a tree to a folder, atomically; large arrays are not copied.

    Args:
        folder: Folder; an existing one is replaced.
        tree: Parts by name, or pairs that are written one by one. Parts consist of dictionaries,
            lists, tuples, tensors on any device, NumPy arrays and numbers, and JSON values.
        kind: Kind of tree, such as ``checkpoint``; has to be the same for reading.
    """
    files, parts = {}, {}
    with atomic_folder(Path(folder)) as temporary:
        for key, part in tree.items() if isinstance(tree, Mapping) else tree:
            if type(key) is not str:
                raise TypeError(f"the parts of a {kind} need strings as names, not {key!r}")
            parts[key], pieces = encode_part(key, part)
            if pieces:
                files[_part_file(key)] = _write_file(temporary / _part_file(key), pieces)
        text = json.dumps({"state": parts}, allow_nan=False)
        files[_STATE] = _write_file(temporary / _STATE, [text.encode()])
        manifest = {
            "format": f"guerdon {kind}",
            "version": VERSION,
            "guerdon": guerdon.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "files": files,
        }
        _write_file(temporary / _MANIFEST, [manifest_text(manifest)])


def read_tree(
    folder: str | os.PathLike[str], kind: str, parts: Collection[str] | None = None
) -> dict[str, Any]:
    """Read a tree; tensors are loaded to the CPU.

    Args:
        folder: A folder that `write_tree` wrote.
        kind: Kind of tree.
        parts: Parts to read; all by default.

    Raises:
        DamagedError: A file is missing or damaged.
        ValueError: The folder has another kind of tree, or one of a newer version of guerdon.
    """
    folder = Path(folder)
    if not folder.exists():
        folder = set_aside(folder)
    try:
        files = _read_manifest(folder, kind)["files"]
        check_file(folder, _STATE, files.get(_STATE, {}))
        return _read_parts(folder, files, parts)
    except OSError as error:
        raise DamagedError(f"{error.filename or folder}: {error.strerror or error}") from error


def _read_parts(
    folder: Path, files: dict[str, Any], parts: Collection[str] | None
) -> dict[str, Any]:
    try:
        state, read = read_json(folder / _STATE)["state"], {}
        for key in state if parts is None else [key for key in state if key in parts]:
            name = _part_file(key)
            if name in files:
                check_file(folder, name, files[name])
            read[key] = decode_part(state[key], folder / name if name in files else None)
        return read
    except (OSError, DamagedError):
        raise
    except (*DAMAGE, safetensors.SafetensorError) as error:
        raise DamagedError(f"{folder} is damaged: its files do not fit one another") from error


def check_replaceable(folder: str | os.PathLike[str], kind: str) -> None:
    """Raise an error if writing a tree would remove anything but a tree of the same kind."""
    folder = Path(folder)
    manifest = _read_manifest(folder, kind) if (folder / _MANIFEST).exists() else {"files": ()}
    check_only(folder, {_MANIFEST, *manifest["files"]})


def check_only(folder: Path, names: Collection[str]) -> None:
    """Raise an error if a folder that is to be replaced has files of other names."""
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file: name a new folder, or remove it")
    others = {path.name for path in folder.glob("*")}.difference(names)
    if others:
        raise FileExistsError(f"{folder} holds {min(others)!r}, too: name a new folder")


# --- files


def _read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    path = folder / _MANIFEST
    if not path.exists():
        raise DamagedError(f"{path} is missing")
    manifest = parse_manifest(read_bytes(path, TEXT_BYTES), path)
    format_, version, files = (manifest.get(key, 0) for key in ("format", "version", "files"))
    known = isinstance(version, int) and isinstance(files, dict)
    if not (known and all(isinstance(entry, dict) for entry in files.values())):
        raise DamagedError(f"{path} is damaged: it does not describe files")
    if format_ != f"guerdon {kind}":
        raise ValueError(f"{folder} is a {format_}, not a guerdon {kind}")
    if version > VERSION:
        raise ValueError(
            f"{folder} has format {version} and this guerdon reads up to {VERSION}: "
            f"it was written by guerdon {manifest.get('guerdon')}, upgrade to that"
        )
    for name in files:
        if name in ("", ".", "..") or any(mark in name for mark in "/\\:\0"):
            raise ValueError(f"{path} names a file outside of its folder: {name!r}; do not use it")
    return manifest


def parse_manifest(data: bytes, path: Path) -> dict[str, Any]:
    """Return the content of a text that `manifest_text` made, whose checksum has to be right."""
    manifest = parse_json(data, path)
    whole = isinstance(manifest, dict) and manifest_text(
        {key: value for key, value in manifest.items() if key != "sha256"}
    )
    if whole != data:
        raise DamagedError(f"{path} is damaged: its checksum is wrong")
    return dict(manifest)


def manifest_text(manifest: dict[str, Any]) -> bytes:
    """Return the canonical text of a manifest, with its own checksum."""
    digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return json.dumps({**manifest, "sha256": digest}, indent=1).encode()


def check_file(folder: Path, name: str, entry: dict[str, Any]) -> None:
    """Raise an error if a file does not have the size and checksum of its manifest entry."""
    path = folder / name
    if not path.exists():
        raise DamagedError(f"{path} is missing")
    with open_regular(path) as file:
        size, wanted = os.fstat(file.fileno()).st_size, entry.get("size")
        if size != wanted:
            raise DamagedError(f"{path} is damaged: it has {size} bytes instead of {wanted}")
        if describe_file(file) != entry:
            raise DamagedError(f"{path} is damaged: its checksum is wrong")


def describe_file(file: Any) -> dict[str, Any]:
    """Return the manifest entry of a file: its checksum and size."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": size}


def _write_file(path: Path, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write a file to the disk, and return its manifest entry."""
    with path.open("x+b") as file:
        file.writelines(pieces)
        entry = describe_file(file)
        os.fsync(file.fileno())
    return entry


def _part_file(key: str) -> str:
    return f"{quote(key, safe='')}.safetensors"


# --- values


def encode_part(key: str, value: Any) -> tuple[Any, Iterator[bytes | memoryview] | None]:
    """Return the JSON of a value, and the pieces of a safetensors file if it has arrays."""
    stored: dict[str, tuple[Any, str | None]] = {}
    encoded = _encode(value, (key,), stored)
    return encoded, _safetensors(stored) if stored else None


def decode_part(part: Any, path: Path | None) -> Any:
    """Return the value that `encode_part` encoded, with its safetensors file if it has one."""
    if path is None:
        return _decode(part, {})
    with safetensors.safe_open(path, framework="pt") as file:
        return _decode(part, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118


def _encode(value: Any, path: tuple[Any, ...], stored: dict[str, tuple[Any, str | None]]) -> Any:
    """Return the JSON of a value; its arrays and tensors are added to ``stored``."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:  # in hexadecimal, JSON parsers limit decimal digits
        return value if abs(value) < 1 << 63 else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind in (list, tuple):
        items = [_encode(item, (*path, i), stored) for i, item in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if isinstance(value, dict):
        encoded = [(key, _encode(item, (*path, key), stored)) for key, item in value.items()]
        if all(type(key) is str for key in value):
            return {"dict": dict(encoded)}
        return {"items": [[_encode(key, path, stored), item] for key, item in encoded]}
    if kind is np.ndarray and value.dtype == object:
        items = [_encode(item, (*path, i), stored) for i, item in enumerate(value.flat)]
        return {"objects": items, "shape": list(value.shape)}
    name = _dotted(path[1:]) or "value"
    while name in stored or name == "__metadata__":  # keys may contain dots; one name is reserved
        name += "'"
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta:
        dtype = str(value.dtype).removeprefix("torch.")
        entry, code = {"tensor": name, "dtype": dtype}, _CODES.get(dtype)
    elif _is_plain(value):
        form = "scalar" if isinstance(value, np.generic) else "array"
        entry = {form: name, "dtype": value.dtype.str}
        code = _CODES.get(value.dtype.name) if value.dtype.isnative else None
    else:
        raise TypeError(
            f"{_dotted(path)!r} is {describe(value)}, which cannot be saved: make it numbers or "
            "strings, or leave it out"
        )
    stored[name] = value, code
    return entry if code else {**entry, "shape": list(value.shape)}


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(_dotted(key) if isinstance(key, tuple) else str(key) for key in path)


def _is_plain(leaf: Any) -> bool:
    """Return whether a NumPy leaf is fully described by its bytes and a simple dtype."""
    exact = isinstance(leaf, np.generic) or type(leaf) in (np.ndarray, np.memmap)
    return exact and leaf.dtype.kind in _PLAIN


def _safetensors(stored: dict[str, tuple[Any, str | None]]) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a safetensors file, one leaf after the other.

    The safetensors library needs all leaves on the CPU at once, and rejects shared memory.
    """
    ordered = sorted(  # so that all are aligned
        stored.items(), key=lambda item: -item[1][0].itemsize if item[1][1] else -1
    )
    header, start = {}, 0
    for name, (leaf, code) in ordered:
        header[name] = {
            "dtype": code or "U8",
            "shape": tuple(leaf.shape) if code else (leaf.nbytes,),
            "data_offsets": (start, start + leaf.nbytes),
        }
        start += leaf.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, (leaf, _) in ordered:
        if leaf.nbytes:
            yield _bytes(leaf)


def _bytes(leaf: Any) -> memoryview:
    if isinstance(leaf, torch.Tensor):
        tensor = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return tensor.reshape(-1).view(torch.uint8).numpy().data
    return np.asarray(leaf, order="C").reshape(-1).view(np.uint8).data


def _decode(node: Any, tensors: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    kind, content = next(iter(node.items()))
    match kind:
        case "int":
            return int(content, 16)
        case "float":
            return float(content)
        case "tuple":
            return tuple(_decode(item, tensors) for item in content)
        case "dict":
            return {key: _decode(item, tensors) for key, item in content.items()}
        case "items":
            return {_decode(key, tensors): _decode(item, tensors) for key, item in content}
        case "objects":
            # np.array would split lists into elements.
            items = (_decode(item, tensors) for item in content)
            return np.fromiter(items, object).reshape(node["shape"])
    tensor = tensors.pop(content).clone()  # the original, used once, is in the mapped file
    if kind == "tensor":
        dtype = getattr(torch, node["dtype"])
        return tensor.view(dtype).reshape(node["shape"]) if "shape" in node else tensor
    array = tensor.numpy()
    if "shape" in node:
        dtype = np.dtype(node["dtype"])  # an empty string has itemsize 0
        if dtype.kind not in _PLAIN:
            raise ValueError("it has an array of an unknown dtype")
        array = (array.view(dtype) if dtype.itemsize else np.zeros(1, dtype)).reshape(node["shape"])
    return array[()] if kind == "scalar" else array

"""Damage to files: changed bytes, and changed fields of JSON, YAML, archives and tensors."""

import hashlib
import io
import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st

from guerdon.data import Batch
from guerdon.data.serializer import describe_file, manifest_text
from guerdon.data.unpickle import load_weights, safe_unpickle


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Args:
        make: Writes good files into an empty folder.
        read: Reads them; returns what was read, as nested values, arrays and tensors.
        checked: Whether the format has checksums, so that no change may be read as data.
        share: How many files are made, relative to other kinds.
    """

    make: Callable[[Path], Any]
    read: Callable[[Path], Any]
    checked: bool = False
    share: float = 1.0


SPECIAL = [
    *(0, 1, -1, 2, 3, 5, 7, 12, 24, 48, 63, 64, 255, 256, 10**4, 10**6, 2**31 - 1, -(2**31)),
    *(2**32, 2**53, 2**63 - 1, -(2**63), 10**30, 1.7e308, -1.7e308, 1e308, 5e-324, 0.5),
]
# Each value stands twice for the one before.
BOMBS = st.sampled_from(
    [
        {"b0": "x"} | {f"b{i + 1}": text.replace("I", str(i)) * 2 for i in range(25)}
        for text in ("${.bI}", "${[bI]}", "${oc.select:.bI}", "${oc.select:${oc.decode:.bI}}")
    ]
)
SCALARS = st.one_of(
    BOMBS,
    st.sampled_from(SPECIAL),
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["", "..", "/", "nan", "inf", "O", "<f8", "|O8", "${a}", "a:b", "\0", "é" * 99]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=6,
)
SPECIAL_BYTES = [
    *(b"\xff" * 8, bytes(8), b"\x7f\xff\xff\xff", b"\1\0\0\0", b"[" * 300, b"{" * 99, b"9" * 5000),
    *(b"}", b"]", b'"', b",", b"\n", b"\r\n", b": *a", b"&a ", b"- ", b"!!python/name:os.system "),
]
RAW = ("flip", "flip", "set", "insert", "truncate", "remove", "zero", "repeat")
FIELDS = ("put", "put", "drop", "wrap", "copy")
WHOLE = ("drop", "empty", "folder", "pipe", "loop", "other", "json")


def mutation(rng: random.Random, values: list[Any]) -> dict[str, Any]:
    """Draw one to four changes of files, and whether checksums are forged afterwards.

    Args:
        rng: Draws everything but the values, evenly; Hypothesis prefers what it has drawn before.
        values: New values of fields.
    """
    changes = []
    for value in values[: rng.choice([1, 1, 1, 2, 2, 3, 4])]:
        share, kind = rng.random(), rng.choice(RAW)
        if share < 0.04:
            change: tuple[Any, ...] = ("whole", rng.choice(WHOLE))
        elif share < 0.45:
            change = ("field", rng.randrange(10**6), rng.choice(FIELDS), value)
        elif kind == "flip":
            change = (kind, rng.random(), rng.randrange(8))
        elif kind in ("set", "insert"):
            change = (kind, rng.random(), rng.choice([rng.randbytes(3), *SPECIAL_BYTES]))
        else:
            change = (kind, rng.random(), rng.random())
        changes.append((rng.randrange(10**6), change))
    return {"changes": changes, "forge": rng.random() < 0.5}


def apply(folder: Path, mutation: dict[str, Any]) -> bool:
    """Damage the files in a folder; return whether checksums fit the damage."""
    forged = mutation["forge"]
    for number, (kind, *details) in mutation["changes"]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if not files:
            break
        path = files[number % len(files)]
        forged |= kind == "field" and path.suffix == ".npz"
        if kind == "whole":
            _replace(path, details[0], files)
        elif kind == "field":
            _change_field(path, *details)
        else:
            path.write_bytes(_changed(path.read_bytes(), kind, *details))
    if mutation["forge"]:
        forge(folder)
    return forged


# --- bytes


def _changed(data: bytes, kind: str, at: float, more: Any = None) -> bytes:
    start = int(at * len(data))
    if kind == "truncate":
        return data[:start]
    if kind == "flip":
        flipped = bytearray(data)
        flipped[start : start + 1] = bytes(each ^ 1 << more for each in data[start : start + 1])
        return bytes(flipped)
    if kind in ("set", "insert"):
        return data[:start] + more + data[start + (len(more) if kind == "set" else 0) :]
    stop = start + int(more * min(len(data) - start, 64)) + 1
    part = data[start:stop]
    new = {"remove": b"", "zero": bytes(len(part)), "repeat": part + part}[kind]
    return data[:start] + new + data[stop:]


def _replace(path: Path, what: str, files: list[Path]) -> None:
    other = files[(files.index(path) + 1) % len(files)].read_bytes()
    path.unlink()
    match what:
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path.name)
        case "other":
            path.write_bytes(other)
        case "json":
            path.write_text("[" * 50_000)


# --- fields


def _change_field(path: Path, at: int, how: str, value: Any) -> None:
    """Change a field of a file whose format is known; others are left as they are."""
    data = path.read_bytes()
    try:
        match path.suffix:
            case ".json":
                path.write_text(json.dumps(_edited(json.loads(data), at, how, value)))
            case ".jsonl" | ".log":
                lines = data.decode().splitlines()
                number = at % len(lines)
                lines[number] = json.dumps(_edited(json.loads(lines[number]), at, how, value))
                path.write_text("\n".join(lines))
            case ".yaml":
                path.write_text(yaml.safe_dump(_edited(yaml.safe_load(data), at, how, value)))
            case ".safetensors" if at % 2:
                path.write_bytes(_edited_tensor(data, at // 2, value))
            case ".safetensors":
                size = int.from_bytes(data[:8], "little")
                header = json.dumps(
                    _edited(json.loads(data[8 : 8 + size]), at, how, value)
                ).encode()
                path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
            case ".npz":
                path.write_bytes(_edited_archive(data, at, how, value))
            case ".pkl":
                path.write_bytes(pickle.dumps(_edited(safe_unpickle(data), at, how, value)))
            case ".pt":
                torch.save(_edited(load_weights(path), at, how, value), path)
            case ".bin":
                _edit_numbers(path, at, value)
    except Exception:  # it is damaged already
        path.write_bytes(_changed(data, "flip", (at % 97) / 97, 3))


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """Return the container and key of every value in a tree."""
    found: list[tuple[Any, Any]] = []
    level = [value]
    while level:
        node = level.pop()
        if isinstance(node, dict | list):
            keys = list(node) if isinstance(node, dict) else range(len(node))
            found += [(node, key) for key in keys]
            level += [node[key] for key in keys]
    return found


def _edited(value: Any, at: int, how: str, new: Any) -> Any:
    nodes = _nodes(value)
    if not nodes:
        return new
    holder, key = nodes[at % len(nodes)]
    if how == "drop":
        del holder[key]
    elif how == "wrap":
        holder[key] = [holder[key], new]
    elif how == "copy":
        other, name = nodes[(at * 7 + 1) % len(nodes)]
        holder[key] = json.loads(json.dumps(other[name], default=str))
    else:
        holder[key] = new
    return value


def _edited_tensor(data: bytes, at: int, value: Any) -> bytes:
    """Change a number of a tensor."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    tensors = [entry for name, entry in sorted(header.items()) if name != "__metadata__"]
    entry = tensors[at % len(tensors)]
    start, stop = (8 + size + offset for offset in entry["data_offsets"])
    name = {"BOOL": "u1", "BF16": "u2"}.get(entry["dtype"], entry["dtype"].lower())
    array = np.frombuffer(data[start:stop], np.dtype(f"{name[0]}{int(name[1:]) // 8 or 1}")).copy()
    _put_number(array, at // len(tensors), value)
    return data[:start] + array.tobytes() + data[stop:]


def _put_number(array: np.ndarray, at: int, value: Any) -> None:
    number = value if isinstance(value, int | float) else SPECIAL[at % len(SPECIAL)]
    with np.errstate(all="ignore"):
        array[at % len(array)] = np.array(number, "f8").astype(array.dtype)


def _edited_archive(data: bytes, at: int, how: str, new: Any) -> bytes:
    """Change the header or the name of an array, with right checksums."""
    content = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(content, "w") as archive:
        for number, info in enumerate(old.infolist()):
            entry, name = old.read(info), info.filename
            if number == at % len(old.infolist()):
                size = int.from_bytes(entry[8:10], "little")
                header = entry[10 : 10 + size]
                edits = [(b"<f4", b"<f2"), (b"|u1", b"<f8"), (b"|b1", b"|O1"), (b"(", b"(99,")]
                old_text, new_text = edits[at % len(edits)]
                if how == "drop":
                    continue
                if how == "put" and isinstance(new, str) and new:
                    name = new
                header = header.replace(old_text, new_text)
                entry = entry[:8] + len(header).to_bytes(2, "little") + header + entry[10 + size :]
            archive.writestr(name, entry)
        archive.comment = old.comment
    return content.getvalue()


def _edit_numbers(path: Path, at: int, value: Any) -> None:
    """Change a number of a memory-mapped array, of any width."""
    dtype = {"final": "i4", "written": "i8", "tree": "f8"}.get(path.stem, "u1")
    _put_number(np.memmap(path, dtype, "r+"), at, value)


# --- checksums


def forge(folder: Path) -> None:
    """Write the checksums that the damaged files would have."""
    for path in (*folder.rglob("manifest.json"), *folder.rglob("meta.json")):
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_bytes())
            for name in [each for each in content["files"] if (path.parent / each).is_file()]:
                with (path.parent / name).open("rb") as file:
                    content["files"][name] = describe_file(file)
        except (ValueError, TypeError, LookupError, AttributeError, OSError, RecursionError):
            continue
        content.pop("sha256", None)
        path.write_bytes(manifest_text(content))


def fresh_copy(source: Path, target: Path) -> None:
    """Replace a folder, whatever is in it."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)


def fingerprint(value: Any) -> str:
    """A digest of nested values, arrays and tensors."""
    digest = hashlib.sha256()

    def add(node: Any) -> None:
        if isinstance(node, Batch):
            node = node.to_dict()
        if isinstance(node, dict):
            for key in sorted(node, key=str):
                digest.update(str(key).encode())
                add(node[key])
        elif isinstance(node, list | tuple):
            for item in node:
                add(item)
        elif isinstance(node, torch.Tensor):
            add(node.detach().float().numpy())
        elif isinstance(node, np.ndarray):
            digest.update(f"{node.dtype} {node.shape}".encode() + node.tobytes())
        else:
            digest.update(repr(node).encode())

    add(value)
    return digest.hexdigest()

"""States as files: plain values as JSON, arrays and tensors as safetensors; exact both ways."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch

from guerdon.data.leaves import describe

# dtypes that numpy, torch and safetensors share; a leaf of any other is stored as its bytes.
_COMMON = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}


def encode_part(key: str, value: Any) -> tuple[Any, Iterator[bytes | memoryview] | None]:
    """Takes a value apart: what JSON holds of it, and the pieces of a safetensors file.

    Args:
        key: What the value is called in errors.
        value: Dictionaries, lists, tuples, tensors, numpy arrays and numbers, and what JSON holds.
    """
    stored: dict[str, _Stored] = {}
    encoded = _encode(value, (key,), stored)
    return encoded, _safetensors(list(stored.values())) if stored else None


def decode_part(part: Any, path: Path | None) -> Any:
    """The value that `encode_part` took apart, with its safetensors file where it has one."""
    if path is None:
        return _decode(part, None)
    with safetensors.safe_open(path, framework="pt") as file:
        return _decode(part, file)


@dataclass(frozen=True)
class _Stored:
    """A leaf on its way to a safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    item_bytes: int
    leaf: Any

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes


def _encode(value: Any, path: tuple[Any, ...], stored: dict[str, _Stored]) -> Any:
    """What JSON shall hold for a value; arrays and tensors in it go to `stored`."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:  # in hexadecimal, because Python and others limit the digits they read
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
    return _store(value, path, stored)


def _store(leaf: Any, path: tuple[Any, ...], stored: dict[str, _Stored]) -> dict[str, Any]:
    name = _name(path[1:]) or "value"
    while name in stored or name == "__metadata__":  # keys may hold dots; one name is reserved
        name += "'"
    if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_meta:
        kind, dtype = "tensor", str(leaf.dtype).removeprefix("torch.")
        common, item_bytes = _COMMON.get(dtype), leaf.dtype.itemsize
    elif isinstance(leaf, np.ndarray | np.generic) and _is_plain(leaf):
        kind, dtype = "scalar" if isinstance(leaf, np.generic) else "array", leaf.dtype.str
        common = _COMMON.get(leaf.dtype.name) if leaf.dtype.isnative else None
        item_bytes = leaf.dtype.itemsize
    else:
        raise TypeError(f"{_name(path)!r} is {describe(leaf)}, which a checkpoint cannot hold")
    shape = tuple(leaf.shape)
    entry = {kind: name, "dtype": dtype}
    if common:
        stored[name] = _Stored(name, common, shape, item_bytes, leaf)
        return entry
    stored[name] = _Stored(name, "U8", (math.prod(shape) * item_bytes,), 1, leaf)
    return {**entry, "shape": list(shape)}


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(_name(key) if isinstance(key, tuple) else str(key) for key in path)


def _is_plain(leaf: Any) -> bool:
    """Whether an array is its bytes and a dtype, and nothing else."""
    exact = isinstance(leaf, np.generic) or type(leaf) in (np.ndarray, np.memmap)
    return exact and leaf.dtype.kind in "biufcmMSU"


def _safetensors(stored: list[_Stored]) -> Iterator[bytes | memoryview]:
    """The pieces of a safetensors file, one leaf after the other.

    The library wants them all at once on the CPU, and refuses tensors that share memory.
    """
    stored = sorted(stored, key=lambda entry: -entry.item_bytes)  # so that all lie aligned
    header, start = {}, 0
    for entry in stored:
        end = start + entry.n_bytes
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for entry in stored:
        if entry.n_bytes:
            yield _bytes(entry.leaf)


def _bytes(leaf: Any) -> memoryview:
    if isinstance(leaf, torch.Tensor):
        tensor = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return tensor.reshape(-1).view(torch.uint8).numpy().data
    return np.asarray(leaf, order="C").reshape(-1).view(np.uint8).data


def _decode(node: Any, file: Any) -> Any:
    if isinstance(node, list):
        return [_decode(item, file) for item in node]
    if not isinstance(node, dict):
        return node
    kind, content = next(iter(node.items()))
    match kind:
        case "int":
            return int(content, 16)
        case "float":
            return float(content)
        case "tuple":
            return tuple(_decode(item, file) for item in content)
        case "dict":
            return {key: _decode(item, file) for key, item in content.items()}
        case "items":
            return {_decode(key, file): _decode(item, file) for key, item in content}
        case "objects":
            array = np.empty(len(content), dtype=object)
            for i, item in enumerate(content):
                array[i] = _decode(item, file)  # one by one: numpy would take lists apart
            return array.reshape(node["shape"])
    tensor = file.get_tensor(content).clone()  # the library's lies in the mapped file
    if kind == "tensor":
        dtype = getattr(torch, node["dtype"])
        return tensor.view(dtype).reshape(node["shape"]) if "shape" in node else tensor
    array = tensor.numpy()
    if "shape" in node:
        dtype = np.dtype(node["dtype"])  # of no bytes at all for an empty string
        array = (array.view(dtype) if dtype.itemsize else np.zeros(1, dtype)).reshape(node["shape"])
    return array[()] if kind == "scalar" else array

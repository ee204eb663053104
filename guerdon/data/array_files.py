"""Reads archives of arrays (.npz): frames, and older demonstrations and preference segments."""

import io
import math
import pathlib
import zipfile
import zlib
from typing import Any

import numpy as np
import torch

from guerdon.data.batch import Batch, unflatten
from guerdon.limits import Budget, DamagedError, parse_json, read_bytes, reading

FORMAT = "guerdon arrays"
_MOST_INFLATED = 1032  # highest ratio of deflate


def read_archive(path: pathlib.Path) -> tuple[dict[str, np.ndarray], bytes]:
    """Read all arrays of a .npz file, whose checksums have to be right, and its comment.

    Only deflate is accepted: other compression methods can turn a few bytes into gigabytes. No
    code in the file is run.
    """
    content = read_bytes(path)
    budget = Budget(_MOST_INFLATED * len(content))
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if sum(info.compress_size for info in entries) > len(content):
                raise ValueError("it declares a larger size than it has")
            arrays = {
                info.filename.removesuffix(".npy"): _read_entry(archive, info, budget)
                for info in entries
            }
            return arrays, archive.comment
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DamagedError(str(error)) from error


def _read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget) -> np.ndarray:
    """Read one array to its end; its header has to fit the size of the entry exactly."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is compressed in an unusual way")
    if info.file_size > _MOST_INFLATED * info.compress_size:
        raise ValueError("it declares a larger size than it has")
    with archive.open(info) as file:
        shape, fortran, dtype = read_header(file)
        size = info.file_size - file.tell()
        if dtype.kind not in "biufcmMSU" or math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"the header of {info.filename} does not fit what follows it")
        budget.spend(memory=math.prod(n or 1 for n in shape) * max(dtype.itemsize, 1))
        content = bytearray(file.read(size))
    return np.ndarray(shape, dtype, content, order="F" if fortran else "C")


def read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array: its shape, whether it is in Fortran order, and its dtype."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):  # NumPy writes others only for long field names
        raise ValueError(f"its arrays have the unsupported version {version}")
    return np.lib.format.read_array_header_1_0(file)


def read_arrays(path: pathlib.Path) -> Batch:
    """Read a file of arrays; tensors are loaded to the CPU, and no code in the file is run."""
    with reading(path):
        arrays, _ = read_archive(path)
        content = parse_json(arrays["meta"].tobytes(), "its description")
        if content["format"] != FORMAT or content["version"] != 1:
            raise ValueError("it was not written by guerdon, or by a newer version")
        leaves = {tuple(leaf["path"]): _decode(leaf, arrays) for leaf in content["leaves"]}
        return unflatten(leaves)


def _decode(leaf: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    match leaf["kind"]:
        case "array":
            return arrays[leaf["entry"]]
        case "scalar":
            return arrays[leaf["entry"]][()]
        case "tensor":
            dtype = getattr(torch, leaf["dtype"])
            return torch.from_numpy(arrays[leaf["entry"]]).view(dtype)
        case "objects":
            # np.array would split lists into elements.
            return np.fromiter(leaf["values"], object).reshape(leaf["shape"])
        case "batch":
            return Batch()
        case "value":
            return leaf["value"]
    raise ValueError(f"it has a leaf of unknown kind {leaf['kind']!r}")

"""Storage of a buffer's arrays: memory, memory-mapped files, or a device."""

import os
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import numpy as np
import torch

from guerdon.data import leaves
from guerdon.data.leaves import Array
from guerdon.limits import open_regular


class MemoryStorage:
    """Allocates the arrays of a buffer as NumPy arrays."""

    def convert(self, value: Any) -> Array:
        """Convert a value to the stored kind of array."""
        array = leaves.from_ndarray(np.asarray(leaves.to_numpy(value)))
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Allocate a zero array for data."""
        return self.bookkeeping(name, shape, dtype)

    def bookkeeping(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Allocate a zero array for flags and counters, which are NumPy in every storage."""
        del name
        return np.full(shape, None) if np.dtype(dtype).hasobject else np.zeros(shape, dtype)

    def grow(self, name: str, array: Any, rows: int) -> Any:
        """Return the array with more rows, which are zero."""
        larger = self.array(name, (rows, *array.shape[1:]), array.dtype)
        larger[: len(array)] = array
        return larger

    def drop(self, name: str) -> None:
        """Delete an array."""


Storage = MemoryStorage
"""Base class of all storages."""


class TorchStorage(MemoryStorage):
    """Torch tensors on a device; usable with autograd even if made in inference mode."""

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"storage is on {device}, but this torch finds no CUDA device")

    def convert(self, value: Any) -> Array:
        """See `MemoryStorage`."""
        if not isinstance(value, Array):
            value = np.asarray(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
            return leaves.from_ndarray(value)  # `array` raises the error
        tensor = torch.as_tensor(value).detach()
        return tensor.to(self.device, non_blocking=self.device.type == "cuda")

    @torch.inference_mode(mode=False)
    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `MemoryStorage`."""
        if not isinstance(dtype, torch.dtype):
            raise TypeError(_no_objects(name, "storage on a device"))
        return torch.zeros(shape, dtype=dtype, device=self.device)


class DiskStorage(MemoryStorage):
    """Memory-mapped files in a folder, which persist even if the process is killed.

    Args:
        folder: Folder of the files; created if missing.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def bookkeeping(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """See `MemoryStorage`; a file that exists is opened with its contents."""
        if np.dtype(dtype).hasobject:
            raise TypeError(_no_objects(name, "files"))
        path = self.path(name)
        row_bytes = max(int(np.prod(shape[1:])) * np.dtype(dtype).itemsize, 1)
        held = path.stat().st_size if path.exists() else 0
        wanted = max(shape[0] * row_bytes, 1)
        if held < wanted:
            _reserve(path, wanted)
        rows = max(shape[0], held // row_bytes)  # a table may have grown
        with open_regular(path, "r+b") as file:
            return np.asarray(np.memmap(cast("Any", file), dtype, "r+", shape=(rows, *shape[1:])))

    def drop(self, name: str) -> None:
        """See `MemoryStorage`."""
        self.path(name).unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """Return the file of an array."""
        return self.folder / f"{quote(name, safe='')}.bin"


def _no_objects(name: str, what: str) -> str:
    return (
        f"{name.removeprefix('rows.')!r} holds Python objects, which {what} cannot: "
        'leave it out, or use storage="memory"'
    )


def _reserve(path: Path, size: int) -> None:
    """Allocate the file on disk now: writing to a sparse file on a full disk would crash."""
    with open_regular(path, "r+b") if path.exists() else path.open("xb") as file:
        if not hasattr(os, "posix_fallocate"):  # not on every system
            file.truncate(size)
            return
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise OSError(
                error.errno,
                f"no space for {size / 2**30:.2f} GiB in {path.parent}: "
                "free some space, or make the buffer smaller",
            ) from None


def make_storage(storage: "str | torch.device | Storage") -> "Storage":
    """Return the storage of a name; see `ReplayBuffer`."""
    if isinstance(storage, torch.device):
        return TorchStorage(storage)
    if not isinstance(storage, str):
        return storage
    if storage == "memory":
        return MemoryStorage()
    if storage.startswith("disk:"):
        return DiskStorage(storage.removeprefix("disk:"))
    try:
        return TorchStorage(storage)
    except RuntimeError:
        raise ValueError(
            f'storage is "memory", "disk:FOLDER" or a device such as "cuda:0", not {storage!r}'
        ) from None

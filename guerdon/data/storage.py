"""Where the arrays of a buffer live: in memory, in files larger than memory, or on a device."""

import json
import os
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import torch

from guerdon.data import leaves
from guerdon.data.leaves import Array


class Storage(Protocol):
    """Makes arrays of zeros and lengthens them. Bookkeeping is in NumPy whatever the storage."""

    def convert(self, value: Any) -> Array:
        """A value as an array of the kind that is stored."""

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array for data."""

    def bookkeeping(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array for flags and counters."""

    def grow(self, name: str, array: Any, rows: int) -> Any:
        """The same array with more rows; those added are zero."""

    def drop(self, name: str) -> None:
        """Forgets an array."""


class MemoryStorage:
    """NumPy arrays."""

    def convert(self, value: Any) -> Array:
        """See `Storage`."""
        array = leaves.from_ndarray(np.asarray(leaves.to_numpy(value)))
        if not array.dtype.isnative:
            return array.astype(array.dtype.newbyteorder("="))
        return array if array.flags.c_contiguous else array.copy()

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Storage`."""
        return self.bookkeeping(name, shape, dtype)

    def bookkeeping(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """See `Storage`."""
        del name
        return np.full(shape, None) if np.dtype(dtype).hasobject else np.zeros(shape, dtype)

    def grow(self, name: str, array: Any, rows: int) -> Any:
        """See `Storage`."""
        larger = self.bookkeeping(name, (rows, *array.shape[1:]), array.dtype)
        larger[: len(array)] = array
        return larger

    def drop(self, name: str) -> None:
        """See `Storage`."""


class TorchStorage(MemoryStorage):
    """Torch tensors on a device."""

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"storage is on {device}, but this torch finds no CUDA device")

    def convert(self, value: Any) -> Array:
        """See `Storage`."""
        if not isinstance(value, Array):
            value = np.asarray(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
            return leaves.from_ndarray(value)  # `array` says why not
        return torch.as_tensor(value, device=self.device).detach()

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """See `Storage`."""
        if not isinstance(dtype, torch.dtype):
            raise TypeError(_no_objects(name, "storage on a device"))
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def grow(self, name: str, array: Any, rows: int) -> Any:
        """See `Storage`."""
        if isinstance(array, np.ndarray):
            return super().grow(name, array, rows)
        more = array.new_zeros((rows - len(array), *array.shape[1:]))
        return torch.cat([array, more])


class DiskStorage(MemoryStorage):
    """Memory-mapped files in a folder: they outlive the process, also one that was killed.

    Args:
        folder: Where the files are; made if it is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stamp: Any = None
        """What the description in the folder was last written for."""

    def bookkeeping(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """See `Storage`; a file that is already there is opened with what it holds."""
        if np.dtype(dtype).hasobject:
            raise TypeError(_no_objects(name, "files"))
        path = self._path(name)
        row_bytes = max(int(np.prod(shape[1:])) * np.dtype(dtype).itemsize, 1)
        held = path.stat().st_size if path.exists() else 0
        wanted = max(shape[0] * row_bytes, 1)
        if held < wanted:
            _reserve(path, wanted)
        rows = max(shape[0], held // row_bytes)  # a table may have grown since it was made
        return np.asarray(np.memmap(path, dtype, "r+", shape=(rows, *shape[1:])))

    def grow(self, name: str, array: Any, rows: int) -> Any:
        """See `Storage`."""
        return self.bookkeeping(name, (rows, *array.shape[1:]), array.dtype)

    def drop(self, name: str) -> None:
        """See `Storage`."""
        self._path(name).unlink(missing_ok=True)
        self.stamp = None

    def holds(self, name: str) -> bool:
        """Whether there is an array of that name."""
        return self._path(name).exists()

    def read_meta(self) -> dict[str, Any] | None:
        """What was last written with `write_meta`; None in a new folder."""
        path = self.folder / "meta.json"
        if not path.exists():
            return None
        meta: dict[str, Any] = json.loads(path.read_text())
        return meta

    def _path(self, name: str) -> Path:
        return self.folder / f"{quote(name, safe='')}.bin"


def _no_objects(name: str, what: str) -> str:
    return (
        f"{name.removeprefix('rows.')!r} holds Python objects, which {what} cannot: "
        'leave it out, or use storage="memory"'
    )


def _reserve(path: Path, size: int) -> None:
    """Makes a file that long now: writing into a hole of a full disk would kill the process."""
    with path.open("ab") as file:
        if not hasattr(os, "posix_fallocate"):  # not everywhere
            file.truncate(size)
            return
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise OSError(
                error.errno,
                f"no room for {size / 2**30:.2f} GiB at {path.parent}: "
                "make space, or make the buffer smaller",
            ) from None


def make_storage(storage: "str | torch.device | Storage") -> "Storage":
    """The storage that a name stands for.

    Args:
        storage: ``"memory"``, ``"disk:FOLDER"``, a device (``"cpu"``, ``"cuda:0"``: torch tensors
            there), or a storage.
    """
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

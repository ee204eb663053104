"""Trajectories of labelled camera frames, one file each: whole or not there, read safely.

A file is ``000000.npz`` with the arrays ``images.<camera>`` (uint8 [T, C, H, W]), ``labels``
(float32 [T]) and ``success_once``. A pickled dictionary ``000000.npy`` of ``images`` (float32 in
[0, 1]) and ``labels`` is read and written, too. Both kinds share one numbering.
"""

import errno
import io
import math
import os
import pathlib
import re
import secrets
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np

from guerdon.data.files import sync_folder
from guerdon.data.leaves import describe
from guerdon.data.unpickle import safe_unpickle

Format = Literal["npz", "npy"]

_NAME = re.compile(r"(\d{6,})\.(npz|npy)")
_TEMPORARY = ".tmp"
_STALE_SECONDS = 3600.0  # a file is written in far less
_LEVEL = 1  # a tenth of the time of the usual 6, for files of nearly the same size
_NO_LINKS = {  # as exFAT and some file systems of networks say it
    *(errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
}
_MOST_INFLATED = 1032  # times: deflate does no better


@dataclass(frozen=True)
class Trajectory:
    """The frames of one episode, and which of them show success.

    Args:
        images: uint8 [T, C, H, W] by camera.
        labels: float32 [T] in [0, 1]: 1 where the frame shows success.
        success_once: Whether the episode succeeded at any time.
    """

    images: dict[str, np.ndarray]
    labels: np.ndarray
    success_once: bool

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.labels.dtype != np.float32 or not len(self.labels):
            raise ValueError(
                f"labels have to be float32, one or more, in a row: {describe(self.labels)}"
            )
        if not ((self.labels >= 0) & (self.labels <= 1)).all():
            raise ValueError("a label is not in [0, 1]")
        if not self.images:
            raise ValueError("it has no images")
        for key, images in self.images.items():
            if images.ndim != 4 or images.dtype != np.uint8 or not images.size:
                raise ValueError(
                    f"images of {key!r} have to be uint8 [T, C, H, W]: {describe(images)}"
                )
            if len(images) != len(self.labels):
                raise ValueError(
                    f"there are {len(images)} images of {key!r} for {len(self.labels)} labels"
                )

    def __len__(self) -> int:
        return len(self.labels)


def to_uint8(images: np.ndarray, name: str) -> np.ndarray:
    """Images as uint8; those of floating point have to be in [0, 1].

    Args:
        images: Any number of them.
        name: Of the camera, for the error.
    """
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f":
        raise ValueError(
            f"images of {name!r} are {images.dtype}: they have to be uint8, or float in [0, 1]"
        )
    if not images.size:
        return images.astype(np.uint8)
    low, high = images.min(), images.max()
    if not (low >= 0 and high <= 1):  # NaN, too
        raise ValueError(
            f"images of {name!r} are {images.dtype} from {low:g} to {high:g}, not in [0, 1]: "
            f"give them as uint8, or divide them by 255"
        )
    rounded: np.ndarray = np.rint(images * 255).astype(np.uint8)
    return rounded


# --- writing


def write_trajectory(
    folder: str | os.PathLike[str],
    trajectory: Trajectory,
    *,
    format: Format = "npz",  # noqa: A002
    number: int | None = None,
) -> pathlib.Path:
    """Writes a trajectory to a folder, which is made if need be, under the next free number.

    The file appears only when all of it is written; on file systems without hard links, an empty
    one is there for an instant. Several processes may write to one folder.

    Args:
        folder: Where to.
        trajectory: What.
        format: ``npz`` (compressed uint8), or ``npy`` (a pickled dictionary of float32, without
            ``success_once``).
        number: Where to begin to look for a free one; by default after the highest in the folder,
            which takes long to find among many thousands.

    Returns:
        The file.
    """
    folder = pathlib.Path(folder)
    content = _npz_bytes(trajectory) if format == "npz" else _npy_bytes(trajectory)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{secrets.token_hex(8)}{_TEMPORARY}"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        path = _claim(folder, temporary, format, next_number(folder) if number is None else number)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(folder)
    return path


def next_number(folder: str | os.PathLike[str]) -> int:
    """The number after the highest in a folder."""
    return max(_numbers(pathlib.Path(folder)), default=-1) + 1


def count_trajectories(folder: str | os.PathLike[str]) -> int:
    """How many trajectories are in a folder, by their names."""
    return sum(1 for _ in _numbers(pathlib.Path(folder)))


def remove_stale(folder: str | os.PathLike[str]) -> None:
    """Removes what killed processes left half-written in a folder an hour ago or more."""
    for path in pathlib.Path(folder).glob(f".*{_TEMPORARY}"):
        with suppress(FileNotFoundError):  # somebody else was faster
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def _numbers(folder: pathlib.Path) -> Iterator[int]:
    if folder.is_dir():
        for path in folder.iterdir():
            if match := _NAME.fullmatch(path.name):
                yield int(match[1])


def _claim(
    folder: pathlib.Path, temporary: pathlib.Path, suffix: Format, number: int
) -> pathlib.Path:
    """Gives a file the first number from this one on that nobody has."""
    other = "npy" if suffix == "npz" else "npz"
    while True:
        path = folder / f"{number:06d}.{suffix}"
        with suppress(FileExistsError):
            _take_name(temporary, path)
            if not path.with_suffix(f".{other}").exists():
                temporary.replace(path)  # which changes nothing if both are one file
                return path
            path.unlink()
        number += 1


def _take_name(temporary: pathlib.Path, path: pathlib.Path) -> None:
    """Makes a path a name of a file, or of an empty one where files have one name only.

    Fails where there is such a path.
    """
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def _npz_bytes(trajectory: Trajectory) -> bytes:
    arrays = {f"images.{key}": images for key, images in trajectory.images.items()}
    arrays |= {"labels": trajectory.labels, "success_once": np.array(trajectory.success_once)}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return content.getvalue()


def _npy_bytes(trajectory: Trajectory) -> bytes:
    images = {key: array / np.float32(255) for key, array in trajectory.images.items()}
    content = io.BytesIO()
    np.save(content, np.array({"images": images, "labels": trajectory.labels}), allow_pickle=True)
    return content.getvalue()


# --- reading


def read_trajectory(path: str | os.PathLike[str]) -> Trajectory:
    """Reads a trajectory of either kind, without running what may be in it.

    Raises:
        ValueError: The file is damaged, or no trajectory.
    """
    path = pathlib.Path(path)
    readers = {".npz": _read_npz, ".npy": _read_npy}
    try:
        if path.suffix not in readers:
            raise ValueError("it is neither .npz nor .npy")
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")
        return readers[path.suffix](path)
    except OSError:
        raise
    except Exception as error:  # a damaged archive can fail in any way
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path} is damaged or no trajectory: {reason}") from error


def _read_npz(path: pathlib.Path) -> Trajectory:
    content = path.read_bytes()  # so that what goes wrong from here on is the fault of what it says
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        keys = [name for name in entries if name.startswith("images.")]
        if entries.keys() - keys != {"labels", "success_once"} or not keys:
            raise ValueError(
                f"its arrays are {', '.join(sorted(entries)) or 'none'}, "
                f"not images.<camera>, labels and success_once"
            )
        if sum(info.compress_size for info in entries.values()) > len(content):
            raise ValueError("it claims to be larger than it is")
        arrays = {name: _read_entry(archive, info) for name, info in entries.items()}
    once = arrays.pop("success_once")
    if once.shape != () or once.dtype != bool:
        raise ValueError(f"success_once has to be one boolean: {describe(once)}")
    labels = arrays.pop("labels")
    images = {key.removeprefix("images."): array for key, array in arrays.items()}
    return Trajectory(images, labels, bool(once))


def _read_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One array, once its header is held against the size of its entry, and that against deflate's.

    Other methods of compression can make gigabytes of a few bytes.
    """
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is compressed in an unusual way")
    if info.file_size > _MOST_INFLATED * info.compress_size:
        raise ValueError("it claims to be larger than it is")
    with archive.open(info) as file:
        shape, fortran, dtype = _read_header(file)
        size = info.file_size - file.tell()
        if dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize != size:
            raise ValueError(f"the header of {info.filename} does not fit what follows it")
        content = bytearray(file.read(size))
    return np.ndarray(shape, dtype, content, order="F" if fortran else "C")


def _read_npy(path: pathlib.Path) -> Trajectory:
    content = path.read_bytes()
    file = io.BytesIO(content)
    shape, _, dtype = _read_header(file)
    if shape != () or dtype.kind != "O":
        raise ValueError("it holds an array, not a dictionary of 'images' and 'labels'")
    array = safe_unpickle(content[file.tell() :])
    found = array.item() if isinstance(array, np.ndarray) and array.shape == () else array
    if not isinstance(found, dict) or found.keys() != {"images", "labels"}:
        raise ValueError("it holds something else than a dictionary of 'images' and 'labels'")
    images, labels = found["images"], found["labels"]
    if not isinstance(images, dict) or not all(isinstance(key, str) for key in images):
        raise ValueError("its images are no dictionary by camera")
    for array in (labels, *images.values()):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise ValueError(f"its images and labels have to be arrays of numbers: {array!r:.60}")
    labels = labels.astype(np.float32)
    once = bool((labels >= 0.5).any())
    return Trajectory({key: to_uint8(array, key) for key, array in images.items()}, labels, once)


def _read_header(file: BinaryIO | Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its arrays are of version {version}, which is not read")
    newer = version == (2, 0)
    read = np.lib.format.read_array_header_2_0 if newer else np.lib.format.read_array_header_1_0
    return read(file)

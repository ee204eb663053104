"""Labelled camera frames: one file per trajectory, and all frames of two folders in memory.

A file is ``000000.npz`` with the arrays ``images.<camera>`` (uint8 [T, C, H, W]), ``labels``
(float32 [T]) and ``success_once``. A pickled dictionary ``000000.npy`` of ``images`` (float32 in
[0, 1]) and ``labels`` is read and written, too. Both formats share one numbering. Files are written
atomically, and reading one runs no code.
"""

import errno
import hashlib
import io
import os
import pathlib
import re
import secrets
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np

from guerdon.data.array_files import read_archive, read_header
from guerdon.data.files import sync_folder
from guerdon.data.leaves import describe
from guerdon.data.unpickle import safe_unpickle
from guerdon.limits import read_bytes

Format = Literal["npz", "npy"]

_NAME = re.compile(r"(\d{6,})\.(npz|npy)")
_TEMPORARY = ".tmp"
_STALE_SECONDS = 3600.0  # writing a file takes far less
_LEVEL = 1  # ten times as fast as the default 6; files are hardly larger
_FORMAT = b"guerdon trajectory 1"  # comment of the archive
_NO_LINKS = {  # errors of exFAT and some network file systems
    *(errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
}
_DIGITS = 32  # length of a digest
CHANNELS = (1, 3, 4)
"""Usual numbers of channels."""


@dataclass(frozen=True, repr=False)
class Trajectory:
    """Frames of one episode with success labels.

    Args:
        images: uint8 [T, C, H, W] of each camera.
        labels: float32 [T] in [0, 1]: 1 where the frame shows success.
        success_once: Whether the episode succeeded at any time.
    """

    images: dict[str, np.ndarray]
    labels: np.ndarray
    success_once: bool

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.labels.dtype != np.float32 or not len(self.labels):
            raise ValueError(
                f"labels have to be float32, of shape [T] with T >= 1: {describe(self.labels)}"
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

    def __repr__(self) -> str:
        return f"Trajectory({len(self)} frames of {', '.join(self.images)})"


def to_uint8(images: np.ndarray, name: str) -> np.ndarray:
    """Return images as uint8; floating-point images have to be in [0, 1].

    ``name`` is the camera's name, for the error message.
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
    if not np.isfinite([low, high]).all():
        raise ValueError(f"images of {name!r} have pixels that are NaN or infinite")
    if low < 0 or high > 1:
        fix = "divide them by 255" if low >= 0 else "shift and scale them to [0, 1]"
        raise ValueError(
            f"images of {name!r} are {images.dtype} from {low:g} to {high:g}, not in [0, 1]: "
            f"give them as uint8, or {fix}"
        )
    rounded: np.ndarray = np.rint(images * 255).astype(np.uint8)
    return rounded


def resized(images: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Resize images by area averaging.

    Args:
        images: uint8 [..., H, W]; returned unchanged if they have the size.
        size: Height and width.
    """
    height, width = size
    if images.shape[-2:] == (height, width):
        return images
    old_height, old_width = images.shape[-2:]
    rows = _shares(old_height, height) @ images.astype(np.float32, order="C")
    means: np.ndarray = rows @ _shares(old_width, width).T
    return means.round().astype(np.uint8)


@cache
def _shares(n: int, size: int) -> np.ndarray:
    """Return the weight [size, n] of each old pixel in each new one."""
    ends = np.linspace(0, n, size + 1)[:, None]
    old = np.arange(n)
    overlap = np.minimum(ends[1:], old + 1) - np.maximum(ends[:-1], old)
    shares: np.ndarray = (overlap.clip(0) * size / n).astype(np.float32)
    return shares


# --- writing


def write_trajectory(
    folder: str | os.PathLike[str],
    trajectory: Trajectory,
    *,
    format: Format = "npz",  # noqa: A002
    note: Callable[[pathlib.Path, bytes], object] = lambda *_: None,
) -> pathlib.Path:
    """Write a trajectory to a folder, created if missing, under the next free number.

    The file appears only when it is complete; on file systems without hard links, an empty one
    exists for an instant. Several processes may write to one folder.

    Args:
        folder: Folder.
        trajectory: Trajectory.
        format: ``npz`` (compressed uint8), or ``npy`` (a pickled dictionary of float32, without
            ``success_once``).
        note: Called with the path and the content before the file gets its name.

    Returns:
        Path of the file.
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
        path = _claim(folder, temporary, format, lambda path: note(path, content))
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(folder)
    return path


def next_number(folder: str | os.PathLike[str]) -> int:
    """Return the highest number in a folder, plus one."""
    return max(_numbers(pathlib.Path(folder)), default=-1) + 1


def count_trajectories(folder: str | os.PathLike[str]) -> int:
    """Count the trajectories in a folder, by file name."""
    return sum(1 for _ in _numbers(pathlib.Path(folder)))


def remove_stale(folder: str | os.PathLike[str]) -> None:
    """Remove temporary files of killed processes that are at least an hour old."""
    for path in pathlib.Path(folder).glob(f".*{_TEMPORARY}"):
        with suppress(FileNotFoundError):  # another process removed it
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def _numbers(folder: pathlib.Path) -> Iterator[int]:
    if folder.is_dir():
        for path in folder.iterdir():
            if match := _NAME.fullmatch(path.name):
                yield int(match[1])


def _claim(
    folder: pathlib.Path,
    temporary: pathlib.Path,
    suffix: Format,
    note: Callable[[pathlib.Path], object],
) -> pathlib.Path:
    """Rename a file to the next free number, also if other processes write at the same time."""
    number = next_number(folder)
    other = "npy" if suffix == "npz" else "npz"
    while True:
        path = folder / f"{number:06d}.{suffix}"
        note(path)
        with suppress(FileExistsError):
            try:
                os.link(temporary, path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                path.touch(exist_ok=False)
            if not path.with_suffix(f".{other}").exists():
                temporary.replace(path)  # no effect if both are the same file
                return path
            path.unlink()
        number += 1


def _npz_bytes(trajectory: Trajectory) -> bytes:
    arrays = {f"images.{key}": images for key, images in trajectory.images.items()}
    arrays |= {"labels": trajectory.labels, "success_once": np.array(trajectory.success_once)}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        archive.comment = _FORMAT
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
    """Read a trajectory of either format, without running code in it.

    Raises:
        ValueError: The file is damaged or not a trajectory.
    """
    path = pathlib.Path(path)
    readers = {".npz": _read_npz, ".npy": _read_npy}
    try:
        if path.suffix not in readers:
            raise ValueError("it is neither .npz nor .npy")
        return readers[path.suffix](path)
    except OSError:
        raise
    except Exception as error:  # a damaged archive can fail in any way
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path} is damaged or not a trajectory: {reason}") from error


def _read_npz(path: pathlib.Path) -> Trajectory:
    arrays, comment = read_archive(path)
    if comment not in (b"", _FORMAT):
        raise ValueError(f"its format is {comment!r}, which a newer guerdon reads")
    prefix = "images."
    images = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
    if not images or "labels" not in arrays:
        raise ValueError(
            f"its arrays are {', '.join(sorted(arrays)) or 'none'}, not images.<camera> and labels"
        )
    return _trajectory(images, arrays["labels"], arrays.get("success_once"))


def _read_npy(path: pathlib.Path) -> Trajectory:
    content = read_bytes(path)
    file = io.BytesIO(content)
    shape, _, dtype = read_header(file)
    if shape != () or dtype.kind != "O":
        raise ValueError("it holds an array, not a dictionary of 'images' and 'labels'")
    array = safe_unpickle(content[file.tell() :])
    found = array.item() if isinstance(array, np.ndarray) and array.shape == () else array
    if not isinstance(found, dict) or not {"images", "labels"} <= found.keys():
        raise ValueError("it has no dictionary of 'images' and 'labels'")
    images = found["images"]
    if not isinstance(images, dict) or not all(isinstance(key, str) for key in images):
        raise ValueError("its images are not a dictionary by camera")
    return _trajectory(images, found["labels"], found.get("success_once"))


def _trajectory(images: Mapping[str, Any], labels: Any, success_once: Any) -> Trajectory:
    """Return the trajectory of a file, of which other programs may have written the arrays."""
    label = _array(labels, "labels").astype(np.float32)
    if label.ndim == 2 and label.shape[1] == 1:
        label = label[:, 0]
    once = bool((label >= 0.5).any())
    if success_once is not None:
        given = _array(success_once, "success_once")
        if given.size != 1 or not np.isin(given, (0, 1)).all():
            raise ValueError(f"success_once has to be one boolean: {describe(success_once)}")
        once = bool(given.item())
    return Trajectory({key: _frames(each, key) for key, each in images.items()}, label, once)


def _array(values: Any, name: str) -> np.ndarray:
    """Return an array, or a list of numbers or arrays, as an array of numbers."""
    try:
        array = np.asarray(values)
    except ValueError:  # of different shapes
        array = np.zeros(0, object)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} have to be arrays of numbers: {describe(values)}")
    return array


def _frames(images: Any, key: str) -> np.ndarray:
    """Return images as uint8 [T, C, H, W]; they may have other numbers, and channels last."""
    array = _array(images, f"images of {key!r}")
    if array.size and array.dtype.kind in "iuf":
        # A maximum between 1 and 2 may be an error of rounding.
        least = 2 if array.dtype.kind == "f" else 0
        if array.min() >= 0 and least <= array.max() <= 255:  # False for NaN
            array = np.rint(array).astype(np.uint8)
    array = to_uint8(array, key)
    if array.ndim == 4:
        first, last = array.shape[1], array.shape[3]
        if first not in CHANNELS and last in CHANNELS and last < min(array.shape[1:3]):
            array = np.ascontiguousarray(np.moveaxis(array, 3, 1))
    return array


# --- all frames


@dataclass(repr=False)
class Frames:
    """Frames of many trajectories, concatenated.

    Args:
        images: uint8 [N, C, H, W] of each camera.
        labels: bool [N]: True for success.
        episodes: int64 [N]: index of each frame's trajectory, ascending.
        from_positive: bool [trajectories]: True for those of the positive folder.
        skipped: Files that could not be read, with the reason.
        copies: Number of trajectories left out because another one is equal.
        paths: File of each trajectory, if they come from files.
    """

    images: dict[str, np.ndarray]
    labels: np.ndarray
    episodes: np.ndarray
    from_positive: np.ndarray
    skipped: list[tuple[pathlib.Path, str]] = field(default_factory=list)
    copies: int = 0
    paths: list[pathlib.Path] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        number = len(self.from_positive)
        return f"Frames({len(self)} of {', '.join(self.images)} in {number} trajectories)"

    @cached_property
    def digests(self) -> list[str]:
        """Digest of the images and labels of each trajectory."""
        digests = []
        for episode in range(len(self.from_positive)):
            rows = slice(*np.searchsorted(self.episodes, [episode, episode + 1]))
            images = {key: array[rows] for key, array in self.images.items()}
            digests.append(_digest(self.labels[rows], images))
        return digests

    @property
    def hash(self) -> str:
        """SHA-256 of all trajectories, independent of file names and formats."""
        return hashlib.sha256("".join(sorted(self.digests)).encode()).hexdigest()

    def report(self) -> str:
        """Summarise trajectories, frames, labels and skipped files of each folder."""
        lines = []
        for name, mask in (("positive", self.from_positive), ("negative", ~self.from_positive)):
            labels = self.labels[mask[self.episodes]]
            shown = int(labels.sum())
            lines.append(
                f"{name}: {mask.sum()} trajectories, {len(labels)} frames, {shown} with label 1 "
                f"({shown / max(len(labels), 1):.1%}), {len(labels) - shown} with label 0"
            )
        if self.from_positive.all():
            lines.append(
                "there is no negative trajectory: the false-positive rate on failures is unknown"
            )
        if self.copies:
            lines.append(f"{self.copies} duplicate trajectories were left out")
        if self.skipped:
            lines.append(f"skipped files: {len(self.skipped)}")
            lines += [f"  {path} {reason}" for path, reason in self.skipped]
        return "\n".join(lines)

    def split(self, generator: np.random.Generator, *shares: float) -> list[np.ndarray]:
        """Return the rows for training, then those of each share; no trajectory is in two parts.

        All parts have frames of both labels if there are enough trajectories that have them.

        Args:
            generator: Random generator.
            *shares: Fractions of the trajectories to hold out, each in [0, 1).
        """
        if not all(0 <= share < 1 for share in shares):
            raise ValueError(f"shares of trajectories are {shares}, but have to be in [0, 1)")
        shows = np.zeros((len(self.from_positive), 2), bool)  # has label 0, has label 1
        shows[self.episodes, self.labels.astype(np.int64)] = True
        part = np.zeros(len(shows), int)
        order = generator.permutation(len(shows))
        for place, share in enumerate(shares, 1):
            for kind in np.unique(shows, axis=0) if share else ():
                alike = order[(shows[order] == kind).all(1)]
                left = alike[part[alike] == 0]
                later = sum(map(bool, shares[place:]))  # parts that need one, too
                most = min(max(len(left) - 1 - later, 1), len(left) - 1)
                number = min(max(round(share * len(alike)), 1), most)
                part[left[: max(number, 0)]] = place
            for label in range(2) if share else ():
                _hold_out_one(part, place, shows, order, label)
        rows = part[self.episodes]
        return [np.flatnonzero(rows == place) for place in range(len(shares) + 1)]


def _digest(labels: np.ndarray, images: Mapping[str, np.ndarray]) -> str:
    """Return a digest of labels and images; equal trajectories have equal digests."""
    digest = hashlib.sha256(labels.tobytes())
    for key in sorted(images):
        digest.update(f"{key} {images[key].shape}".encode())
        digest.update(np.ascontiguousarray(images[key]).data)
    return digest.hexdigest()[:_DIGITS]


def _hold_out_one(
    part: np.ndarray, place: int, shows: np.ndarray, order: np.ndarray, label: int
) -> None:
    """Move a trajectory with this label from training to a part that has none.

    Training keeps every label that it has.
    """
    if shows[part == place, label].any():
        return
    training = part == 0
    for episode in order[training[order] & shows[order, label]]:
        rest = training.copy()
        rest[episode] = False
        if (shows[rest].any(0) == shows[training].any(0)).all():
            part[episode] = place
            return


def load_frames(
    positive_dir: str | os.PathLike[str],
    negative_dir: str | os.PathLike[str],
    image_keys: Sequence[str],
    image_size: Sequence[int] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Frames:
    """Read all trajectories of two folders; other files are skipped and reported.

    Of equal trajectories one is kept, so that none can be in both training and validation.
    Trajectories whose labels contradict their folder are an error.

    Args:
        positive_dir: Folder of successful trajectories.
        negative_dir: Folder of failed trajectories.
        image_keys: Cameras to read.
        image_size: Required size [C, H, W]; None takes the size of the first frame.
        progress: Called with the number of files read and the number of files.
    """
    folders = [pathlib.Path(positive_dir), pathlib.Path(negative_dir)]
    files = [(path, not side) for side, folder in enumerate(folders) for path in _files(folder)]
    if folders[0].resolve() == folders[1].resolve():
        raise ValueError(f"positive_dir and negative_dir are both {folders[0]}: give two folders")
    kept: dict[str, tuple[Trajectory, bool, pathlib.Path]] = {}  # by digest
    skipped: list[tuple[pathlib.Path, str]] = []
    copies = 0
    sizes = {key: tuple(image_size) for key in image_keys} if image_size else {}
    for done, (path, positive) in enumerate(files, 1):
        try:
            chosen = _chosen(read_trajectory(path), image_keys, sizes)
        except ValueError as error:
            skipped.append((path, str(error).removeprefix(f"{path} ")))
        except OSError as error:
            skipped.append((path, f"cannot be read: {error.strerror or error}"))
        else:
            digest = _digest(chosen.labels >= 0.5, chosen.images)
            copies += digest in kept
            kept.setdefault(digest, (chosen, positive, path))
        if progress is not None:
            progress(done, len(files))
    trajectories = [trajectory for trajectory, *_ in kept.values()]
    lengths = np.array([len(trajectory) for trajectory in trajectories], int)
    frames = Frames(
        _joined_images(trajectories, sizes),
        np.concatenate([np.zeros(0, bool), *(each.labels >= 0.5 for each in trajectories)]),
        np.repeat(np.arange(len(lengths)), lengths),
        np.array([positive for _, positive, _ in kept.values()], bool),
        skipped,
        copies,
        [path for *_, path in kept.values()],
    )
    frames.digests = list(kept)
    _check_labels(frames, folders)
    # A positive trajectory may have succeeded between its frames.
    _check_folders(frames, np.array([each.success_once for each in trajectories]))
    return frames


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return all files of a folder that are not hidden."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}: collect trajectories first "
            f"('reward.collect_data=true'), or name the right folder"
        )
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _chosen(
    trajectory: Trajectory, image_keys: Sequence[str], sizes: dict[str, tuple[int, ...]]
) -> Trajectory:
    """Return the chosen cameras; without a required size, the first frame's is put into `sizes`."""
    for key in image_keys:
        if key not in trajectory.images:
            there = ", ".join(map(repr, sorted(trajectory.images)))
            raise ValueError(f"has no images of {key!r}, but of {there}")
    for key in image_keys:
        size = trajectory.images[key].shape[1:]
        if size != sizes.get(key, size):
            raise ValueError(f"has images of {key!r} of {list(size)}, not {list(sizes[key])}")
    sizes |= {key: trajectory.images[key].shape[1:] for key in image_keys}
    images = {key: trajectory.images[key] for key in image_keys}
    return Trajectory(images, trajectory.labels, trajectory.success_once)


def _joined_images(
    trajectories: list[Trajectory], sizes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Return all images by camera; images of a file are freed as soon as they are copied."""
    stops = np.cumsum([len(trajectory) for trajectory in trajectories])
    joined = {}
    for key, size in sizes.items():
        joined[key] = np.empty((sum(map(len, trajectories)), *size), np.uint8)
        for trajectory, stop in zip(trajectories, stops, strict=True):
            joined[key][stop - len(trajectory) : stop] = trajectory.images.pop(key)
    return joined


def _check_labels(frames: Frames, folders: list[pathlib.Path]) -> None:
    """Raise an error unless both labels occur, in the right folders."""
    both = " and ".join(map(str, folders))
    positive_labels = frames.labels[frames.from_positive[frames.episodes]]
    if not len(frames) and frames.skipped:
        path, reason = frames.skipped[0]
        raise ValueError(
            f"all files in {both} ({len(frames.skipped)}) were skipped: {path} {reason}; set "
            "'reward.model.image_keys' and 'reward.model.image_size' to what the files have, or "
            "collect again with one 'image_size' for all cameras"
        )
    if not len(frames):
        problem = f"there is no trajectory in {both}: collect some first"
        problem += " ('reward.collect_data=true')"
    elif not frames.labels.any():
        problem = f"no frame in {folders[0]} has label 1: collect until the policy succeeds"
    elif frames.labels.all():
        problem = f"no frame in {both} has label 0: collect failures, too"
    elif not positive_labels.any():
        problem = f"no frame in {folders[0]} has label 1, but some in {folders[1]} have: the "
        problem += "folders are the wrong way round; give positive_dir first"
    else:
        return
    skipped = f" ({len(frames.skipped)} files were skipped)" if frames.skipped else ""
    raise ValueError(problem + skipped)


def _check_folders(frames: Frames, success_once: np.ndarray) -> None:
    """Raise an error if the labels of trajectories contradict their folders."""
    successes = np.bincount(frames.episodes[frames.labels], minlength=len(success_once))
    as_positive = (successes > 0) | (success_once & frames.from_positive)
    wrong = np.flatnonzero(as_positive != frames.from_positive)
    if not len(wrong):
        return
    side = "positive" if frames.from_positive[wrong[0]] else "negative"
    others = f" ({len(wrong)} trajectories contradict their folder)" if len(wrong) > 1 else ""
    raise ValueError(
        f"{frames.paths[wrong[0]]} is a {side} trajectory, but has {successes[wrong[0]] or 'no'} "
        f"frames with label 1{others}: see whether its labels are right (0 and 1 may be inverted), "
        "then correct them or move the file"
    )

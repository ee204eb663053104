"""All the labelled camera frames of two folders of trajectories, in memory."""

import hashlib
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from guerdon.data.trajectory_files import (
    Trajectory,
    next_number,
    read_trajectory,
    write_trajectory,
)

__all__ = [
    "Frames",
    "Trajectory",
    "load_frames",
    "next_number",
    "read_trajectory",
    "write_trajectory",
]

_DIGITS = 32  # of a digest: no two trajectories have the same


@dataclass
class Frames:
    """All frames of many trajectories, one trajectory after the other.

    Args:
        images: uint8 [N, C, H, W] by camera.
        labels: bool [N]: which show success.
        episodes: int64 [N]: the number of each frame's trajectory, in order.
        from_positive: bool, one a trajectory: which folder it was in.
        skipped: Files that could not be read, and why.
        copies: Trajectories that were left out, since another is equal.
    """

    images: dict[str, np.ndarray]
    labels: np.ndarray
    episodes: np.ndarray
    from_positive: np.ndarray
    skipped: list[tuple[pathlib.Path, str]] = field(default_factory=list)
    copies: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def digests(self) -> list[str]:
        """By trajectory, what tells its images and labels from all others."""
        digests = []
        for episode in range(len(self.from_positive)):
            rows = slice(*np.searchsorted(self.episodes, [episode, episode + 1]))
            images = {key: array[rows] for key, array in self.images.items()}
            digests.append(_digest(self.labels[rows], images))
        return digests

    @property
    def hash(self) -> str:
        """SHA-256 of all of them, whatever the files are called and in which format."""
        return hashlib.sha256("".join(sorted(self.digests)).encode()).hexdigest()

    def report(self) -> str:
        """Trajectories, frames and the balance of labels of each folder; and what is not there."""
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
                "there is no negative trajectory: false positives of failed episodes are not known"
            )
        if self.copies:
            lines.append(f"{self.copies} copies of other trajectories were left out")
        if self.skipped:
            lines.append(f"skipped files: {len(self.skipped)}")
            lines += [f"  {path} {reason}" for path, reason in self.skipped]
        return "\n".join(lines)

    def split(self, share: float, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Rows to train on and rows to validate on; no trajectory is on both sides.

        Both sides have frames of both labels where two trajectories have them.

        Args:
            share: Of the trajectories that are for validation, 0 or more and below 1.
            generator: Which of them.
        """
        if not 0 <= share < 1:
            raise ValueError(f"the share of validation is {share}: it has to be in [0, 1)")
        shows = np.zeros((len(self.from_positive), 2), bool)  # by trajectory: label 0, label 1
        shows[self.episodes, self.labels.astype(np.int64)] = True
        held_out = np.zeros(len(shows), bool)
        order = generator.permutation(len(shows))
        if share:
            for kind in np.unique(shows, axis=0):
                alike = order[(shows[order] == kind).all(1)]
                number = min(max(round(share * len(alike)), 1), len(alike) - 1)
                held_out[alike[:number]] = True
            for label in range(2):
                _hold_out_one(held_out, shows, order, label)
        mask = held_out[self.episodes]
        return np.flatnonzero(~mask), np.flatnonzero(mask)


def _digest(labels: np.ndarray, images: Mapping[str, np.ndarray]) -> str:
    """What trajectories have in common if labels, cameras and images are equal."""
    digest = hashlib.sha256(labels.tobytes())
    for key in sorted(images):
        digest.update(f"{key} {images[key].shape}".encode())
        digest.update(np.ascontiguousarray(images[key]).data)
    return digest.hexdigest()[:_DIGITS]


def _hold_out_one(held_out: np.ndarray, shows: np.ndarray, order: np.ndarray, label: int) -> None:
    """Moves a trajectory with this label to validation, if none is there and training can spare it.

    Training keeps every label that it has.
    """
    if shows[held_out, label].any():
        return
    for episode in order[~held_out[order] & shows[order, label]]:
        rest = ~held_out
        rest[episode] = False
        if (shows[rest].any(0) == shows[~held_out].any(0)).all():
            held_out[episode] = True
            return


def load_frames(
    positive_dir: str | os.PathLike[str],
    negative_dir: str | os.PathLike[str],
    image_keys: Sequence[str],
    image_size: Sequence[int] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Frames:
    """Reads all trajectories of two folders; files that are none are skipped and named.

    Of equal trajectories one is kept, so that none can be on both sides of a split.

    Args:
        positive_dir: Of trajectories that succeeded.
        negative_dir: Of those that did not.
        image_keys: The cameras to read.
        image_size: [C, H, W] that frames have to have; None is that of the first.
        progress: Called with the number of files read, and of all.
    """
    folders = [pathlib.Path(positive_dir), pathlib.Path(negative_dir)]
    files = [(path, not side) for side, folder in enumerate(folders) for path in _files(folder)]
    if folders[0].resolve() == folders[1].resolve():
        raise ValueError(f"positive_dir and negative_dir are both {folders[0]}: give two folders")
    trajectories: list[Trajectory] = []
    from_positive: list[bool] = []
    skipped: list[tuple[pathlib.Path, str]] = []
    digests: dict[str, None] = {}  # in order
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
            if digest in digests:
                copies += 1
            else:
                digests[digest] = None
                trajectories.append(chosen)
                from_positive.append(positive)
        if progress is not None:
            progress(done, len(files))
    frames = _joined(trajectories, image_keys, np.array(from_positive, bool), skipped)
    frames.copies, frames.digests = copies, list(digests)
    _check_labels(frames, folders)
    return frames


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """All files of a folder but hidden ones."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}: collect trajectories first "
            f"('reward.collect_data=true'), or name the right folder"
        )
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _chosen(
    trajectory: Trajectory, image_keys: Sequence[str], sizes: dict[str, tuple[int, ...]]
) -> Trajectory:
    """The cameras asked for; `sizes` learns those of the first frames, if none are asked for."""
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


def _joined(
    trajectories: list[Trajectory],
    image_keys: Sequence[str],
    from_positive: np.ndarray,
    skipped: list[tuple[pathlib.Path, str]],
) -> Frames:
    """All frames in arrays; camera by camera and file by file, so that memory is needed once."""
    lengths = [len(trajectory) for trajectory in trajectories]
    labels = [trajectory.labels >= 0.5 for trajectory in trajectories]
    images: dict[str, np.ndarray] = {}
    for key in image_keys:
        parts = [trajectory.images.pop(key) for trajectory in trajectories]
        size = parts[0].shape[1:] if parts else ()
        images[key] = np.empty((sum(lengths), *size), np.uint8)
        stops = np.cumsum(lengths)
        while parts:
            part = parts.pop()
            stop = stops[len(parts)]
            images[key][stop - len(part) : stop] = part
    return Frames(
        images,
        np.concatenate([np.zeros(0, bool), *labels]),
        np.repeat(np.arange(len(lengths)), lengths),
        from_positive,
        skipped,
    )


def _check_labels(frames: Frames, folders: list[pathlib.Path]) -> None:
    """Raises unless there are frames of both labels, in folders of the right names."""
    both = " and ".join(map(str, folders))
    in_positive = frames.from_positive[frames.episodes]
    if not len(frames) and frames.skipped:
        path, reason = frames.skipped[0]
        raise ValueError(
            f"all files in {both} ({len(frames.skipped)}) were skipped: {path} {reason}; fit with "
            "the cameras and the size that there are ('reward.model.image_keys' and "
            "'reward.model.image_size'), or collect anew, with one 'image_size' for all cameras"
        )
    if not len(frames):
        problem = f"there is no trajectory in {both}"
        repair = "collect some first ('reward.collect_data=true')"
    elif not frames.labels.any():
        problem = f"no frame in {folders[0]} has label 1"
        repair = "collect until the policy succeeds"
    elif frames.labels.all():
        problem = f"no frame in {both} has label 0"
        repair = "collect failures, too"
    elif not frames.labels[in_positive].any():
        problem = f"no frame in {folders[0]} has label 1, but some in {folders[1]} have"
        repair = "the folders are the wrong way round; give positive_dir first"
    else:
        return
    skipped = f" ({len(frames.skipped)} files were skipped)" if frames.skipped else ""
    raise ValueError(f"{problem}{skipped}: {repair}")

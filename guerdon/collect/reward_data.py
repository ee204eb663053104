"""`RewardDataCollector`: camera frames with success labels, one file per episode."""

import atexit
import errno
import math
import pathlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces

from guerdon.config.errors import ConfigError, suggestion
from guerdon.config.schema import DataCollectionConfig
from guerdon.data.frames import (
    CHANNELS,
    Trajectory,
    count_trajectories,
    remove_stale,
    resized,
    to_uint8,
    write_trajectory,
)
from guerdon.data.leaves import to_numpy
from guerdon.envs import Step
from guerdon.envs.checks import SUCCESS
from guerdon.envs.rows import column, reported_success

_SECTION = "reward.data_collection"
_LABELS = ("success_frame", *SUCCESS)  # names of a frame's label in infos
_WAITING = 16  # maximum number of unwritten episodes (at least one per environment)


@dataclass
class _Episode:
    """Frames of an open episode by camera, and labels."""

    frames: dict[str, list[np.ndarray]]
    labels: list[float] = field(default_factory=list)
    success_once: bool = False

    @property
    def positive(self) -> bool:
        """Whether the episode succeeded at any time, or a label is 0.5 or more."""
        return self.success_once or max(self.labels) >= 0.5


class RewardDataCollector:
    """Collects frames of environments, and writes every finished episode to a folder.

    Successful episodes are positive, all others negative. Files are written in a thread; if
    episodes end faster, `add_env_output` waits. Close it at the end, or use it in a ``with``
    statement. Pass `watch` to a `Collector`.

    Args:
        config: Cameras, folders and limits.
        n_envs: Number of environments.
        note: Called before a file is written; see `Journal.note`.
    """

    def __init__(
        self,
        config: DataCollectionConfig,
        n_envs: int,
        note: Callable[[pathlib.Path, bytes], object] = lambda *_: None,
    ) -> None:
        if n_envs < 1:
            raise ValueError(f"n_envs is {n_envs}, but has to be 1 or more")
        self.config = config
        self.n_envs = n_envs
        self._note = note
        self._open: dict[int, _Episode] = {}
        self.break_off()
        # Keys: whether trajectories are positive.
        folders = (config.positive_dir, config.negative_dir)
        limits = [
            math.inf if limit is None else limit
            for limit in (config.max_positive_trajectories, config.max_negative_trajectories)
        ]
        self._folders = dict(zip((True, False), map(pathlib.Path, folders), strict=True))
        self._limits = dict(zip((True, False), limits, strict=True))
        tree = [each for folder in self._folders.values() for each in (folder, folder.parent)]
        self._made = [each for each in tree if not each.exists()]
        for folder in self._folders.values():
            folder.mkdir(parents=True, exist_ok=True)
            remove_stale(folder)
        # Includes episodes that are not yet written.
        self._numbers = dict(zip((True, False), self.counts, strict=True))
        self._waiting: deque[Future[None]] = deque()
        self._error: BaseException | None = None
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "reward data")
        atexit.register(self.close)

    @property
    def counts(self) -> tuple[int, int]:
        """Number of positive and negative trajectories in the folders."""
        return count_trajectories(self._folders[True]), count_trajectories(self._folders[False])

    @property
    def full(self) -> bool:
        """Whether both limits are reached."""
        return self._reached(True) and self._reached(False)

    def add_env_output(
        self,
        env_output: Mapping[str, Any],
        env_info: Mapping[str, Any],
        is_last_step: bool | np.ndarray | torch.Tensor,
    ) -> None:
        """Add a frame of each environment; write the episodes that end.

        Args:
            env_output: ``obs``: observations after the step, images by camera ([rows, H, W, C] or
                [rows, C, H, W]; uint8, or float in [0, 1]). For environments that reset in the same
                step, ``final_obs``: the true last observations, as arrays like ``obs`` or as one
                observation per finished row; it may also be in ``env_info``. ``env_ids``:
                environments of the rows, if not all. ``dummy``: rows that are not steps.
            env_info: ``success``, ``is_success`` or ``success_frame``: whether the frame of each
                row shows success. ``success_once``: whether the episode has succeeded so far.
                Finished rows read them from ``final_info``, if it has them.
            is_last_step: Whether episodes end here, for all rows or for each.
        """
        self._settle(max(_WAITING, self.n_envs) + 1)
        if self.full:
            self.break_off()
            return
        env_ids = env_output.get("env_ids")
        ids = range(self.n_envs) if env_ids is None else [int(env) for env in env_ids]
        last = column(is_last_step, "is_last_step", len(ids)) > 0
        real = np.ones(len(ids), bool)
        if env_output.get("dummy") is not None:
            real = column(env_output["dummy"], "dummy", len(ids)) == 0
        if not real.any():
            return
        labels = _labels(env_info, last, real)
        once = _success_of_rows(env_info, last, ["success_once"]) > 0
        images = {key: self._images(env_output["obs"], key) for key in self.config.image_keys}
        for key, array in images.items():
            if len(array) != len(ids):
                raise ValueError(f"there are {len(array)} images of {key!r} for {len(ids)} rows")
        final = _final_obs(env_output, env_info, last & real)
        for row in np.flatnonzero(real).tolist():
            episode = self._open[ids[row]]
            for key, array in images.items():
                shown = _final_row(final, row, key) if last[row] else None
                frame = array[row] if shown is None else self._images(shown, key)[0]
                episode.frames[key].append(frame.copy())
            episode.labels.append(float(labels[row]))
            episode.success_once |= bool(once[row])
            if last[row]:
                self.save_trajectory(ids[row])

    def watch(self, rows: dict[str, Any], step: Step, dummy: np.ndarray | None) -> None:  # noqa: ARG002
        """Add a step of a `Collector`; episodes of restarted environments are dropped.

        Call `break_off` when the `Collector` breaks off or resets.

        Args:
            rows: Observations and actions before the step.
            step: The step.
            dummy: Rows that are not transitions.
        """
        if step.broken is not None:
            self.break_off(step.broken)
        # At episode ends, this is the final observation.
        output = {"obs": step.obs_next, "env_ids": step.env_ids, "dummy": dummy}
        self.add_env_output(output, step.info, step.terminated | step.truncated)

    def save_trajectory(self, env_idx: int) -> None:
        """Write the frames of one environment in the background, if there are any.

        Args:
            env_idx: Number of the environment.
        """
        episode = self._open[env_idx]
        if not episode.labels:
            return
        self.break_off([env_idx])
        self._settle(max(_WAITING, self.n_envs))  # in addition to the one being written
        if self._thread is None:
            raise ValueError("this RewardDataCollector is closed: make a new one")
        if not self._reached(episode.positive):
            self._numbers[episode.positive] += 1
            self._waiting.append(self._thread.submit(self._write, episode, episode.positive))

    def break_off(self, env_ids: Iterable[int] | None = None) -> None:
        """Drop open episodes.

        Args:
            env_ids: Environments; None for all.
        """
        for env in range(self.n_envs) if env_ids is None else env_ids:
            self._open[env] = _Episode({key: [] for key in self.config.image_keys})

    def flush(self) -> None:
        """Wait until every finished episode is written."""
        self._settle(0)

    def close(self) -> None:
        """Write every finished episode, and stop; open episodes are dropped."""
        atexit.unregister(self.close)
        self.break_off()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if self._error is None:
            self._settle(0)
        if not any(self._numbers.values()):  # the run failed at once
            for folder in self._made:
                with suppress(OSError):
                    folder.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _images(self, obs: Any, key: str) -> np.ndarray:
        """Return the images of one camera as uint8, in their own layout.

        An observation that is one array is the image of the only camera.
        """
        if not hasattr(obs, "keys") and len(self.config.image_keys) == 1:
            obs = {key: obs}
        if not hasattr(obs, "keys") or key not in obs:
            there = ", ".join(map(repr, obs.keys())) if hasattr(obs, "keys") else "no keys"
            raise ValueError(
                f"observations have no camera {key!r}: there are {there}; "
                f"name cameras in '{_SECTION}.image_keys'"
            )
        images = to_uint8(np.asarray(to_numpy(obs[key])), key)
        size = self.config.image_size
        if channel_axis(images.shape, size) is None:
            channels = size[0] if size else "1, 3 or 4"
            raise ValueError(
                f"frames of {key!r} have the shape {images.shape[1:]}: they have to be [H, W, C] "
                f"or [C, H, W] of {channels} channels (see '{_SECTION}.image_size')"
            )
        return images

    def _reached(self, positive: bool) -> bool:
        """Return whether a folder is full once all waiting episodes are written."""
        return self._numbers[positive] >= self._limits[positive]

    def _settle(self, most: int) -> None:
        """Wait until at most `most` episodes are unwritten; raise an error of writing."""
        while self._waiting and (len(self._waiting) > most or self._waiting[0].done()):
            error = self._waiting.popleft().exception()
            if error is None:
                continue
            rest = [each.exception() for each in self._waiting]
            self._waiting.clear()
            self._error = error
            if isinstance(error, OSError):
                positive, negative = self.counts
                lost = 1 + sum(each is not None for each in rest)
                self._error = OSError(
                    error.errno or errno.EIO,
                    f"a trajectory could not be written ({error.strerror or error}): {positive} "
                    f"positive and {negative} negative ones are safe in {self._folders[True]} and "
                    f"{self._folders[False]}, {lost} newer ones are lost; free space or choose "
                    f"other folders ('{_SECTION}.positive_dir' and 'negative_dir'), and collect "
                    f"again: it resumes from there",
                )
        if self._error is not None:
            raise self._error

    def _write(self, episode: _Episode, positive: bool) -> None:
        """Write a file; runs in the thread."""
        folder, size = self._folders[positive], self.config.image_size
        found = count_trajectories(folder)  # other processes may write there, too
        # No lock: a lost count is found again in the folder.
        self._numbers[positive] = max(self._numbers[positive], found)
        if found >= self._limits[positive]:
            return
        images = {}
        for key, frames in episode.frames.items():
            stacked = np.stack(frames)
            if channel_axis(stacked.shape, size) == 3:
                stacked = np.ascontiguousarray(np.moveaxis(stacked, 3, 1))
            images[key] = stacked if size is None else resized(stacked, size[1:])
        trajectory = Trajectory(images, np.array(episode.labels, np.float32), positive)
        write_trajectory(folder, trajectory, format=self.config.format, note=self._note)


def add_labels(rows: dict[str, Any], step: Step, dummy: np.ndarray | None) -> None:  # noqa: ARG001
    """Store what `RewardDataCollector.watch` reads of ``info`` with the rows of a step."""
    names = [f"{mark}{name}" for name in (*_LABELS, "success_once") for mark in ("", "_")]
    rows["info"] = {name: step.info[name] for name in names if name in step.info}


# --- inputs of steps


def _final_obs(
    env_output: Mapping[str, Any], env_info: Mapping[str, Any], ended: np.ndarray
) -> Any:
    """Return the final observations; required if ``final_info`` has labels."""
    found = (env_output.get("final_obs"), *map(env_info.get, ("final_obs", "final_observation")))
    final = next((each for each in found if each is not None), None)
    if final is None and ended.any() and env_info.get("final_info") is not None:
        raise ValueError(
            "the environment's info has 'final_info', but there is no 'final_obs': labels and "
            "frames would be of different episodes; add the final observations as 'final_obs'"
        )
    return final


def _final_row(final: Any, row: int, key: str) -> Any:
    """Return the final observation of a row as a batch of one; given by camera or by row."""
    if hasattr(final, "keys"):
        return {name: part[row][None] for name, part in final.items() if name == key}
    found: Any = None if final is None else final[row]
    if hasattr(found, "keys"):
        return {name: part[None] for name, part in found.items()}
    return None if found is None else found[None]


def _labels(env_info: Mapping[str, Any], last: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Return whether frames show success [rows]; required for all real rows."""
    labels = _success_of_rows(env_info, last)
    if np.isnan(labels[real]).any():
        raise ValueError(
            "the environment's info has no 'success' for some steps, only "
            f"{', '.join(env_info) or 'nothing'}: every step has to report whether its frame shows "
            "success (as 'success' or 'is_success')"
        )
    if not ((labels >= 0) & (labels <= 1))[real].all():
        raise ValueError("'success' of the environment's info is not always in [0, 1]")
    return labels


def _success_of_rows(
    env_info: Mapping[str, Any], last: np.ndarray, names: Sequence[str] = _LABELS
) -> np.ndarray:
    """Return success [rows], NaN where info does not report it.

    Environments that reset in the same step report the finished episode in ``final_info``, some of
    them for all rows.
    """
    success, final = reported_success(env_info, len(last), names), env_info.get("final_info")
    ended = reported_success(final if isinstance(final, Mapping) else {}, len(last), names)
    return np.where((last | np.isnan(success)) & ~np.isnan(ended), ended, success)


# --- cameras


def channel_axis(shape: Sequence[int], size: Sequence[int] | None) -> int | None:
    """Return the channel axis of frames [T, H, W, C] or [T, C, H, W]; None if there is none.

    Args:
        shape: Shape of the frames.
        size: Requested channels, height and width, if any.
    """
    possible = CHANNELS if size is None else (size[0],)
    return next((axis for axis in (3, 1) if len(shape) == 4 and shape[axis] in possible), None)


def check_cameras(space: spaces.Space[Any], config: DataCollectionConfig, env_id: str) -> None:
    """Raise an error for cameras that observations do not have.

    Args:
        space: Observation space; a single image is that of the only camera.
        config: Config with the cameras.
        env_id: Id of the environment.
    """
    size = config.image_size
    if not isinstance(space, spaces.Dict):
        is_image = channel_axis((1, *(space.shape or ())), None) is not None
        if not is_image or len(config.image_keys) > 1:
            what = "one image, but image_keys has several names" if is_image else "no image"
            raise ConfigError(
                f"observations of {env_id!r} are {what}: collecting frames needs one image, or a "
                "dictionary with one per camera (for many environments, env.kwargs.obs=both)"
            )
        space = spaces.Dict({config.image_keys[0]: space})
    shapes = {key: part.shape or () for key, part in space.items()}
    cameras = [key for key, shape in shapes.items() if channel_axis((1, *shape), size) is not None]
    sizes = {}
    for key in config.image_keys:
        axis = channel_axis((1, *shapes.get(key, ())), None)
        if key not in cameras and axis is not None:
            raise ConfigError(
                f"image_size requires images of {size and size[0]} channels, but those of "
                f"{key!r} in observations of {env_id!r} are {list(shapes[key])}"
            )
        if key not in cameras:
            what = f"{space[key]}, no image" if key in shapes else "missing"
            raise ConfigError(
                f"image_keys has {key!r}, which in observations of {env_id!r} is {what}: "
                f"{suggestion(key, cameras)}"
            )
        *rest, last = shapes[key]
        sizes[key] = [last, *rest] if axis == 3 else [*rest, last]
    if size is None and len(set(map(tuple, sizes.values()))) > 1:
        listed = ", ".join(f"{key!r} {each}" for key, each in sizes.items())
        raise ConfigError(
            f"images have several sizes ({listed}), but a classifier needs one size: set "
            "image_size, for example to [3, 64, 64]"
        )

"""`RewardDataCollector`: camera frames and whether they show success, a file for each episode."""

from __future__ import annotations

import atexit
import errno
import pathlib
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from guerdon.collect.cameras import channel_axis
from guerdon.data.frames import Trajectory, next_number, write_trajectory
from guerdon.data.pictures import resized
from guerdon.data.trajectory_files import count_trajectories, remove_stale, to_uint8

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from guerdon.config.schema import DataCollectionConfig
    from guerdon.envs import Step

_SECTION = "reward.data_collection"
_LABELS = ("success_frame", "success")
_WAITING = 16  # finished episodes, or one an environment; whoever brings the next one waits


@dataclass
class _Episode:
    """What is known of an episode that goes on: frames as they came, by camera."""

    frames: dict[str, list[np.ndarray]]
    labels: list[float] = field(default_factory=list)
    success_once: bool = False

    @property
    def positive(self) -> bool:
        """Whether it goes to the positive ones: it succeeded once, or a label is 0.5 or more."""
        return self.success_once or max(self.labels) >= 0.5


class RewardDataCollector:
    """Keeps the frames of each environment, and writes every episode that ends to a folder.

    Positive are episodes that succeeded, all others negative. Files are written in the background;
    when they come too fast, `add_env_output` waits. Close it at the end, or use it in ``with``.
    An instance's `watch` is for a `Collector`.

    Args:
        config: Which cameras, and where to.
        n_envs: Number of environments.
    """

    def __init__(self, config: DataCollectionConfig, n_envs: int) -> None:
        if n_envs < 1:
            raise ValueError(f"n_envs is {n_envs}, but has to be 1 or more")
        self.config = config
        self.n_envs = n_envs
        self._open = [self._new_episode() for _ in range(n_envs)]
        self._writer = _Writer(config, max(_WAITING, n_envs))

    @property
    def counts(self) -> tuple[int, int]:
        """Positive and negative trajectories that are in the folders now."""
        return self._writer.counts()

    @property
    def full(self) -> bool:
        """Whether there are as many trajectories of both kinds as are wanted."""
        return self._writer.reached(True) and self._writer.reached(False)

    def add_env_output(
        self,
        env_output: Mapping[str, Any],
        env_info: Mapping[str, Any],
        is_last_step: bool | np.ndarray | torch.Tensor,
    ) -> None:
        """Adds a frame for each environment; episodes that ended with it are written.

        Args:
            env_output: ``obs``: what the step led to, images by camera ([rows, H, W, C] or
                [rows, C, H, W]; uint8, or float in [0, 1]). Where environments reset themselves
                in the same step, ``final_obs``: the true last observations, as arrays like ``obs``
                or as one observation for each row that ended; ``env_info`` may have it, too.
                ``env_ids``: whose rows these are, if not everybody's. ``dummy``: rows that are no
                steps.
            env_info: ``success`` or ``success_frame``: whether the frame shows success, for each
                row. ``success_once``: whether the episode succeeded so far. Where ``final_info``
                has them, rows that ended take them from there.
            is_last_step: Whether episodes end here, for all rows or for each.
        """
        self._writer.check()
        if self.full:
            self.break_off()
            return
        env_ids = env_output.get("env_ids")
        ids = range(self.n_envs) if env_ids is None else [int(env) for env in env_ids]
        ends = _numpy(is_last_step)
        ends = ends if ends.ndim else np.full(len(ids), ends)
        last = _column(ends, "is_last_step", len(ids)).astype(bool)
        counts = np.ones(len(ids), bool)
        if env_output.get("dummy") is not None:
            counts = ~_column(env_output["dummy"], "dummy", len(ids)).astype(bool)
        if not counts.any():
            return
        labels = _labels(env_info, last, counts)
        once = _told(env_info, "success_once", last)[0] > 0
        images = {key: self._images(env_output["obs"], key) for key in self.config.image_keys}
        for key, array in images.items():
            if len(array) != len(ids):
                raise ValueError(f"there are {len(array)} images of {key!r} for {len(ids)} rows")
        final = _final_obs(env_output, env_info, last & counts)
        for row in np.flatnonzero(counts).tolist():
            episode = self._open[ids[row]]
            for key, array in images.items():
                shown = _final(final, row, key) if last[row] else None
                frame = array[row] if shown is None else self._images(shown, key)[0]
                episode.frames[key].append(frame.copy())
            episode.labels.append(labels[row])
            episode.success_once |= bool(once[row])
            if last[row]:
                self.save_trajectory(ids[row])

    def watch(self, rows: dict[str, Any], step: Step, dummy: np.ndarray | None) -> None:  # noqa: ARG002
        """Adds a step of a `Collector`; episodes of restarted environments are dropped.

        When the `Collector` itself breaks off or resets, `break_off` has to be called.

        Args:
            rows: What the step began with.
            step: What came of it.
            dummy: Rows that count for nothing.
        """
        if step.broken is not None:
            self.break_off(step.broken)
        seen = step.obs_next  # the true last one of episodes that end
        output = {"obs": seen, "final_obs": seen, "env_ids": step.env_ids, "dummy": dummy}
        self.add_env_output(output, step.info, step.terminated | step.truncated)

    def save_trajectory(self, env_idx: int) -> None:
        """Hands the frames of one environment to be written, if there are any.

        Args:
            env_idx: The environment.
        """
        episode = self._open[env_idx]
        if episode.labels:
            self._open[env_idx] = self._new_episode()
            self._writer.put(episode)

    def break_off(self, env_ids: Iterable[int] | None = None) -> None:
        """Forgets episodes that have not ended.

        Args:
            env_ids: Of these environments; None is all.
        """
        for env in range(self.n_envs) if env_ids is None else env_ids:
            self._open[env] = self._new_episode()

    def flush(self) -> None:
        """Waits until every episode that ended is on disk."""
        self._writer.flush()

    def close(self) -> None:
        """Waits until every episode that ended is on disk, and ends; open ones are dropped."""
        self.break_off()
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _new_episode(self) -> _Episode:
        return _Episode({key: [] for key in self.config.image_keys})

    def _images(self, obs: Any, key: str) -> np.ndarray:
        """The images of one camera, in uint8 and as they lie."""
        if not hasattr(obs, "keys") or key not in obs:
            there = ", ".join(map(repr, obs.keys())) if hasattr(obs, "keys") else "no keys at all"
            raise ValueError(
                f"observations have no camera {key!r}: there are {there}; "
                f"name cameras in '{_SECTION}.image_keys'"
            )
        images = to_uint8(_numpy(obs[key]), key)
        size = self.config.image_size
        if images.ndim != 4 or channel_axis(images.shape, size) is None:
            channels = size[0] if size else "1, 3 or 4"
            raise ValueError(
                f"frames of {key!r} have the shape {images.shape[1:]}: they have to be [H, W, C] "
                f"or [C, H, W] of {channels} channels (see '{_SECTION}.image_size')"
            )
        return images


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _column(values: Any, name: str, n_rows: int) -> np.ndarray:
    """One value a row."""
    array = _numpy(values)
    if array.size != n_rows:
        raise ValueError(
            f"{name!r} has the shape {array.shape} for {n_rows} rows: give one value for each, "
            f"whether its episode ended or not"
        )
    return array.reshape(n_rows)


def _final_obs(
    env_output: Mapping[str, Any], env_info: Mapping[str, Any], ended: np.ndarray
) -> Any:
    """The true last observations, which have to come along with the labels of these."""
    found = (
        env_output.get("final_obs"),
        *(env_info.get(name) for name in ("final_obs", "final_observation")),
    )
    final = next((each for each in found if each is not None), None)
    if final is None and ended.any() and env_info.get("final_info") is not None:
        raise ValueError(
            "the environment's info has 'final_info', but nobody gives 'final_obs': labels would "
            "be of the episodes that ended, and frames of those that began; add the last "
            "observations as 'final_obs'"
        )
    return final


def _final(final: Any, row: int, key: str) -> dict[str, Any] | None:
    """A row's final observation as a batch of one, where there is one; given by camera or row."""
    if hasattr(final, "keys"):
        return {name: part[row][None] for name, part in final.items() if name == key}
    found = None if final is None else final[row]
    return None if found is None else {name: part[None] for name, part in found.items()}


def _labels(env_info: Mapping[str, Any], last: np.ndarray, counts: np.ndarray) -> list[float]:
    """Whether the frame shows success, for each row; those that count have to say so."""
    name = next((name for name in _LABELS if _knows(env_info, name)), "success")
    labels, told = _told(env_info, name, last)
    if not told[counts].all():
        raise ValueError(
            f"the environment's info has no {name!r} for some steps, only "
            f"{', '.join(env_info) or 'nothing'}: every step has to say whether its frame shows "
            f"success"
        )
    if not ((labels >= 0) & (labels <= 1))[counts].all():
        raise ValueError(f"{name!r} of the environment's info is not always in [0, 1]")
    return labels.tolist()  # type: ignore[no-any-return]


def _knows(env_info: Mapping[str, Any], name: str) -> bool:
    final = env_info.get("final_info")
    return name in env_info or (isinstance(final, Mapping) and name in final)


def _told(
    env_info: Mapping[str, Any], name: str, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The values of one name for each row, and who told: 0 for those who did not.

    Vectors that reset themselves tell of the old episode in ``final_info``, some of them about all
    rows.
    """
    values, told = _given(env_info, name, len(last))
    final = env_info.get("final_info")
    if isinstance(final, Mapping) and name in final:
        final_values, final_told = _given(final, name, len(last))
        takes = final_told & (last | ~told)
        values, told = np.where(takes, final_values, values), told | takes
    return values, told


def _given(info: Mapping[str, Any], name: str, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    if name not in info:
        return np.zeros(n_rows), np.zeros(n_rows, bool)
    told = _column(info.get(f"_{name}", np.ones(n_rows)), f"_{name}", n_rows).astype(bool)
    return np.where(told, _column(info[name], name, n_rows), 0).astype(np.float64), told


# --- in the background


def _trajectory(episode: _Episode, size: Sequence[int] | None) -> Trajectory:
    images = {}
    for key, frames in episode.frames.items():
        stacked = np.stack(frames)
        if channel_axis(stacked.shape, size) == 3:
            stacked = np.ascontiguousarray(np.moveaxis(stacked, 3, 1))
        images[key] = stacked if size is None else resized(stacked, size[1:])
    return Trajectory(images, np.array(episode.labels, np.float32), episode.positive)


class _Writer:
    """Writes episodes to their folders in a thread, until there are enough or one fails."""

    def __init__(self, config: DataCollectionConfig, most_waiting: int) -> None:
        self._config = config
        self._folders = {
            True: pathlib.Path(config.positive_dir),
            False: pathlib.Path(config.negative_dir),
        }
        self._limits = {
            True: config.max_positive_trajectories,
            False: config.max_negative_trajectories,
        }
        for folder in self._folders.values():
            folder.mkdir(parents=True, exist_ok=True)
            remove_stale(folder)
        self._next = {kind: next_number(folder) for kind, folder in self._folders.items()}
        self._numbers = dict(zip((True, False), self.counts(), strict=True))  # with those waiting
        self._lost = 0
        self._error: BaseException | None = None
        self._error_told = False
        self._lock = threading.Lock()
        self._queue: queue.Queue[tuple[bool, _Episode] | None] = queue.Queue(most_waiting)
        self._thread = threading.Thread(target=self._run, name="reward data", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # the thread alone would be ended with episodes waiting

    def counts(self) -> tuple[int, int]:
        positive, negative = (count_trajectories(self._folders[kind]) for kind in (True, False))
        return positive, negative

    def reached(self, positive: bool) -> bool:
        """Whether a folder will have as many as are wanted when all that wait are written."""
        limit = self._limits[positive]
        return limit is not None and self._numbers[positive] >= limit

    def put(self, episode: _Episode) -> None:
        self.check()
        if not self._thread.is_alive():
            raise ValueError("this RewardDataCollector is closed: make a new one")
        positive = episode.positive
        with self._lock:
            if self.reached(positive):
                return
            self._numbers[positive] += 1
        self._queue.put((positive, episode))

    def check(self) -> None:
        """Raises what went wrong in the thread."""
        if self._error is None:
            return
        self._error_told = True
        if not isinstance(self._error, OSError):
            raise self._error
        self._queue.join()  # so that all that are lost are counted
        positive, negative = self.counts()
        raise OSError(
            self._error.errno or errno.EIO,
            f"a trajectory could not be written ({self._error.strerror or self._error}): "
            f"{positive} positive and {negative} negative ones are safe in {self._folders[True]} "
            f"and {self._folders[False]}, {self._lost} newer ones are lost; make room or choose "
            f"other folders ('{_SECTION}.positive_dir' and 'negative_dir'), and collect again: "
            f"it goes on from there",
        ) from self._error

    def flush(self) -> None:
        self._queue.join()
        self.check()

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        if not self._error_told:
            self.check()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if self._error is None:
                    self._write(*item)
                else:
                    self._lost += 1
            except BaseException as error:  # whoever adds the next step gets it
                self._lost += 1
                self._error = error
            finally:
                self._queue.task_done()
        self._queue.task_done()

    def _write(self, positive: bool, episode: _Episode) -> None:
        folder, limit = self._folders[positive], self._limits[positive]
        if limit is not None:
            found = count_trajectories(folder)  # others may write there, too
            with self._lock:
                self._numbers[positive] = max(self._numbers[positive], found)
            if found >= limit:
                return
        trajectory = _trajectory(episode, self._config.image_size)
        path = write_trajectory(
            folder, trajectory, format=self._config.format, number=self._next[positive]
        )
        self._next[positive] = int(path.stem) + 1

"""Videos of episodes: MP4 files, written while a policy plays."""

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled

from guerdon.config.schema import EnvConfig
from guerdon.envs import UnusableEnvironmentError, VectorEnv
from guerdon.envs.factory import ATARI_FRAME_SKIP, AnyEnv
from guerdon.extras import MissingExtraError, install_command, require
from guerdon.training.parts import make_env

EXTRA = "video"


def make_filmed_env(
    config: EnvConfig, folder: str | Path, n_films: int = 3
) -> "tuple[VectorEnv, list[Film]]":
    """Make environments of which the first ones record their first episode.

    Args:
        config: The section ``env``; its backend is replaced by ``base``.
        folder: Folder of ``episode_1.mp4`` and so on; older ones are replaced.
        n_films: Number of environments that record.

    Returns:
        The environments, and their recorders.
    """
    require("imageio_ffmpeg", EXTRA)
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it prints to stdout
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not screen:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
    films: list[Film] = []

    def film(env: AnyEnv) -> AnyEnv:
        if len(films) == n_films:
            return env
        path = Path(folder) / f"episode_{len(films) + 1}.mp4"
        films.append(Film(env, path, frame_skip=ATARI_FRAME_SKIP if config.atari else 1))
        return films[-1]

    wrappers = [*config.wrappers, film]
    try:
        env = make_env(config, backend="base", wrappers=wrappers, render_mode="rgb_array")
    except UnusableEnvironmentError as error:
        if "render_mode" not in str(error):
            raise
        raise ValueError(f"{config.id} cannot be filmed: it takes no render_mode") from error
    return env, films


class Film(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records the first episode of an environment with the render mode ``rgb_array``.

    Args:
        env: The environment.
        path: The file; it exists once the episode has ended.
        frame_skip: Frames of the environment in a step, of which one is recorded.
    """

    def __init__(self, env: AnyEnv, path: Path, frame_skip: int = 1) -> None:
        super().__init__(env)
        self.path = path
        self.finished = False  # whether the episode has ended
        self._rate = float(env.metadata.get("render_fps") or 30) / frame_skip
        self._unfinished = path.with_name(f".{path.name}")
        self._writer: Any = None  # a generator that is sent frames

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and start to record unless an episode is finished."""
        found = super().reset(seed=seed, options=options)
        self._stop()
        if not self.finished:
            frame = self._frame()
            height, width, _ = frame.shape
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = require("imageio_ffmpeg", EXTRA).write_frames(
                str(self._unfinished),
                (width, height),
                fps=self._rate,
                macro_block_size=2,  # the smallest that the format allows: odd sizes are scaled
                ffmpeg_log_level="quiet",
            )
            self._writer.send(None)
            self._send(frame)
        return found

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and record the frame after it."""
        step = super().step(action)
        if self._writer is not None:
            self._send(self._frame())
            if step[2] or step[3]:
                self.finished = True
                self._stop()
        return step

    def _send(self, frame: np.ndarray) -> None:
        try:
            self._writer.send(frame)
        except OSError as error:  # of the pipe to ffmpeg, which has ended
            reason = "ffmpeg cannot write this video; the disk may be full, or cannot be written"
            raise OSError(errno.EIO, reason, str(self.path)) from error

    def close(self) -> None:
        """Close the environment; an unfinished recording is removed."""
        self._stop()
        super().close()

    def _stop(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            if self.finished:
                self._unfinished.replace(self.path)
            else:
                with suppress(OSError):
                    self._unfinished.unlink(missing_ok=True)

    def _frame(self) -> np.ndarray:
        name = self.env.spec.id if self.env.spec else type(self.env.unwrapped).__name__
        try:
            frame: Any = self.env.render()
        except DependencyNotInstalled as error:
            missing = str(error).partition(",")[0]  # without Gymnasium's own advice
            raise MissingExtraError(
                f"{name} cannot be filmed, {missing}: {install_command(EXTRA)}"
            ) from error
        except Exception as error:  # of any renderer: OpenGL, MuJoCo, a user's own code
            raise ValueError(
                f"{name} cannot be filmed, its rendering fails: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
            raise ValueError(f"{name} cannot be filmed: it renders no images (rgb_array)")
        return np.ascontiguousarray(frame, np.uint8)

"""Image observations, in addition to states, of environments that render."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator

from guerdon.data.frames import resized
from guerdon.envs.factory import AnyEnv
from guerdon.envs.ids import UnusableEnvironmentError
from guerdon.envs.rows import reported_success
from guerdon.envs.tabletop import CAMERA, ObsMode, check_obs, observation_space
from guerdon.extras import require
from guerdon.nn.spaces import is_image

SIZE = 64
"""Default height and width of images."""
_WHOLE = "whole"  # an observation that is no dictionary


class ImageObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds images to observations, and success to infos.

    ``info["success"]`` is the success of a step, ``info["success_once"]`` that of any step of the
    episode so far; both are missing if `succeeded` returns None.

    Args:
        env: Environment with observations of a fixed size. For observations with goals, the state
            consists of ``observation`` and ``desired_goal``. Images are no part of the state.
        obs: Observation: ``state``, ``image``, or ``both`` in a dictionary with the keys ``state``
            and ``base_camera``. An environment that observes only images has no state.
        camera_size: Height and width of the image.
        image: Returns an image, uint8 [height, width, 3], of any size. By default the environment
            is rendered, and has to be made with ``render_mode="rgb_array"``.
        succeeded: Returns the success of a step from its reward, whether it terminated, and its
            info; by default the info's ``success``, or another name in `SUCCESS`.
    """

    def __init__(
        self,
        env: AnyEnv,
        obs: ObsMode = "both",
        camera_size: int = SIZE,
        image: Callable[[], Any] | None = None,
        succeeded: Callable[[float, bool, dict[str, Any]], Any] | None = None,
    ) -> None:
        super().__init__(env)
        self._obs, self._size = obs, camera_size
        self._render_image: Callable[[], Any] = image or env.render
        self._succeeded = succeeded or _info_success
        self._once = False
        self._read = _read_space(env.observation_space)
        size = spaces.flatdim(self._read) if self._read.spaces else 0
        if obs == "state" and not size:
            raise UnusableEnvironmentError(f"{env} observes only images, no state: set obs=image")
        state = spaces.Box(-np.inf, np.inf, (size,))
        self.observation_space = observation_space(obs, state, camera_size)
        if obs == "both" and not size:
            pixels = observation_space("image", state, camera_size)
            self.observation_space = spaces.Dict({CAMERA: pixels})
        if obs != "state":
            self._check_image()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        self._once = False
        observation, info = self.env.reset(seed=seed, options=options)
        return self._observed(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        success = self._succeeded(float(reward), terminated, info)
        if success is not None:
            self._once |= bool(success)
            info = {**info, "success": bool(success), "success_once": self._once}
        return self._observed(observation), reward, terminated, truncated, info

    def _observed(self, observation: Any) -> Any:
        if self._obs == "image":
            return self._image()
        if not self._read.spaces:
            return {CAMERA: self._image()}
        if not isinstance(observation, dict):
            observation = {_WHOLE: observation}
        observation = {key: observation[key] for key in self._read}
        state = np.asarray(spaces.flatten(self._read, observation), np.float32)
        if self._obs == "state":
            return state
        return {"state": state, CAMERA: self._image()}

    def _image(self) -> np.ndarray:
        """Return a resized copy of the image."""
        channels_first = np.moveaxis(self._render_image(), 2, 0)
        return np.moveaxis(resized(channels_first, (self._size, self._size)), 0, 2).copy()

    def _check_image(self) -> None:
        """Render once, to report missing requirements early."""
        try:
            self.env.reset()
            image = self._render_image()
        except gymnasium.error.Error:
            raise
        except Exception as error:  # many types are possible
            raise UnusableEnvironmentError(
                f"{self.env} cannot be rendered here ({error or type(error).__name__}): without a "
                f"screen, MuJoCo needs MUJOCO_GL=egl and Debian's libegl1, libopengl0 and "
                f"libgl1-mesa-dri"
            ) from error
        if getattr(image, "dtype", None) != np.uint8 or image.shape[2:] != (3,):
            raise UnusableEnvironmentError(
                f"{self.env} renders a {type(image).__name__}, not an RGB image: make it with "
                f"env.kwargs.render_mode=rgb_array"
            )


def _read_space(space: spaces.Space[Any]) -> spaces.Dict:
    """Return the parts of a space that form the state; without images, which a state is not."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {_WHOLE: space}
    if {"observation", "desired_goal"} <= {*parts}:
        parts = {key: parts[key] for key in ("observation", "desired_goal")}
    read = spaces.Dict([(key, part) for key, part in parts.items() if not is_image(part)])
    if not read.is_np_flattenable:
        raise UnusableEnvironmentError(f"a state needs a fixed size, but this one is {space}")
    return read


def _info_success(reward: float, terminated: bool, info: dict[str, Any]) -> Any:  # noqa: ARG001
    success = reported_success(info, 1)[0]
    return None if np.isnan(success) else success


# --- Gymnasium-Robotics


def camera_spec(spec: EnvSpec) -> EnvSpec:
    """Add the options `obs` and `camera_size` to a Gymnasium-Robotics registration."""
    # The original entry point is no option, which a config could replace by other code.
    return replace(spec, entry_point=partial(make_robotics, spec.entry_point))


def make_robotics(
    entry_point: Any,
    /,
    obs: ObsMode | None = None,
    camera_size: int = SIZE,
    render_mode: str | None = None,
    **options: Any,
) -> AnyEnv:
    """Make a Gymnasium-Robotics environment.

    Args:
        entry_point: Original entry point.
        obs: Observation, as in `ImageObservation`; None for the environment's own, with goals.
        camera_size: Height and width of the image; it is rendered twice as large.
        render_mode: Render mode of Gymnasium.
        options: Arguments of the environment.
    """
    _compare_joints_as_numbers()
    maker: Any = load_env_creator(entry_point)
    if obs is None:
        return maker(render_mode=render_mode, **options)  # type: ignore[no-any-return]
    check_obs(obs, camera_size)
    if obs != "state":
        _render_without_a_screen()
        render_mode = "rgb_array"
        options = {"width": 2 * camera_size, "height": 2 * camera_size, **options}
    return ImageObservation(maker(render_mode=render_mode, **options), obs, camera_size)


def _render_without_a_screen() -> None:
    """Select EGL; Gymnasium would try GLFW first, which fails too late for a fallback."""
    if sys.platform == "linux" and not (os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}):
        os.environ.setdefault("MUJOCO_GL", "egl")


def _compare_joints_as_numbers() -> None:
    """Make Gymnasium-Robotics 1.4 work with MuJoCo 3.12 and later.

    There ``number in (enum, ...)``, which it asserts, is False for array elements:
    https://github.com/google-deepmind/mujoco_warp/pull/1630
    """
    utils = require("gymnasium_robotics.utils.mujoco_utils", "robotics")
    joints: Any = utils.mujoco.mjtJoint
    if joints.mjJNT_HINGE != np.int32(joints.mjJNT_HINGE):
        numbers = {name: int(joint) for name, joint in joints.__members__.items()}
        known = {**vars(utils.mujoco), "mjtJoint": SimpleNamespace(**numbers)}
        utils.mujoco = SimpleNamespace(**known)  # type: ignore[attr-defined]

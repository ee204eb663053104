"""Pictures beside states, from environments that render."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from guerdon.data.pictures import resized
from guerdon.envs.ids import UnusableEnvironmentError
from guerdon.envs.tabletop import CAMERA, Observed
from guerdon.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from gymnasium.envs.registration import EnvSpec

    from guerdon.envs.factory import AnyEnv

SIZE = 64
"""Height and width of pictures, where nothing else is said."""


class Pictures(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Observations become a state and a picture, and infos tell of success.

    ``info["success"]`` says that a step ends in success, and ``info["success_once"]`` that one of
    this episode did; both are missing where `succeeded` does not know.

    Args:
        env: What it observes has to be so many numbers; of goals, the state has only that which is
            desired.
        obs: What is observed: ``state``, ``image``, or ``both`` in a dictionary with the keys
            ``state`` and ``base_camera``.
        camera_size: Height and width of the picture.
        picture: Gives a picture, uint8 [height, width, 3], of any size; where left out, the
            environment renders it, and has to be made with ``render_mode="rgb_array"``.
        succeeded: Whether a step ends in success, from its reward, whether it terminated, and its
            info; where left out, the info's ``success`` or ``is_success``.
    """

    def __init__(
        self,
        env: AnyEnv,
        obs: Observed = "both",
        camera_size: int = SIZE,
        picture: Callable[[], Any] | None = None,
        succeeded: Callable[[float, bool, dict[str, Any]], Any] | None = None,
    ) -> None:
        super().__init__(env)
        check_observed(obs, camera_size)
        self._obs, self._size = obs, camera_size
        self._picture: Callable[[], Any] = picture or env.render
        self._succeeded = succeeded or _told
        self._once = False
        self._read = _read_space(env.observation_space)
        parts: dict[str, spaces.Space[Any]] = {
            "state": spaces.Box(-np.inf, np.inf, (spaces.flatdim(self._read),)),
            CAMERA: spaces.Box(0, 255, (camera_size, camera_size, 3), np.uint8),
        }
        plain = {"state": parts["state"], "image": parts[CAMERA]}
        self.observation_space = plain.get(obs, spaces.Dict(list(parts.items())))
        if obs != "state":
            self._look()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins a new episode."""
        self._once = False
        observation, info = self.env.reset(seed=seed, options=options)
        return self._observed(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes one step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        success = self._succeeded(float(reward), terminated, info)
        if success is not None:
            self._once |= bool(success)
            info = {**info, "success": bool(success), "success_once": self._once}
        return self._observed(observation), reward, terminated, truncated, info

    def _observed(self, observation: Any) -> Any:
        if self._obs == "image":
            return self._seen()
        if isinstance(self._read, spaces.Dict):
            observation = {key: observation[key] for key in self._read}
        state = np.asarray(spaces.flatten(self._read, observation), np.float32)
        if self._obs == "state":
            return state
        return {"state": state, CAMERA: self._seen()}

    def _seen(self) -> np.ndarray:
        """The picture in its size, and no view of one that may be painted over."""
        channels_first = np.moveaxis(self._picture(), 2, 0)
        return np.moveaxis(resized(channels_first, (self._size, self._size)), 0, 2).copy()

    def _look(self) -> None:
        """Sees whether there is a picture: later, nobody could say what is missing."""
        try:
            self.env.reset()
            picture = self._picture()
        except gymnasium.error.Error:
            raise
        except Exception as error:  # what rendering lacks is told in many ways
            raise UnusableEnvironmentError(
                f"{self.env} cannot be rendered here ({error or type(error).__name__}): without a "
                f"screen, MuJoCo needs MUJOCO_GL=egl and Debian's libegl1, libopengl0 and "
                f"libgl1-mesa-dri"
            ) from error
        if getattr(picture, "dtype", None) != np.uint8 or picture.shape[2:] != (3,):
            raise UnusableEnvironmentError(
                f"{self.env} renders a {type(picture).__name__} and no picture of red, green and "
                f"blue: make it with env.kwargs.render_mode=rgb_array"
            )


def check_observed(obs: str, camera_size: int) -> None:
    """Refuses what `Pictures` cannot observe."""
    if obs not in get_args(Observed):
        raise UnusableEnvironmentError(
            f"obs is {obs!r}, but has to be one of {', '.join(get_args(Observed))}"
        )
    if camera_size < 1:
        raise UnusableEnvironmentError(f"camera_size is {camera_size}, but has to be 1 or more")


def _read_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The part of a space that states are made from."""
    if isinstance(space, spaces.Dict) and {"observation", "desired_goal"} <= {*space}:
        space = spaces.Dict([(key, space[key]) for key in ("observation", "desired_goal")])
    if not space.is_np_flattenable:
        raise UnusableEnvironmentError(f"a state is of so many numbers, but here it is {space}")
    return space


def _told(reward: float, terminated: bool, info: dict[str, Any]) -> Any:  # noqa: ARG001
    return info.get("success", info.get("is_success"))


# --- Gymnasium-Robotics


def camera_spec(spec: EnvSpec) -> EnvSpec:
    """A registration of Gymnasium-Robotics whose environments take `obs` and `camera_size`."""
    kwargs = {**spec.kwargs, "entry_point": spec.entry_point}
    return replace(spec, entry_point=f"{__name__}:make_robotics", kwargs=kwargs)


def make_robotics(
    entry_point: str,
    obs: Observed | None = None,
    camera_size: int = SIZE,
    render_mode: str | None = None,
    **options: Any,
) -> AnyEnv:
    """An environment of Gymnasium-Robotics.

    Args:
        entry_point: What makes it.
        obs: What is observed, as in `Pictures`; None leaves its goals as they are.
        camera_size: Height and width of the picture; it is rendered twice as large.
        render_mode: Of Gymnasium.
        options: Arguments of the environment.
    """
    _compare_joints_as_numbers()
    maker: Any = load_env_creator(entry_point)
    if obs is None:
        return maker(render_mode=render_mode, **options)  # type: ignore[no-any-return]
    check_observed(obs, camera_size)
    if obs != "state":
        _render_without_a_screen()
        render_mode = "rgb_array"
        options = {"width": 2 * camera_size, "height": 2 * camera_size, **options}
    return Pictures(maker(render_mode=render_mode, **options), obs, camera_size)


def _render_without_a_screen() -> None:
    """Gymnasium would try GLFW first, which fails only when it is too late for another."""
    if sys.platform == "linux" and not (os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}):
        os.environ.setdefault("MUJOCO_GL", "egl")


def _compare_joints_as_numbers() -> None:
    """Makes Gymnasium-Robotics 1.4 work with MuJoCo 3.12 and later.

    There ``number in (enum, ...)``, which it asserts, is false for numbers from arrays:
    https://github.com/google-deepmind/mujoco_warp/pull/1630
    """
    utils = require("gymnasium_robotics.utils.mujoco_utils", "robotics")
    joints: Any = utils.mujoco.mjtJoint
    if joints.mjJNT_HINGE != np.int32(joints.mjJNT_HINGE):
        numbers = {name: int(joint) for name, joint in joints.__members__.items()}
        known = {**vars(utils.mujoco), "mjtJoint": SimpleNamespace(**numbers)}
        utils.mujoco = SimpleNamespace(**known)  # type: ignore[attr-defined]

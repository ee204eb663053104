"""ManiSkill tasks: robots simulated and rendered by SAPIEN."""

import ctypes
import os
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from guerdon.envs.batched import BatchedEnv, SingleEnv
from guerdon.envs.cameras import SIZE
from guerdon.envs.ids import UnusableEnvironmentError
from guerdon.envs.tabletop import ObsMode, check_obs
from guerdon.extras import require

_MODES = {"state": "state", "image": "rgb", "both": "state+rgb"}
_SWIFTSHADER = "vk_swiftshader_icd.json"
_PLACES = (
    "/usr/lib/chromium",  # Debian
    "/usr/lib/chromium-browser",
    "/usr/lib64/chromium-browser",
    "/opt/google/chrome",
)
_CPU = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU
_DRIVERS = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")


def maniskill_spec(spec: EnvSpec) -> EnvSpec:
    """Register `ManiSkill` instead of ManiSkill's own environment."""
    return replace(
        spec,
        entry_point=partial(ManiSkill, spec.id),  # a config cannot name another task
        vector_entry_point=None,
        additional_wrappers=(),
        kwargs={},
    )


class ManiSkillVector(BatchedEnv):
    """Vector of `ManiSkill`, with the same options; several environments require a GPU."""

    def __init__(
        self,
        num_envs: int = 1,
        task: str = "PushCube-v1",
        obs: ObsMode = "state",
        camera_size: int = SIZE,
        terminate: bool = False,
        max_episode_steps: int | None = None,
        control_mode: str | None = None,
        reward_mode: str | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        check_obs(obs, camera_size)
        if "obs_mode" in options:
            raise UnusableEnvironmentError("use obs instead of obs_mode: state, image or both")
        size = {"width": camera_size, "height": camera_size}
        sensors = {**size, **options.pop("sensor_configs", {})}
        self._env = _make(
            task,
            num_envs=num_envs,
            obs_mode=_MODES[obs],
            sensor_configs=sensors,
            control_mode=control_mode,
            reward_mode=reward_mode,
            render_mode=render_mode,
            **options,
        )
        self.render_mode = render_mode
        self._obs, self._terminate = obs, terminate
        self._once = np.zeros(num_envs, bool)
        self._raw_obs: Any = self._env._init_raw_obs
        super().__init__(
            num_envs, _space(self._observe()), self._env.single_action_space, max_episode_steps
        )

    def _begin(self, ids: np.ndarray) -> None:
        self._once[ids] = False
        # Without seeds, tasks would use torch's global generator.
        seeds = self.np_random.integers(2**31, size=self.num_envs).tolist()
        torch = require("torch", "maniskill")
        rows = torch.as_tensor(ids, device=self._env.device)
        # ManiSkill writes to tensors of earlier steps, also outside a collector's inference mode.
        with torch.inference_mode(mode=False):
            self._raw_obs, _ = self._env.reset(seed=seeds, options={"env_idx": rows})

    def _move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        torch = require("torch", "maniskill")
        with torch.inference_mode(mode=False):
            self._raw_obs, rew, terminated, _, info = self._env.step(actions)
        infos = {}
        if "success" in info:
            success = _array(info["success"])
            self._once |= success
            infos = {"success": success, "success_once": self._once.copy()}
        return _array(rew), _array(terminated) & self._terminate, infos

    def _observe(self) -> Any:
        if self._obs == "state":
            return _array(self._raw_obs)
        cameras = self._raw_obs["sensor_data"].items()
        images = {name: _array(seen["rgb"]) for name, seen in cameras if "rgb" in seen}
        if self._obs == "both":
            return {"state": _array(self._raw_obs["state"]), **images}
        return images if len(images) > 1 else next(iter(images.values()))

    def render(self) -> Any:
        """Return frames, if made with a render mode."""
        return None if self.render_mode is None else tuple(_array(self._env.render()))

    def close(self, **_: Any) -> None:
        """Close all environments."""
        self._env.close()


class ManiSkill(SingleEnv):
    """A ManiSkill task on the CPU; unlike in ManiSkill itself, success does not end the episode.

    ``info["success"]`` is the success of a step, ``info["success_once"]`` that of any step of the
    episode so far.

    Args:
        task: Id of the task, for example ``PushCube-v1``.
        obs: Observation: ``state``, ``image``, or ``both`` in a dictionary with the keys ``state``
            and the names of all cameras, often only ``base_camera``. The state is the full
                simulation state, with positions of objects and goals.
        camera_size: Height and width of the image.
        terminate: Whether success or failure ends the episode.
        max_episode_steps: Time limit of episodes; None for no limit.
        control_mode: Kind of actions, such as ``pd_ee_delta_pose``; None for the robot's default.
        reward_mode: ``normalized_dense``, ``dense``, ``sparse`` or ``none``; None for the task's
            default, usually the first.
        render_mode: ``rgb_array`` makes `render` return an image.
        options: Further arguments of ManiSkill's environments, for example ``robot_uids``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - Gymnasium's
    vector = ManiSkillVector


class _DeviceName(str):
    """A device name that ManiSkill does not split at the colons of its PCI address."""

    __slots__ = ()

    def split(self, *_: Any) -> list[Any]:
        return [self, None]


def _make(task: str, **arguments: Any) -> Any:
    registration = require("mani_skill.utils.registration", "maniskill")
    _check_assets(task, registration.REGISTERED_ENVS[task].asset_download_ids or ())
    device = arguments.pop("render_backend", None) or render_device()
    if device.startswith("pci:"):
        device = _DeviceName(device)
        _keep_shaders(device)
    try:
        return registration.make(task, render_backend=device, **arguments)
    except (AssertionError, KeyError, NotImplementedError, RuntimeError) as error:
        raise UnusableEnvironmentError(f"{task!r} cannot be made: {error!r}") from error


@cache
def _keep_shaders(device: str) -> Any:
    """Return an object that keeps SAPIEN's shaders for the lifetime of this process.

    On a CPU, compiling them takes half a minute, and again after the last environment is closed.
    """
    sapien = require("sapien", "maniskill")
    return sapien.render.RenderSystem(sapien.Device(device))


def _check_assets(task: str, needed: Any) -> None:
    """Raise an error if a task's files are missing; ManiSkill would prompt to download them."""
    data = require("mani_skill.utils.assets", "maniskill")
    for name in needed:
        sources = [name]
        if name in data.DATA_GROUPS:
            sources = data.expand_data_group_into_individual_data_source_ids(name)
        if not all(map(data.is_data_source_downloaded, sources)):
            raise UnusableEnvironmentError(
                f"{task!r} needs files that are missing: python -m "
                f"mani_skill.utils.download_asset {name}"
            )


def _array(tensor: Any) -> np.ndarray:
    """Copy a tensor into an array."""
    array: np.ndarray = tensor.cpu().numpy().copy()
    return array


def _space(batch: Any) -> spaces.Space[Any]:
    if isinstance(batch, dict):
        return spaces.Dict([(key, _space(part)) for key, part in batch.items()])
    if batch.dtype == np.uint8:
        return spaces.Box(0, 255, batch.shape[1:], np.uint8)
    return spaces.Box(-np.inf, np.inf, batch.shape[1:])


# --- Vulkan


def render_device() -> str:
    """Return SAPIEN's name of a device for rendering.

    If Vulkan has only the CPU and no environment variable selects a driver, SwiftShader is used if
    installed: SAPIEN does not work with Debian 12's Mesa driver.
    """
    sapien = require("sapien", "maniskill")  # imported first: it may select an NVIDIA driver
    found = _kinds()
    if all(kind == _CPU for kind in found) and not _named() and (driver := _swiftshader()):
        os.environ[_DRIVERS[0]] = str(driver)
        found = _kinds()
    if found or sys.platform != "linux":  # SAPIEN caches a failed search
        for name in ("cuda", *(f"pci:{address}" for address in _addresses())):
            try:
                if sapien.Device(name).can_render():
                    return name
            except RuntimeError:
                continue
    raise UnusableEnvironmentError(
        "there is no Vulkan device, which ManiSkill needs even for state observations: "
        "install a GPU driver with Vulkan, or Debian's chromium-common for its "
        "SwiftShader, which renders on the CPU (set VK_ICD_FILENAMES for other drivers)"
    )


def _named() -> bool:
    """Return whether the user selected drivers; SAPIEN sets the variable, too."""
    named = [os.environ[name] for name in _DRIVERS if os.environ.get(name)]
    return any("sapien/vulkan_library" not in each for each in named)


def _swiftshader() -> Path | None:
    """Return the driver file of SwiftShader, which is part of Chromium."""
    files = (Path(place) / _SWIFTSHADER for place in _PLACES)
    return next((file for file in files if file.is_file()), None)


def _addresses() -> list[str]:
    """Return PCI addresses of possible devices; software has address zero."""
    folders = sorted(Path("/sys/bus/pci/devices").glob("*"))
    displays = [each.name for each in folders if (each / "class").read_text().startswith("0x03")]
    return [*displays, "0000:00:00.0"]


def _kinds() -> list[int]:
    """Return the types of all Vulkan devices, from Vulkan's loader.

    SAPIEN searches only once, so a driver could not be selected afterwards.
    """
    try:
        vulkan = ctypes.CDLL(os.environ.get("SAPIEN_VULKAN_LIBRARY_PATH", "libvulkan.so.1"))
    except OSError:
        return []
    wanted = (ctypes.c_uint64 * 8)(1)  # an empty VkInstanceCreateInfo
    instance = ctypes.c_void_p()
    if vulkan.vkCreateInstance(wanted, None, ctypes.byref(instance)) != 0:
        return []
    try:
        count = ctypes.c_uint32()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        devices = (ctypes.c_void_p * count.value)()
        vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
        return [_kind(vulkan, device) for device in devices[: count.value]]
    finally:
        vulkan.vkDestroyInstance(instance, None)


def _kind(vulkan: ctypes.CDLL, device: int | None) -> int:
    properties = (ctypes.c_uint32 * 512)()  # larger than a VkPhysicalDeviceProperties
    vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(device), properties)
    return properties[4]

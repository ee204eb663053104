"""ManiSkill's tasks: robots that are simulated and drawn by SAPIEN."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from guerdon.envs.batched import BatchedEnv, SingleEnv
from guerdon.envs.cameras import SIZE, check_observed
from guerdon.envs.ids import UnusableEnvironmentError
from guerdon.envs.vulkan import render_device
from guerdon.extras import require

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

    from guerdon.envs.tabletop import Observed

_MODES = {"state": "state", "image": "rgb", "both": "state+rgb"}


def maniskill_spec(spec: EnvSpec) -> EnvSpec:
    """ManiSkill's registration of a task with `ManiSkill` in the place of its own environment."""
    return replace(
        spec,
        entry_point=f"{__name__}:ManiSkill",
        vector_entry_point=None,
        additional_wrappers=(),
        kwargs={"task": spec.id},
    )


class ManiSkillVector(BatchedEnv):
    """Environments of one task, simulated together: one on the CPU, more only on a GPU.

    Args:
        num_envs: How many.
        task: See `ManiSkill`.
        obs: See `ManiSkill`.
        camera_size: See `ManiSkill`.
        terminate: See `ManiSkill`.
        max_episode_steps: Truncates episodes; None is never.
        control_mode: See `ManiSkill`.
        reward_mode: See `ManiSkill`.
        render_mode: See `ManiSkill`.
        options: See `ManiSkill`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        task: str = "PushCube-v1",
        obs: Observed = "state",
        camera_size: int = SIZE,
        terminate: bool = False,
        max_episode_steps: int | None = None,
        control_mode: str | None = None,
        reward_mode: str | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        check_observed(obs, camera_size)
        if "obs_mode" in options:
            raise UnusableEnvironmentError("obs_mode is obs here: state, image or both")
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
        self._seen: Any = self._env._init_raw_obs
        super().__init__(
            num_envs, _space(self._observe()), self._env.single_action_space, max_episode_steps
        )

    def _begin(self, ids: np.ndarray) -> None:
        self._once[ids] = False
        # Without seeds, tasks would draw from torch's generator, which belongs to nobody.
        seeds = self.np_random.integers(2**31, size=self.num_envs).tolist()
        torch = require("torch", "maniskill")
        rows = torch.as_tensor(ids, device=self._env.device)
        self._seen, _ = self._env.reset(seed=seeds, options={"env_idx": rows})

    def _move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        self._seen, rew, terminated, _, info = self._env.step(actions)
        told = {}
        if "success" in info:
            success = _array(info["success"])
            self._once |= success
            told = {"success": success, "success_once": self._once.copy()}
        return _array(rew), _array(terminated) & self._terminate, told

    def _observe(self) -> Any:
        if self._obs == "state":
            return _array(self._seen)
        cameras = self._seen["sensor_data"].items()
        pictures = {name: _array(seen["rgb"]) for name, seen in cameras if "rgb" in seen}
        if self._obs == "both":
            return {"state": _array(self._seen["state"]), **pictures}
        return pictures if len(pictures) > 1 else next(iter(pictures.values()))

    def render(self) -> Any:
        """Pictures for people, for those made with a render mode."""
        return None if self.render_mode is None else tuple(_array(self._env.render()))

    def close(self, **_: Any) -> None:
        """Ends all environments."""
        self._env.close()


class ManiSkill(SingleEnv):
    """A task of ManiSkill on the CPU; unlike in ManiSkill itself, success ends no episode.

    ``info["success"]`` says that a step ends in success, and ``info["success_once"]`` that one of
    this episode did.

    Args:
        task: Its id, for example ``PushCube-v1``.
        obs: What is observed: ``state``, ``image``, or ``both`` in a dictionary with the keys
            ``state`` and the names of all cameras, often only ``base_camera``. The state is all
            that ManiSkill knows, the places of objects and goals among it.
        camera_size: Height and width of the picture.
        terminate: Whether success or failure ends the episode.
        control_mode: What an action means, for example ``pd_ee_delta_pose``; None is the robot's
            usual one.
        reward_mode: ``normalized_dense``, ``dense``, ``sparse`` or ``none``; None is the task's
            usual one, which mostly is the first.
        render_mode: ``rgb_array`` lets `render` give a picture for people.
        options: Further arguments of ManiSkill's environments, for example ``robot_uids``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - Gymnasium's

    def __init__(
        self,
        task: str,
        obs: Observed = "state",
        camera_size: int = SIZE,
        terminate: bool = False,
        control_mode: str | None = None,
        reward_mode: str | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        batch = ManiSkillVector(
            task=task,
            obs=obs,
            camera_size=camera_size,
            terminate=terminate,
            control_mode=control_mode,
            reward_mode=reward_mode,
            render_mode=render_mode,
            **options,
        )
        super().__init__(batch)
        self.render_mode = render_mode

    def render(self) -> Any:
        """A picture for people, if made with a render mode."""
        pictures = self._batch.render()
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        """Ends the environment."""
        self._batch.close()


class _DeviceName(str):
    """A name that ManiSkill does not split at its colons, of which a PCI address is full."""

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
    """Something that lives as long as this process, so that SAPIEN does not forget its shaders.

    On a CPU they take half a minute to compile, again after the last environment was closed.
    """
    sapien = require("sapien", "maniskill")
    return sapien.render.RenderSystem(sapien.Device(device))


def _check_assets(task: str, needed: Any) -> None:
    """ManiSkill would ask on the terminal whether to download what is missing."""
    data = require("mani_skill.utils.assets", "maniskill")
    for name in needed:
        groups = data.DATA_GROUPS
        sources = (
            data.expand_data_group_into_individual_data_source_ids(name)
            if name in groups
            else [name]
        )
        if not all(map(data.is_data_source_downloaded, sources)):
            raise UnusableEnvironmentError(
                f"{task!r} needs files that are not here: python -m "
                f"mani_skill.utils.download_asset {name}"
            )


def _array(tensor: Any) -> np.ndarray:
    """A tensor as an array in memory of its own."""
    array: np.ndarray = tensor.cpu().numpy().copy()
    return array


def _space(batch: Any) -> spaces.Space[Any]:
    if isinstance(batch, dict):
        return spaces.Dict([(key, _space(part)) for key, part in batch.items()])
    if batch.dtype == np.uint8:
        return spaces.Box(0, 255, batch.shape[1:], np.uint8)
    return spaces.Box(-np.inf, np.inf, batch.shape[1:])

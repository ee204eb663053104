"""RLinf's collector of labelled images, with its arguments."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from guerdon.collect import reward_data
from guerdon.config.schema import DataCollectionConfig
from guerdon.data.frames import to_uint8
from guerdon.data.leaves import to_numpy

_FOLDERS = ("./reward_data/positive", "./reward_data/negative")


class RewardDataCollector(reward_data.RewardDataCollector):
    """`guerdon.collect.reward_data.RewardDataCollector` with RLinf's arguments and ``.npy`` files.

    Args:
        cfg: Config of the run; not read.
        positive_dir: Folder of trajectories with a success.
        negative_dir: Folder of trajectories without.
        image_keys: Cameras.
        max_positive_trajectories: Maximum number of positive trajectories; None for no limit.
        max_negative_trajectories: Maximum number of negative trajectories; None for no limit.
    """

    def __init__(
        self,
        cfg: Any = None,  # noqa: ARG002
        positive_dir: str = _FOLDERS[0],
        negative_dir: str = _FOLDERS[1],
        image_keys: Sequence[str] = ("base_camera",),
        max_positive_trajectories: int | None = None,
        max_negative_trajectories: int | None = None,
    ) -> None:
        config = DataCollectionConfig(
            positive_dir=positive_dir,
            negative_dir=negative_dir,
            image_keys=list(image_keys),
            max_positive_trajectories=max_positive_trajectories,
            max_negative_trajectories=max_negative_trajectories,
            format="npy",
        )
        super().__init__(config, n_envs=1)  # more with the first output

    def add_env_output(
        self, env_output: Mapping[str, Any], env_info: Mapping[str, Any], is_last_step: Any
    ) -> None:
        """Add a frame of each environment; write the episodes that end.

        Args:
            env_output: ``obs`` with images by camera, and ``success_frame``; ``dones`` where
                episodes end at different steps.
            env_info: ``success_once``.
            is_last_step: Whether episodes end here, for all environments or for each.
        """
        number = len(env_output["obs"][self.config.image_keys[0]])
        self.break_off(range(self.n_envs, number))
        self.n_envs = max(self.n_envs, number)
        info = {**env_info}
        if "success_frame" in env_output:
            info["success_frame"] = env_output["success_frame"]
        super().add_env_output(env_output, info, env_output.get("dones", is_last_step))

    def _extract_image(self, image: Any, key_offset: int = 0) -> np.ndarray:
        """Return the image of an environment as floats [C, H, W] in [0, 1]."""
        frames = to_uint8(np.asarray(to_numpy(image)), "image")
        frame = frames[key_offset] if frames.ndim == 4 else frames
        if frame.shape[-1] in reward_data.CHANNELS:
            frame = np.moveaxis(frame, -1, 0)
        return frame.astype(np.float32) / 255


def create_reward_data_collector(cfg: Mapping[str, Any]) -> RewardDataCollector | None:
    """Make the collector of ``cfg.reward.data_collection``; None without ``collect_data``."""
    reward = cfg.get("reward") or {}
    if not reward.get("collect_data", False):
        return None
    return RewardDataCollector(cfg, **(reward.get("data_collection") or {}))

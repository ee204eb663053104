"""RLinf's collector of labelled images, with its arguments."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from guerdon.collect import reward_data
from guerdon.config.schema import DataCollectionConfig
from guerdon.data.frames import CHANNELS, to_uint8
from guerdon.data.leaves import to_numpy


class RewardDataCollector(reward_data.RewardDataCollector):
    """`guerdon.collect.reward_data.RewardDataCollector` with RLinf's arguments and ``.npy`` files.

    `limits` are ``max_positive_trajectories`` and ``max_negative_trajectories``; none by default.
    """

    def __init__(
        self,
        cfg: Any,  # noqa: ARG002
        positive_dir: str,
        negative_dir: str,
        image_keys: Sequence[str],
        **limits: int | None,
    ) -> None:
        names = ("max_positive_trajectories", "max_negative_trajectories")
        given: dict[str, Any] = {**dict.fromkeys(names), **limits, "format": "npy"}
        given |= {"positive_dir": positive_dir, "negative_dir": negative_dir}
        config = DataCollectionConfig(image_keys=list(image_keys), **given)
        super().__init__(config, n_envs=1)  # more with the first output

    def add_env_output(
        self, env_output: Mapping[str, Any], env_info: Mapping[str, Any], is_last_step: Any
    ) -> None:
        """Add a frame of each environment; write the episodes that end, of all or of each.

        `env_output` has images by camera as ``obs``, ``success_frame``, and ``dones`` where
        episodes end at different steps; `env_info` has ``success_once``.
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
        if frame.shape[-1] in CHANNELS:
            frame = np.moveaxis(frame, -1, 0)
        return frame.astype(np.float32) / 255

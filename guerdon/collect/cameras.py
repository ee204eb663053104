"""Whether observations have the cameras whose frames are to be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from guerdon.config.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guerdon.config.schema import DataCollectionConfig

CHANNELS = (1, 3, 4)
"""Of pictures, where nobody says how many."""


def channel_axis(shape: Sequence[int], size: Sequence[int] | None) -> int | None:
    """Which axis of [T, H, W, C] or [T, C, H, W] has the channels; None if neither may.

    Args:
        shape: Of frames.
        size: Channels, height and width that are asked for, if any are.
    """
    possible = CHANNELS if size is None else (size[0],)
    return next((axis for axis in (3, 1) if shape[axis] in possible), None)


def check_cameras(space: spaces.Space[Any], config: DataCollectionConfig, env_id: str) -> None:
    """Refuses cameras that observations do not have.

    Args:
        space: Of observations.
        config: Names the cameras.
        env_id: Whose observations they are.
    """
    if not isinstance(space, spaces.Dict):
        raise ConfigError(
            f"observations of {env_id!r} are one array, in which no camera can be told: frames are "
            f"kept of dictionaries with a part for each camera (of many, env.kwargs.obs=both)"
        )
    cameras = [key for key, part in space.items() if _is_picture(part, config.image_size)]
    size = config.image_size
    for key in config.image_keys:
        if key not in cameras and key in space.spaces and _is_picture(space[key], None):
            raise ConfigError(
                f"image_size asks for pictures of {size and size[0]} channels, but those of "
                f"{key!r} in observations of {env_id!r} are {list(space[key].shape or ())}"
            )
        if key not in cameras:
            what = f"{space[key]}, no picture" if key in space.spaces else "not there"
            raise ConfigError(
                f"image_keys names {key!r}, which in observations of {env_id!r} is {what}: "
                f"{suggestion(key, cameras)}"
            )
    sizes = {key: _size(space[key]) for key in config.image_keys} if size is None else {}
    if len(set(map(tuple, sizes.values()))) > 1:
        said = ", ".join(f"{key!r} {each}" for key, each in sizes.items())
        raise ConfigError(
            f"pictures have several sizes ({said}), but a classifier sees all cameras in one: set "
            "image_size, for example to [3, 64, 64]"
        )


def _size(part: spaces.Space[Any]) -> list[int]:
    """Channels, height and width of a camera's pictures."""
    shape = list(part.shape or ())
    return [shape[2], *shape[:2]] if channel_axis((1, *shape), None) == 3 else shape


def _is_picture(part: spaces.Space[Any], size: Sequence[int] | None) -> bool:
    shape = part.shape or ()
    return len(shape) == 3 and channel_axis((1, *shape), size) is not None

"""Checks that observations have the cameras whose frames are collected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from guerdon.config.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guerdon.config.schema import DataCollectionConfig

CHANNELS = (1, 3, 4)
"""Possible numbers of channels, if none is given."""


def channel_axis(shape: Sequence[int], size: Sequence[int] | None) -> int | None:
    """Return the channel axis of frames [T, H, W, C] or [T, C, H, W]; None if there is none.

    Args:
        shape: Shape of the frames.
        size: Channels, height and width that are requested, if any.
    """
    possible = CHANNELS if size is None else (size[0],)
    return next((axis for axis in (3, 1) if shape[axis] in possible), None)


def check_cameras(space: spaces.Space[Any], config: DataCollectionConfig, env_id: str) -> None:
    """Refuse cameras that observations do not have.

    Args:
        space: Observation space.
        config: Names the cameras.
        env_id: Environment of the observations.
    """
    if not isinstance(space, spaces.Dict):
        raise ConfigError(
            f"observations of {env_id!r} are one array, in which no camera can be told: frames are "
            f"kept of dictionaries with a part for each camera (of many, env.kwargs.obs=both)"
        )
    size = config.image_size
    cameras = [key for key, part in space.items() if _image_axis(part, size) is not None]
    for key in config.image_keys:
        if key in cameras:
            continue
        if key in space.spaces and _image_axis(space[key], None) is not None:
            raise ConfigError(
                f"image_size asks for images of {size and size[0]} channels, but those of "
                f"{key!r} in observations of {env_id!r} are {list(space[key].shape or ())}"
            )
        what = f"{space[key]}, no image" if key in space.spaces else "not there"
        raise ConfigError(
            f"image_keys names {key!r}, which in observations of {env_id!r} is {what}: "
            f"{suggestion(key, cameras)}"
        )
    sizes = {}
    for key in config.image_keys if size is None else ():
        *shape, last = space[key].shape or ()
        sizes[key] = [last, *shape] if _image_axis(space[key], None) == 3 else [*shape, last]
    if len(set(map(tuple, sizes.values()))) > 1:
        listed = ", ".join(f"{key!r} {each}" for key, each in sizes.items())
        raise ConfigError(
            f"images have several sizes ({listed}), but a classifier takes all cameras in one: set "
            "image_size, for example to [3, 64, 64]"
        )


def _image_axis(part: spaces.Space[Any], size: Sequence[int] | None) -> int | None:
    shape = part.shape or ()
    return channel_axis((1, *shape), size) if len(shape) == 3 else None

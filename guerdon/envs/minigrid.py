"""MiniGrid observations as vectors and images."""

from typing import Any

import numpy as np
from gymnasium import spaces, wrappers

from guerdon.envs.factory import AnyEnv
from guerdon.envs.ids import UnusableEnvironmentError
from guerdon.extras import require


def minigrid_view(env: AnyEnv) -> AnyEnv:
    """Replace observations by a one-hot vector of every visible cell and the direction.

    A cell has an object type (11), a colour (6) and a state (4: of a door, or an agent's
    direction). The mission, a text that is constant in most tasks, is left out.

    Args:
        env: MiniGrid environment with symbolic observations: the agent's view, the whole grid
            (``minigrid.wrappers:FullyObsWrapper``), or another size (``ViewSizeWrapper``).
    """
    space = env.observation_space
    if not (isinstance(space, spaces.Dict) and {"image", "direction"} <= {*space}):
        raise UnusableEnvironmentError(
            f"minigrid_view needs MiniGrid's image and direction, but observations are "
            f"{space}: leave it out of env.wrappers"
        )
    constants = require("minigrid.core.constants", "minigrid")
    kinds = (
        len(constants.OBJECT_TO_IDX),
        len(constants.COLOR_TO_IDX),
        max(len(constants.STATE_TO_IDX), len(constants.DIR_TO_VEC)),
    )
    n_cells = int(np.prod((space["image"].shape or ())[:2]))
    sizes = np.array([*kinds * n_cells, len(constants.DIR_TO_VEC)])
    starts = np.cumsum(sizes) - sizes
    total = int(sizes.sum())

    def view(obs: Any) -> np.ndarray:
        vector = np.zeros(total, np.float32)
        vector[starts[:-1] + obs["image"].reshape(-1)] = 1
        vector[starts[-1] + obs["direction"]] = 1
        return vector

    return wrappers.TransformObservation(env, view, spaces.Box(0.0, 1.0, (total,), np.float32))


def minigrid_images(env: AnyEnv) -> AnyEnv:
    """Replace observations by the ``state`` of `minigrid_view` and an image, ``base_camera``.

    The image is 64 x 64 and shows the whole grid from above, more than the state does.
    Success (``info["success"]``) is a termination with a positive reward.

    Args:
        env: See `minigrid_view`.
    """
    from guerdon.envs.cameras import SIZE, ImageObservation  # imports torch; not needed by the view

    view = minigrid_view(env)
    grid: Any = env.unwrapped
    pixels = -(-SIZE // max(grid.width, grid.height))  # per cell, rounded up

    def image() -> np.ndarray:
        return np.asarray(grid.get_frame(highlight=False, tile_size=pixels))

    return ImageObservation(
        view, image=image, succeeded=lambda rew, terminated, _: terminated and rew > 0
    )

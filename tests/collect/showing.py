"""An environment whose picture tells what it shows, in a module that is quick to import."""

import numpy as np
from gymnasium import spaces

from guerdon.envs.counting import Counting


def shows_success(number: int, episode: int, step: int) -> bool:
    return (number + episode + step) % 3 == 0


class Showing(Counting):
    """Counting, seen by a camera: (number, episode, step) is its first pixel, success its second.

    Args:
        **options: Of `Counting`.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.observation_space = spaces.Dict(
            {
                "state": self.observation_space,
                "base_camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
            }
        )

    def seen(self, counts):
        picture = np.zeros((4, 5, 3), np.uint8)
        picture[0, 0] = counts
        picture[0, 1] = 255 * shows_success(*counts.tolist())
        return {"state": counts, "base_camera": picture}

    def reset(self, **options):
        obs, info = super().reset(**options)
        return self.seen(obs), {**info, "success": False}

    def step(self, action):
        obs, *rest, info = super().step(action)
        return self.seen(obs), *rest, {**info, "success": shows_success(*obs.tolist())}

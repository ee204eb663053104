"""Rules that solve classic tasks, as experts for `dagger`: functions of observations [N, ...]."""

from types import SimpleNamespace
from typing import Any

import numpy as np


def balance(obs: np.ndarray) -> np.ndarray:
    """Push the cart of CartPole towards the side to which the pole falls."""
    place, speed, angle, turning = obs.T
    return np.asarray(angle + 0.5 * turning + 0.05 * place + 0.1 * speed > 0, np.int64)


def swing_up(obs: np.ndarray) -> np.ndarray:
    """Swing up the pendulum of Pendulum by its energy, and hold it."""
    up, side, turning = obs.T
    hold = -10.0 * np.arctan2(side, up) - 2.0 * turning
    energy = turning**2 / 6.0 + 5.0 * (up - 1.0)  # 0 for a pendulum that stands upright
    swing = np.where(turning * energy < 0, 2.0, -2.0)
    return np.clip(np.where(up > 0.9, hold, swing), -2.0, 2.0)[:, None].astype(np.float32)


def land(obs: np.ndarray) -> np.ndarray:
    """Land in LunarLander with Gymnasium's own controller."""
    from gymnasium.envs.box2d.lunar_lander import heuristic  # needs the extra box2d

    controller: Any = heuristic
    discrete = SimpleNamespace(unwrapped=SimpleNamespace(continuous=False))
    return np.array([controller(discrete, each) for each in obs], np.int64)

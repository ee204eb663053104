"""Nearest neighbours among the points of a running episode."""

from __future__ import annotations

import numpy as np
from numba import njit


# Reassociation lets sums be vectorised; infinities stay what they are.
@njit(cache=True, fastmath={"reassoc", "contract"})
def nearest(
    before: np.ndarray,
    after: np.ndarray,
    mask: np.ndarray,
    first: np.ndarray,
    points: np.ndarray,
    count: np.ndarray,
    k: int,
) -> np.ndarray:
    """Compare where each step leads with where it and earlier steps of its episode started.

    Args:
        before: Points where steps start [T, n_envs, n_features].
        after: Points where they lead.
        mask: Which rows are transitions [T, n_envs].
        first: Which rows begin an episode [T, n_envs].
        points: The newest points of the running episodes [n_envs, size, n_features]; changed.
        count: Points since these began [n_envs]; changed.
        k: Number of neighbours.

    Returns:
        Squared distances [T, n_envs, k] of the nearest points, nearest first; infinite where there
        are fewer.
    """
    n_steps, n_envs, n_features = after.shape
    size = points.shape[1]
    found = np.full((n_steps, n_envs, k), np.inf, np.float32)
    for env in range(n_envs):
        for step in range(n_steps):
            if first[step, env]:
                count[env] = 0
            if not mask[step, env]:
                continue
            points[env, count[env] % size] = before[step, env]
            count[env] += 1
            neighbors = found[step, env]
            for index in range(min(count[env], size)):
                distance = np.float32(0.0)
                for feature in range(n_features):
                    gap = after[step, env, feature] - points[env, index, feature]
                    distance += gap * gap
                place = k
                while place > 0 and distance < neighbors[place - 1]:
                    place -= 1
                    if place + 1 < k:
                        neighbors[place + 1] = neighbors[place]
                if place < k:
                    neighbors[place] = distance
    return found

"""Where episodes begin and end in a ring, compiled by numba; see `guerdon.data.kernels`."""

import numpy as np
from numba import njit

from guerdon.data.kernels import LAST, VALID


@njit(cache=True)
def first_rows(rows: np.ndarray, written: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """The oldest rows of the same episodes that are still there."""
    n_envs = written.size
    slots = flags.size // n_envs
    result = rows.copy()
    for i in range(rows.size):
        row = rows[i]
        count = written[row % n_envs]
        oldest = (count % slots if count > slots else 0) * n_envs + row % n_envs
        while row != oldest:
            before = row - n_envs if row >= n_envs else row - n_envs + flags.size
            if not flags[before] & VALID or flags[before] & LAST:
                break
            row = before
        result[i] = row
    return result


@njit(cache=True)
def last_rows(rows: np.ndarray, written: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """The newest rows of the same episodes: their ends, or where they are now."""
    n_envs = written.size
    slots = flags.size // n_envs
    result = rows.copy()
    for i in range(rows.size):
        row = rows[i]
        newest = (written[row % n_envs] - 1) % slots * n_envs + row % n_envs
        while row != newest and not flags[row] & LAST:
            after = row + n_envs
            if after >= flags.size:
                after -= flags.size
            if not flags[after] & VALID:
                break
            row = after
        result[i] = row
    return result

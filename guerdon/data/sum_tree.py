"""A sum tree over the rows of a buffer: an array in which node i is the sum of 2i and 2i + 1."""

import numpy as np
from numba import njit

from guerdon.data.kernels import VALID

EPSILON = 1e-8  # so that no error is so small that its row is never seen again


@njit(cache=True)
def set_leaves(tree: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Sets leaves of a sum tree, and the sums above them."""
    capacity = tree.size // 2
    for i in range(rows.size):
        tree[capacity + rows[i]] = values[i]
    for i in range(rows.size):
        node = (capacity + rows[i]) // 2
        while node > 0:
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node //= 2


@njit(cache=True)
def set_newest(
    tree: np.ndarray, envs: np.ndarray, written: np.ndarray, flags: np.ndarray, value: float
) -> None:
    """Gives the rows that environments wrote last a value; those that are not valid get 0."""
    n_envs = written.size
    slots = flags.size // n_envs
    rows = np.empty(envs.size, np.int64)
    values = np.empty(envs.size)
    for i in range(envs.size):
        rows[i] = ((written[envs[i]] - 1) % slots) * n_envs + envs[i]
        values[i] = value if flags[rows[i]] & VALID else 0.0
    set_leaves(tree, rows, values)


@njit(cache=True)
def update(
    tree: np.ndarray, flags: np.ndarray, rows: np.ndarray, weights: np.ndarray, alpha: float
) -> float:
    """Sets priorities from weights (errors), where a row is still valid.

    Returns:
        The largest priority set, or -1 (and nothing is set) if a weight is not a finite number.
    """
    values = np.empty(rows.size)
    largest = 0.0
    for i in range(rows.size):
        values[i] = (abs(weights[i]) + EPSILON) ** alpha
        if not np.isfinite(values[i]):
            return -1.0
        if not flags[rows[i]] & VALID:
            values[i] = 0.0
        largest = max(largest, values[i])
    set_leaves(tree, rows, values)
    return largest


@njit(cache=True)
def find(tree: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """The leaf in which each mass of [0, total) falls."""
    capacity = tree.size // 2
    rows = np.empty(masses.size, np.int64)
    for i in range(masses.size):
        mass = masses[i]
        node = 1
        while node < capacity:
            node *= 2
            # Rounding may leave a mass at the total: never walk into an empty half.
            if mass >= tree[node] and tree[node + 1] > 0.0:
                mass -= tree[node]
                node += 1
        rows[i] = node - capacity
    return rows

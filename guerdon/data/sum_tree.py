"""A sum tree: an array in which node i is the sum of nodes 2i and 2i + 1."""

import numpy as np

from guerdon.extras import compiled


@compiled()
def set_leaves(tree: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Set leaves and the sums above them."""
    capacity = tree.size // 2
    for i in range(rows.size):
        tree[capacity + rows[i]] = values[i]
    for i in range(rows.size):
        node = (capacity + rows[i]) // 2
        while node > 0:
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node //= 2


def set_all(tree: np.ndarray, values: np.ndarray) -> None:
    """Set all leaves; leaves without a value become 0."""
    width = len(tree) // 2
    tree[width:] = 0.0
    tree[width : width + len(values)] = values
    while width > 1:
        level = tree[width : 2 * width]
        width //= 2
        tree[width : 2 * width] = level[::2] + level[1::2]


@compiled()
def find(tree: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Return the leaf that contains each mass in [0, total)."""
    capacity = tree.size // 2
    rows = np.empty(masses.size, np.int64)
    for i in range(masses.size):
        mass = masses[i]
        node = 1
        while node < capacity:
            node *= 2
            # Rounding can make a mass equal the total: never enter an empty subtree.
            if mass >= tree[node] and tree[node + 1] > 0.0:
                mass -= tree[node]
                node += 1
        rows[i] = node - capacity
    return rows

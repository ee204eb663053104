"""The loops of the buffers, compiled by numba.

A buffer's rows lie in one flat table: row = slot * n_envs + env. `written[env]` counts the rows an
environment has ever written, so that its cursor is `written % slots`. A flag byte a row says what
the row is, and `link[row]` where its next observation is kept: 0 means in the row that follows in
time, otherwise it is 1 + a row of the side table.
"""

import numpy as np
from numba import njit

VALID = 1  # the row is a transition (not empty, not a dummy, not half written)
DONE = 2  # the episode ended here
LAST = 4  # no row follows in time: the episode ended, or was cut off
EPSILON = 1e-8  # so that no error is so small that its row is never seen again

Arrays = tuple[np.ndarray, np.ndarray]


@njit(cache=True)
def check_and_clear(
    envs: np.ndarray,
    written: np.ndarray,
    flags: np.ndarray,
    link: np.ndarray,
    rew: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    n_valid: np.ndarray,
    freed: np.ndarray,
) -> tuple[int, int, int]:
    """Looks for NaN, then marks the rows that are about to be overwritten as no longer valid.

    Returns:
        The position of the first NaN in `rew` or -1, the number of ends among the new rows, and
        the number of side-table rows that became free (they are in `freed`).
    """
    for i in range(rew.size):
        if np.isnan(rew[i]):
            return i, 0, 0
    n_envs = written.size
    slots = flags.size // n_envs
    n_ended = 0
    n_freed = 0
    for i in range(envs.size):
        e = envs[i]
        row = (written[e] % slots) * n_envs + e
        n_valid[0] -= flags[row] & VALID
        flags[row] = 0
        if link[row] > 2 * n_envs:  # below that are the tails, which are never freed
            freed[n_freed] = link[row] - 1
            n_freed += 1
        link[row] = 0
        n_ended += terminated[i] | truncated[i]
    return -1, n_ended, n_freed


@njit(cache=True)
def find_breaks(
    envs: np.ndarray,
    written: np.ndarray,
    link: np.ndarray,
    dummy: np.ndarray,
    new: np.ndarray,
    table: np.ndarray,
    broken: np.ndarray,
) -> int:
    """Finds open episodes that the new observations (as bytes) do not continue.

    Adds to `broken`, and returns how many are; a dummy row continues nothing.
    """
    n_envs = written.size
    slots = link.size // n_envs
    n_broken = 0
    for i in range(envs.size):
        e = envs[i]
        if written[e] > 0:
            tail = link[((written[e] - 1) % slots) * n_envs + e] - 1
            if 0 <= tail < 2 * n_envs:  # only a newest row in an open episode links to a tail
                difference = np.uint8(dummy[i])
                for j in range(new.shape[1]):  # no early exit: this way it is vectorised
                    difference |= new[i, j] ^ table[tail, j]
                if difference:
                    broken[i] = True
        n_broken += broken[i]
    return n_broken


@njit(cache=True)
def commit(
    envs: np.ndarray,
    written: np.ndarray,
    flags: np.ndarray,
    link: np.ndarray,
    rew: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    dummy: np.ndarray,
    final: np.ndarray,
    n_valid: np.ndarray,
    returns: np.ndarray,
    lengths: np.ndarray,
    finished_returns: np.ndarray,
    finished_lengths: np.ndarray,
    keeps_next: bool,
) -> None:
    """Makes the rows just written valid (not the dummies), and closes the episodes that ended.

    A row's flag comes last: a process killed before that leaves an invalid row, never a false one.
    """
    n_envs = written.size
    slots = flags.size // n_envs
    agents = returns.shape[1]
    for i in range(envs.size):
        e = envs[i]
        count = written[e]
        row = (count % slots) * n_envs + e
        if not dummy[i]:
            ended = terminated[i] | truncated[i]
            if count > 0:
                head = ((count - 1) % slots) * n_envs + e
                if flags[head] & VALID and not flags[head] & LAST:
                    link[head] = 0  # its next observation is this row's
            if keeps_next:
                link[row] = final[i] if ended else (count & 1) * n_envs + e + 1
            n_valid[0] += 1
            lengths[e] += 1
            if ended:
                finished_lengths[i] = lengths[e]
                lengths[e] = 0
            for a in range(agents):
                returns[e, a] += rew[i * agents + a]
                if ended:
                    finished_returns[i, a] = returns[e, a]
                    returns[e, a] = 0.0
            written[e] = count + 1
            flags[row] = VALID | DONE | LAST if ended else VALID
        else:
            written[e] = count + 1


@njit(cache=True)
def oldest_slot(count: int, slots: int) -> int:
    """The slot of the oldest row of an environment that has written `count` rows."""
    return count % slots if count > slots else 0


@njit(cache=True)
def step_back(row: int, written: np.ndarray, flags: np.ndarray) -> int:
    """The row before in time and episode, or the row itself where there is none."""
    n_envs = written.size
    slots = flags.size // n_envs
    if row // n_envs == oldest_slot(written[row % n_envs], slots):
        return row
    before = row - n_envs
    if before < 0:
        before += flags.size
    if flags[before] & VALID and not flags[before] & LAST:
        return before
    return row


@njit(cache=True)
def step_on(row: int, written: np.ndarray, flags: np.ndarray) -> int:
    """The row after in time and episode, or the row itself where there is none."""
    n_envs = written.size
    slots = flags.size // n_envs
    if flags[row] & LAST or row // n_envs == (written[row % n_envs] - 1) % slots:
        return row
    after = row + n_envs
    if after >= flags.size:
        after -= flags.size
    return after if flags[after] & VALID else row


@njit(cache=True)
def previous_rows(rows: np.ndarray, written: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """`step_back` for many rows."""
    result = np.empty_like(rows)
    for i in range(rows.size):
        result[i] = step_back(rows[i], written, flags)
    return result


@njit(cache=True)
def next_rows(rows: np.ndarray, written: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """`step_on` for many rows."""
    result = np.empty_like(rows)
    for i in range(rows.size):
        result[i] = step_on(rows[i], written, flags)
    return result


@njit(cache=True)
def successors(rows: np.ndarray, link: np.ndarray, n_envs: int) -> tuple[Arrays, np.ndarray]:
    """Where the next observations of rows are.

    Returns:
        A row each to read from the ring, then the positions to read from the side table instead,
        and their rows there.
    """
    after = np.empty_like(rows)
    positions = np.empty_like(rows)
    sources = np.empty_like(rows)
    n = 0
    for i in range(rows.size):
        row = rows[i]
        if link[row]:
            after[i] = row
            positions[n] = i
            sources[n] = link[row] - 1
            n += 1
        else:
            following = row + n_envs
            after[i] = following - link.size if following >= link.size else following
    return (after, positions[:n]), sources[:n]


@njit(cache=True)
def stacks(rows: np.ndarray, stack_num: int, written: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """The `stack_num` rows that end in each row; an episode's first row is repeated."""
    result = np.empty((rows.size, stack_num), np.int64)
    for i in range(rows.size):
        row = rows[i]
        for k in range(stack_num - 1, -1, -1):
            result[i, k] = row
            row = step_back(row, written, flags)
    return result


@njit(cache=True)
def has_history(
    rows: np.ndarray, stack_num: int, written: np.ndarray, flags: np.ndarray
) -> np.ndarray:
    """Whether a row has `stack_num - 1` rows of its episode before it."""
    result = np.ones(rows.size, np.bool_)
    for i in range(rows.size):
        row = rows[i]
        for _ in range(stack_num - 1):
            before = step_back(row, written, flags)
            if before == row:
                result[i] = False
                break
            row = before
    return result


@njit(cache=True)
def segments(starts: np.ndarray, length: int, written: np.ndarray, flags: np.ndarray) -> Arrays:
    """The rows [length, B] from each start on, and which are real; past an end the last repeats."""
    rows = np.empty((length, starts.size), np.int64)
    mask = np.ones((length, starts.size), np.bool_)
    for i in range(starts.size):
        row = starts[i]
        rows[0, i] = row
        for t in range(1, length):
            after = step_on(row, written, flags)
            if after == row:
                for rest in range(t, length):
                    rows[rest, i] = row
                    mask[rest, i] = False
                break
            row = after
            rows[t, i] = row
    return rows, mask


@njit(cache=True)
def tree_set(tree: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
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
def tree_set_newest(
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
    tree_set(tree, rows, values)


@njit(cache=True)
def tree_update(
    tree: np.ndarray, flags: np.ndarray, rows: np.ndarray, weights: np.ndarray, alpha: float
) -> float:
    """Sets priorities from weights (errors), where a row is still valid.

    Returns:
        The largest priority set, or -1 (and nothing is set) if a weight is not a finite number.
    """
    values = np.empty(rows.size)
    largest = 0.0
    for i in range(rows.size):
        weight = abs(weights[i])
        if not np.isfinite(weight):
            return -1.0
        values[i] = (weight + EPSILON) ** alpha if flags[rows[i]] & VALID else 0.0
        largest = max(largest, values[i])
    tree_set(tree, rows, values)
    return largest


@njit(cache=True)
def tree_find(tree: np.ndarray, masses: np.ndarray) -> np.ndarray:
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

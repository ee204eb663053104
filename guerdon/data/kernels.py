"""Compiled bookkeeping of `ReplayBuffer`.

Row ``env * capacity + slot`` has a byte of flags. ``final[row]`` locates its next observation:
0 is the row that follows, any other number k is row ``k - 1`` of the table of final observations.
The first ``2 * n_envs`` rows of that table have the next observations of the newest rows, two per
environment that are used alternately: an interrupted write leaves the old one intact. The rest
belongs to rows at which an episode ended or was cut.
"""

import numpy as np

from guerdon.extras import compiled

VALID = 1  # the row is a transition
TERMINATED = 2  # the episode terminated here
TRUNCATED = 4  # the episode was truncated here
LAST = 8  # no row of the same episode follows: it ended, or was cut
FIRST = 16  # the episode began here
PENDING = 32  # not yet annotated, although other rows are


@compiled()
def reserve(
    envs: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    written: np.ndarray,
    flags: np.ndarray,
    final: np.ndarray,
    count: np.ndarray,
    free: np.ndarray,
) -> tuple[np.ndarray, bool]:
    """Invalidate the rows that the next transitions overwrite, and choose rows for them.

    ``written`` counts the rows of each environment, ``count`` the valid rows, and ``free`` lists
    the unused rows of the table of final observations, after their number.

    Returns:
        The plan [3, n]: the rows to write, the rows of that table for the next observations, and
        the flags of the rows; and whether all environments write to the same slot and to
        consecutive rows of the table.
    """
    n_envs = written.size
    capacity = flags.size // n_envs
    plan = np.empty((3, envs.size), np.int64)
    regular = envs.size == n_envs
    for i in range(envs.size):
        env = envs[i]
        row = env * capacity + written[env] % capacity
        before = env * capacity + (written[env] - 1) % capacity
        plan[2, i] = VALID
        if written[env] == 0 or flags[before] & LAST:
            plan[2, i] |= FIRST
        if terminated[i]:
            plan[2, i] |= TERMINATED | LAST
        if truncated[i]:
            plan[2, i] |= TRUNCATED | LAST
        count[0] -= flags[row] & VALID
        flags[row] = 0
        if final[row] > 2 * n_envs:
            free[0] += 1
            free[free[0]] = final[row] - 1
            final[row] = 0
        plan[0, i] = row
        plan[1, i] = (written[env] & 1) * n_envs + env
        if plan[2, i] & LAST and free[0] > 0:  # true whenever there is a table
            plan[1, i] = free[free[0]]
            free[0] -= 1
        regular &= row == plan[0, 0] + i * capacity and plan[1, i] == plan[1, 0] + i
    return plan, regular


@compiled()
def publish(
    plan: np.ndarray,
    written: np.ndarray,
    flags: np.ndarray,
    final: np.ndarray,
    count: np.ndarray,
    keep_next: bool,
) -> None:
    """Mark rows as valid after their columns are written; for the arguments see `reserve`."""
    capacity = flags.size // written.size
    for i in range(plan.shape[1]):
        row = plan[0, i]
        env = row // capacity
        if not plan[2, i] & FIRST:  # the next observation of the row before is this row's
            final[env * capacity + (written[env] - 1) % capacity] = 0
        if keep_next:
            final[row] = plan[1, i] + 1
        written[env] += 1
        flags[row] = plan[2, i]
        count[0] += 1


@compiled()
def draw(chances: np.ndarray, written: np.ndarray, capacity: int) -> np.ndarray:
    """Map numbers in [0, 1) to rows that were written."""
    held = np.minimum(written, capacity)
    ends = np.cumsum(held)
    rows = np.empty(chances.size, np.int64)
    for i in range(chances.size):
        drawn = int(chances[i] * ends[-1])
        env = np.searchsorted(ends, drawn, "right")
        rows[i] = env * capacity + drawn - (ends[env] - held[env])
    return rows


@compiled()
def following(rows: np.ndarray, capacity: int) -> np.ndarray:
    """Return the rows that are written next in the same rings."""
    after = rows + 1
    for i in range(rows.size):
        if after[i] % capacity == 0:
            after[i] -= capacity
    return after


@compiled()
def neighbour(row: int, written: np.ndarray, flags: np.ndarray, forward: bool) -> int:
    """Return the next (or previous) row in the same episode, or the row itself if there is none."""
    capacity = flags.size // written.size
    env, slot = row // capacity, row % capacity
    count = written[env]
    if forward:
        end = (count - 1) % capacity
        after = (slot + 1) % capacity
    else:
        end = count % capacity if count > capacity else 0
        after = (slot - 1) % capacity
    found = env * capacity + after
    if slot == end or flags[row] & (LAST if forward else FIRST) or not flags[found] & VALID:
        return row
    return found


@compiled()
def walk(
    rows: np.ndarray, steps: int, written: np.ndarray, flags: np.ndarray, forward: bool
) -> np.ndarray:
    """Return the rows [steps + 1, n] that are 0, 1, ... steps away; an episode's end repeats."""
    found = np.empty((steps + 1, rows.size), np.int64)
    for i in range(rows.size):
        row = rows[i]
        if row < 0 or row >= flags.size:
            raise IndexError("a row is not in the buffer")
        found[0, i] = row
        for step in range(1, steps + 1):
            row = neighbour(row, written, flags, forward)
            found[step, i] = row
    return found


@compiled()
def episode_ends(
    rows: np.ndarray, written: np.ndarray, flags: np.ndarray, forward: bool
) -> np.ndarray:
    """Return the last (or first) rows of the same episodes."""
    found = np.empty(rows.size, np.int64)
    for i in range(rows.size):
        row, after = rows[i], neighbour(rows[i], written, flags, forward)
        while after != row:
            row, after = after, neighbour(after, written, flags, forward)
        found[i] = row
    return found

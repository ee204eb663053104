"""The loops of the buffers, compiled by numba.

A buffer's rows lie in one flat table: row = slot * n_envs + env. `written[env]` counts the rows an
environment has ever written, so that its cursor is `written % slots`. A flag byte a row says what
the row is, and `link[row]` where its next observation is kept: 0 means in the row that follows in
time, otherwise it is 1 + a row of the side table.
"""

import numpy as np
from numba import njit

VALID = 1  # the row is a transition (not empty, not a dummy, not half written)
TERMINATED = 2  # the episode ended here
TRUNCATED = 4  # the episode was broken off here, by a time limit say
LAST = 8  # no row follows in time: the episode ended, or was cut
DUMMY = 1  # marks a row to add: it is no transition
BROKEN = 2  # marks a row to add: `find_breaks` saw that it does not continue the open episode

Arrays = tuple[np.ndarray, np.ndarray]


@njit(cache=True)
def write_rows(  # noqa: C901 - one pass over everything, because a call costs more than the work
    envs: np.ndarray,
    book: np.ndarray,
    flags: np.ndarray,
    link: np.ndarray,
    returns: np.ndarray,
    free: np.ndarray,
    rew: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    marks: np.ndarray,
    obs: np.ndarray,
    obs_next: np.ndarray,
    obs_rows: np.ndarray,
    table: np.ndarray,
    moved: np.ndarray,
    finished: np.ndarray,
    keeps_next: bool,
    publish: bool,
) -> tuple[int, int]:
    """Adds one row for each environment of `envs`: bookkeeping, and the main observation.

    Args:
        envs: The environments.
        book: Rows written and length of the running episode, by environment; then, once, the
            number of valid rows.
        flags: By row.
        link: By row.
        returns: Of the running episodes, by environment; then of those that ended, from the top.
        free: The free rows of the side table, after their number.
        rew: Rewards, agent by agent.
        terminated: Ends.
        truncated: Ends by a limit.
        marks: DUMMY rows. They cut an open episode, and so does an observation that is not the
            next observation before.
        obs: The main leaf of the observation; its rows lie one after the other.
        obs_next: The same leaf, one step on.
        obs_rows: The leaf in the ring.
        table: The leaf in the side table.
        moved: Out, by position: the side-table row of an ending episode's last observation, for
            the other leaves, or -1; and the row's flags.
        finished: Out: environments and lengths of the episodes that ended, from the top.
        keeps_next: Whether next observations are kept.
        publish: Whether the rows become valid at once, or when the caller sets their flags, after
            the other columns are written.

    Returns:
        The position of the first NaN in `rew` (and nothing is changed) or -1, and the number of
        episodes that ended.
    """
    for i in range(rew.size):
        if np.isnan(rew[i]):
            return i, 0
    n_envs = book.shape[1]
    slots = flags.size // n_envs
    agents = returns.shape[2]
    width = obs.size // envs.size
    new, new_next = obs.reshape(obs.size), obs_next.reshape(obs_next.size)
    ring, side = obs_rows.reshape(obs_rows.size), table.reshape(table.size)
    n_ended = 0
    n_valid = 0
    last_count, slot, slot_before = np.int64(-1), np.int64(0), np.int64(0)
    for i in range(envs.size):
        e = envs[i]
        count = book[0, e]
        if count != last_count:  # mostly all are the same, and divisions are slow
            last_count, slot, slot_before = count, count % slots, (count - 1) % slots
        row = slot * n_envs + e
        head = slot_before * n_envs + e
        tail = link[head] - 1 if count > 0 else np.int64(-1)
        moved[i, 0] = -1
        if 0 <= tail < 2 * n_envs:  # only a newest row in an open episode links to a tail
            differs = marks[i] != 0
            for j in range(width):
                a, b = new[i * width + j], side[tail * width + j]
                differs |= (a != b) & ((a == a) | (b == b))  # here NaN is NaN
            if differs:
                if flags[head] & VALID and head != row:
                    target = free[free[0]]
                    free[0] -= 1
                    for j in range(width):
                        side[target * width + j] = side[tail * width + j]
                    link[head] = target + 1
                    flags[head] |= LAST
                book[1, e] = 0
                returns[0, e] = 0.0
            else:
                link[head] = 0  # its next observation is this row's
        n_valid -= flags[row] & VALID
        flags[row] = 0
        if link[row] > 2 * n_envs:  # below that are the tails, which are never freed
            free[0] += 1
            free[free[0]] = link[row] - 1
        link[row] = 0
        flag = 0
        if not marks[i] & DUMMY:
            flag = VALID
            for j in range(width):
                ring[row * width + j] = new[i * width + j]
            ended = terminated[i] or truncated[i]
            if keeps_next:
                target = (count & 1) * n_envs + e
                if ended:
                    target = free[free[0]]
                    free[0] -= 1
                    moved[i, 0] = target
                for j in range(width):
                    side[target * width + j] = new_next[i * width + j]
                link[row] = target + 1
            n_valid += 1
            book[1, e] += 1
            for a in range(agents):
                returns[0, e, a] += rew[i * agents + a]
            if ended:
                flag |= LAST | (TERMINATED if terminated[i] else 0)
                flag |= TRUNCATED if truncated[i] else 0
                finished[n_ended, 0] = e
                finished[n_ended, 1] = book[1, e]
                returns[1, n_ended] = returns[0, e]
                n_ended += 1
                book[1, e] = 0
                returns[0, e] = 0.0
        book[0, e] = count + 1
        moved[i, 1] = flag
        if publish:
            flags[row] = flag
    book[2, 0] += n_valid
    return -1, n_ended


@njit(cache=True)
def settle_steps(  # noqa: C901 - see write_rows
    steps: int,
    book: np.ndarray,
    flags: np.ndarray,
    link: np.ndarray,
    returns: np.ndarray,
    free: np.ndarray,
    rew_rows: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    obs_next: np.ndarray,
    table: np.ndarray,
    finished: np.ndarray,
    keeps_next: bool,
) -> int:
    """Does the bookkeeping of steps already in the columns, of which only the last has ends.

    All environments have written the same number of rows. For the rest see `write_rows`.

    Returns:
        The number of episodes that ended.
    """
    n_envs = book.shape[1]
    slots = flags.size // n_envs
    count = book[0, 0]
    n_valid = 0
    if count > 0:
        head = ((count - 1) % slots) * n_envs
        for row in range(head, head + n_envs):
            if not flags[row] & LAST:
                link[row] = 0
    for step in range(count, count + steps):
        head = (step % slots) * n_envs
        for row in range(head, head + n_envs):  # loops of one thing each are vectorised
            n_valid += VALID - (flags[row] & VALID)
            flags[row] = VALID
        for row in range(head, head + n_envs):
            if link[row] > 2 * n_envs:
                free[0] += 1
                free[free[0]] = link[row] - 1
            link[row] = 0
        for e in range(n_envs):
            returns[0, e, 0] += rew_rows[head + e]
    count += steps
    book[2, 0] += n_valid
    width = obs_next.size // n_envs
    new_next, side = obs_next.reshape(obs_next.size), table.reshape(table.size)
    n_ended = 0
    for e in range(n_envs):
        book[0, e] = count
        book[1, e] += steps
        target = ((count - 1) & 1) * n_envs + e
        if terminated[e] or truncated[e]:
            if keeps_next:
                target = free[free[0]]
                free[0] -= 1
            flag = VALID | LAST | (TERMINATED if terminated[e] else 0)
            flags[head + e] = flag | (TRUNCATED if truncated[e] else 0)
            finished[n_ended, 0] = e
            finished[n_ended, 1] = book[1, e]
            returns[1, n_ended, 0] = returns[0, e, 0]
            n_ended += 1
            book[1, e] = 0
            returns[0, e, 0] = 0.0
        if keeps_next:
            for j in range(width):
                side[target * width + j] = new_next[e * width + j]
            link[head + e] = target + 1
    return n_ended


@njit(cache=True)
def find_breaks(
    envs: np.ndarray,
    written: np.ndarray,
    link: np.ndarray,
    new: np.ndarray,
    table: np.ndarray,
    marks: np.ndarray,
) -> None:
    """Marks open episodes that new observations (as bytes) do not continue."""
    n_envs = written.size
    slots = link.size // n_envs
    for i in range(envs.size):
        e = envs[i]
        if written[e] > 0:
            tail = link[((written[e] - 1) % slots) * n_envs + e] - 1
            if 0 <= tail < 2 * n_envs:
                difference = np.uint8(0)
                for j in range(new.shape[1]):  # no early exit: this way it is vectorised
                    difference |= new[i, j] ^ table[tail, j]
                if difference:
                    marks[i] |= BROKEN


# Kernels below call each other with many rows at a time: every call counts references to every
# array it is given, which for a single row costs more than the work.


@njit(cache=True)
def previous_rows(rows: np.ndarray, written: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """The rows before in time and episode, or the rows themselves where there is none."""
    n_envs = written.size
    slots = flags.size // n_envs
    result = rows.copy()
    for i in range(rows.size):
        row = rows[i]
        count = written[row % n_envs]
        oldest = count % slots if count > slots else 0
        if row // n_envs != oldest:
            before = row - n_envs if row >= n_envs else row - n_envs + flags.size
            if flags[before] & VALID and not flags[before] & LAST:
                result[i] = before
    return result


@njit(cache=True)
def next_rows(rows: np.ndarray, written: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """The rows after in time and episode, or the rows themselves where there is none."""
    n_envs = written.size
    slots = flags.size // n_envs
    result = rows.copy()
    for i in range(rows.size):
        row = rows[i]
        if not flags[row] & LAST and row // n_envs != (written[row % n_envs] - 1) % slots:
            after = row + n_envs
            if after >= flags.size:
                after -= flags.size
            if flags[after] & VALID:
                result[i] = after
    return result


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


@njit(cache=True)
def gather_next(
    rows: np.ndarray,
    link: np.ndarray,
    n_envs: int,
    source: np.ndarray,
    table: np.ndarray,
    out: np.ndarray,
) -> None:
    """Reads next observations [B, ...] from the ring and the side table, number by number."""
    width = source.size // len(source)
    ring, side, read = source.reshape(-1), table.reshape(-1), out.reshape(-1)
    for i in range(rows.size):
        row = rows[i]
        if link[row]:
            start = (link[row] - 1) * width
            for j in range(width):
                read[i * width + j] = side[start + j]
        else:
            start = (row + n_envs) * width
            if start >= ring.size:
                start -= ring.size
            for j in range(width):
                read[i * width + j] = ring[start + j]


@njit(cache=True)
def stacks(rows: np.ndarray, stack_num: int, written: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """The `stack_num` rows that end in each row; an episode's first row is repeated."""
    result = np.empty((rows.size, stack_num), np.int64)
    result[:, -1] = rows
    for k in range(stack_num - 1, 0, -1):
        rows = previous_rows(rows, written, flags)
        result[:, k - 1] = rows
    return result


@njit(cache=True)
def has_history(
    rows: np.ndarray, stack_num: int, written: np.ndarray, flags: np.ndarray
) -> np.ndarray:
    """Whether a row has `stack_num - 1` rows of its episode before it."""
    result = np.ones(rows.size, np.bool_)
    for _ in range(stack_num - 1):
        before = previous_rows(rows, written, flags)
        result &= before != rows
        rows = before
    return result


@njit(cache=True)
def segments(starts: np.ndarray, length: int, written: np.ndarray, flags: np.ndarray) -> Arrays:
    """The rows [length, B] from each start on, and which are real; past an end the last repeats."""
    rows = np.empty((length, starts.size), np.int64)
    mask = np.ones((length, starts.size), np.bool_)
    rows[0] = starts
    for t in range(1, length):
        rows[t] = next_rows(rows[t - 1], written, flags)
        mask[t] = rows[t] != rows[t - 1]
    return rows, mask

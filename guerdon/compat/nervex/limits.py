"""Limits on the use, age and rate of a buffer's rows."""

from collections import deque
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

INFINITY = float("inf")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a buffer in a `BufferManager`."""

    max_use: float = INFINITY
    """Number of samples after which a row is dropped; at least 1."""
    max_staleness: float = INFINITY
    """Maximum difference between the version of a row and of `sample`; older rows are dropped."""
    min_rate: float = 0.0
    """Minimum number of added rows per sampled row; below it, sampling is refused."""
    max_rate: float = INFINITY
    """Maximum number of added rows per sampled row; above it, adding is refused."""
    window: float = 30.0
    """Seconds over which the rate is measured; undefined without a sample."""
    min_fill: float = 1.0
    """Minimum number of rows for sampling, as a multiple of the batch size."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 1 if name == "max_use" else 0
            if not value >= least:
                raise ValueError(f"{name} is {value}, but has to be {least} or more")


class Ledger:
    """Tracks use and age of a buffer's rows, and counts added and sampled rows.

    Args:
        limits: Limits.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.use = np.zeros(0, np.int64)
        self.version = np.zeros(0, np.int64)
        self.counts = dict.fromkeys(
            ("pushed", "sampled", "removed", "refused_pushes", "refused_samples"), 0
        )
        self.last: dict[str, float] = {}
        """Use and age of the last sampled rows."""
        self.forget_rate()

    def forget_rate(self) -> None:
        """Start a new window."""
        self._events: deque[tuple[float, int, int]] = deque()  # time, rows added, rows sampled
        self._pushed = self._sampled = 0  # their sums

    def rate(self, now: float) -> float | None:
        """Return the number of added rows per sampled row within the window."""
        while self._events and self._events[0][0] < now - self.limits.window:
            _, pushed, sampled = self._events.popleft()
            self._pushed -= pushed
            self._sampled -= sampled
        return self._pushed / self._sampled if self._sampled else None

    def may_push(self, now: float) -> bool:
        """Return whether rows may be added now; a refusal is counted."""
        rate = self.rate(now)
        allowed = rate is None or rate <= self.limits.max_rate
        self.counts["refused_pushes"] += not allowed
        return allowed

    def may_sample(self, now: float, held: int, wanted: int) -> bool:
        """Return whether rows may be sampled now."""
        rate = self.rate(now)
        return held >= max(wanted * self.limits.min_fill, 1) and (
            rate is None or rate >= self.limits.min_rate
        )

    def make_room(self, size: int, n_envs: int = 1) -> None:
        """Extend the counters to a buffer of this size, which may have grown."""
        more = (size - len(self.use)) // n_envs
        if more > 0:
            pad = partial(np.pad, pad_width=((0, 0), (0, more)))
            self.use = pad(self.use.reshape(n_envs, -1)).reshape(-1)
            self.version = pad(self.version.reshape(n_envs, -1)).reshape(-1)

    def pushed(self, now: float, rows: np.ndarray, version: int) -> None:
        """Count added rows."""
        self.use[rows] = 0
        self.version[rows] = version
        self.counts["pushed"] += len(rows)
        self._note(now, len(rows), 0)

    def sampled(self, now: float, rows: np.ndarray, version: int) -> np.ndarray:
        """Count sampled rows, and return those that may not be sampled again."""
        np.add.at(self.use, rows, 1)
        self.counts["sampled"] += len(rows)
        self._note(now, 0, len(rows))
        use, staleness = self.use[rows], version - self.version[rows]
        self.last = {
            "use_mean": float(use.mean()),
            "use_max": float(use.max()),
            "staleness_mean": float(staleness.mean()),
            "staleness_max": float(staleness.max()),
        }
        used_up = np.unique(rows[use >= self.limits.max_use])
        self.counts["removed"] += len(used_up)
        return used_up

    def stale(self, rows: np.ndarray, version: int) -> np.ndarray:
        """Return the rows that are too old for a version."""
        stale: np.ndarray = version - self.version[rows] > self.limits.max_staleness
        return np.compress(stale, rows)

    def _note(self, now: float, pushed: int, sampled: int) -> None:
        if self.limits.min_rate > 0 or self.limits.max_rate < INFINITY:
            self._events.append((now, pushed, sampled))
            self._pushed += pushed
            self._sampled += sampled

    def statistics(self, held: int) -> dict[str, float]:
        """Return all counts, the number of rows, and use and age of the last sample."""
        return {**self.counts, "held": held, **self.last}

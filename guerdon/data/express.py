"""The quick way into a buffer, for the steps that most steps are."""

from typing import Any

import numpy as np

from guerdon.data.columns import LARGE
from guerdon.data.ring import Ring, is_compiled
from guerdon.data.storage import MemoryStorage

NOT, WRITTEN, ENDED = range(3)
_ndarray = np.ndarray
_BOOL = np.dtype(bool)
_EMPTY = np.zeros(0, np.uint8)
_FLAGS = (bool, np.bool)
_FEW = 16  # environments up to which Python is faster than NumPy
_MOST = 1024  # steps that may wait for their bookkeeping


class Express:
    """Writes plain steps into the columns at once, and leaves the bookkeeping for later.

    A plain step is one of all environments, with the expected keys, dtypes and shapes, in which
    each observation is the next observation of the step before (or the first of an episode).
    `settle` makes the steps that wait valid in one go, when an episode ends or anything else
    happens. So a run of plain steps costs the copying and little else.

    Args:
        ring: Where the steps go.
        wraps: Whether the ring overwrites its oldest rows.
    """

    def __init__(self, ring: Ring, wraps: bool) -> None:
        self._count = 0  # rows written by an environment, those that wait included
        self._settled = 0
        self._ring = ring
        self._wraps = wraps
        self._version = -1
        self._plan: list[tuple[str, Any, tuple[int, ...], tuple[type, ...]]] = []
        self._columns: list[tuple[memoryview, int, Any]] = []  # from the last to the first
        self._obs: tuple[Any, tuple[int, ...]] = (None, ())
        self._n_keys = 0
        self._n = 0 if ring.n_envs == 1 else ring.n_envs  # 0: no axis of environments
        self._no_ends = bytes(ring.n_envs)
        self._rew_rows = np.zeros(0)
        self._slot = self._slots = 0
        self._room = 0  # steps that may wait; 0 sends every step the ordinary way
        self._next = b""  # the next observations of the last step, if they are kept
        self._starting: np.ndarray | None = None  # environments that start an episode now
        self._nobody = np.zeros(ring.n_envs, bool)
        self._ends: tuple[np.ndarray, np.ndarray] | None = None  # of the last step
        self.finished: tuple[np.ndarray, ...] = ()
        """Of the episodes that ended last: environments, returns, lengths."""

    @property
    def steps(self) -> int:
        """How many wait for `settle`."""
        return self._count - self._settled

    def arm(self, next_values: list[Any], ended: np.ndarray) -> None:
        """Gets ready to go on after a step of all environments that came the ordinary way.

        Args:
            next_values: Its next observations.
            ended: The environments in which an episode ended.
        """
        ring = self._ring
        self._room = 0
        if not ring.aligned or type(ring.storage) is not MemoryStorage:
            return
        if self._version != ring.version:
            self._make_plan()
        if not self._plan:
            return
        count, self._slots = int(ring.written[0]), ring.slots
        self._count = self._settled = count
        self._slot = count % self._slots
        self._room = min(self._slots, _MOST) if self._wraps or count < self._slots else 0
        if next_values:
            self._next = next_values[0].tobytes()
        self._starting = ended if len(ended) else None

    def disarm(self) -> None:
        """Lets the next step come the ordinary way."""
        self._room = 0

    def _make_plan(self) -> None:
        """Notes what to expect; nothing, if the columns are not for plain steps."""
        ring = self._ring
        self._version = ring.version
        self._plan = []
        rew = next(column for column in ring.columns if column.path == ("rew",))
        odd = any(len(column.path) > 1 or column.dtype.hasobject for column in ring.columns)
        if odd or rew.row_shape or not all(is_compiled(c.rows) for c in (rew, *ring.table)):
            return
        lead = (self._n,) if self._n else ()
        for column in ring.columns:
            plain = () if self._n else column.plain
            shape = lead + column.row_shape
            self._plan.append((column.path[0], column.dtype, shape, plain))
        # Bytes are copied into memory in a third of the time that array assignment takes.
        self._columns = [
            (memoryview(rows.reshape(-1).view(np.uint8)), rows.nbytes // ring.slots, rows)
            for rows in (column.rows for column in reversed(ring.columns))
        ]
        self._obs = self._plan[0][1:3]
        self._n_keys = len(self._plan) + (3 if ring.keeps_next else 2)
        self._rew_rows = rew.rows

    def take(self, fields: dict[str, Any]) -> int:
        """Writes a step if it is plain.

        Returns:
            NOT if it is not, WRITTEN if it is, and ENDED if besides an episode ends with it.
        """
        if self._count - self._settled >= self._room or len(fields) != self._n_keys:
            return NOT
        try:
            values = self._plain_values(fields)
        except KeyError:
            return NOT
        if values is None:
            return NOT
        slot, count, before = self._slot, self._count, self._next
        try:
            for memory, size, rows in self._columns:
                value = values.pop()
                if type(value) is bytes:
                    start = slot * size
                    memory[start : start + size] = value
                else:
                    rows[slot] = value
            if self._next:
                self._next = fields["obs_next"].tobytes()
            self._starting = None
            self._slot = slot + 1 if slot + 1 < self._slots else 0
            self._count += 1
        except BaseException:  # a row that is half written is no row
            if self._count == count:
                self._next = before
            self._drop(slot)
            raise
        if not self._slot and not self._wraps:
            self.disarm()
        return WRITTEN if self._ends is None else ENDED

    def _plain_values(self, fields: dict[str, Any]) -> list[Any] | None:  # noqa: C901 - hot
        """The values as bytes (or plain numbers), or None if anything about them is special."""
        values = []
        for key, dtype, shape, plain in self._plan:
            value = fields[key]
            if type(value) is _ndarray:
                if value.dtype is not dtype or value.shape != shape:
                    return None
                values.append(value.tobytes())
            elif type(value) in plain and (type(value) is not int or abs(value) < LARGE):
                values.append(value)
            else:
                return None
        if self._next:
            obs_next = fields["obs_next"]
            dtype, shape = self._obs
            if not (
                type(obs_next) is _ndarray
                and obs_next.dtype is dtype
                and obs_next.shape == shape
                and (values[0] == self._next or self._starts_episodes(values[0]))
            ):
                return None
        terminated, truncated, rew = fields["terminated"], fields["truncated"], fields["rew"]
        if not self._n:
            total = rew
            if not (type(terminated) in _FLAGS and type(truncated) in _FLAGS):
                return None
            ends = terminated or truncated
        else:
            total = sum(rew.tolist()) if self._n < _FEW else rew.dot(rew)
            if not (type(terminated) is type(truncated) is _ndarray):
                return None
            no_ends = self._no_ends
            ends = terminated.tobytes() != no_ends or truncated.tobytes() != no_ends
            if not terminated.ndim == truncated.ndim == 1:
                return None
        if total != total:  # NaN spoils a sum; the ordinary way says what is wrong
            return None
        self._ends = None
        if ends:
            if not self._n:
                self._ends = np.array([terminated]), np.array([truncated])
            elif terminated.dtype is truncated.dtype is _BOOL and len(terminated) == self._n:
                self._ends = terminated, truncated
            else:
                return None
        return values

    def _starts_episodes(self, obs: bytes) -> bool:
        """Whether observations differ from what was next only where an episode starts."""
        if self._starting is None or not self._n:
            return self._starting is not None
        shape = (self._n, -1)
        new = np.frombuffer(obs, np.uint8).reshape(shape)
        expected = np.frombuffer(self._next, np.uint8).reshape(shape).copy()
        expected[self._starting] = new[self._starting]
        return expected.tobytes() == obs

    def _drop(self, slot: int) -> None:
        """Gives up rows that were only half written, over whatever was there before."""
        self._ends = None
        self.settle()
        self.disarm()
        n_envs = self._ring.n_envs
        self._ring.flags[slot * n_envs : (slot + 1) * n_envs] = 0
        self._ring.recover()

    def settle(self) -> int:
        """Does the bookkeeping of the steps that wait, and returns how many there were."""
        ring = self._ring
        steps = self._count - int(ring.written[0]) if self._count != self._settled else 0
        if steps:
            obs_next = _EMPTY
            if self._next:
                obs_next = np.frombuffer(self._next, ring.table[0].dtype)
            ends = self._ends or (self._nobody, self._nobody)
            n_ended = ring.settle(steps, self._rew_rows, *ends, obs_next)
            if n_ended:
                self.finished = ring.finished(n_ended)
                self._starting = self.finished[0]
                self._ends = None
        self._settled = self._count
        return steps

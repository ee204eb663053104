"""Test data: endless, periodic streams in which each row identifies itself.

Environment ``e`` at time ``t`` has one possible observation, action, reward and next observation,
so that a sampled row can be checked without knowing how it was stored. Episodes end after `EPISODE`
steps, at another time in each environment, half of them terminated and half truncated; the last
observation of an episode is seen nowhere else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

EPISODE = 200
PERIOD = 2 * EPISODE  # once terminated, once truncated
STACK = 4
FRAME = (84, 84)

Rows = dict[str, np.ndarray]


class Step(NamedTuple):
    """One step of all environments; every field has the environments as its first axis."""

    obs: np.ndarray
    act: np.ndarray
    rew: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_obs: np.ndarray

    def single(self) -> dict[str, Any]:
        """The step of the only environment, without that axis."""
        return {key: value[0] for key, value in self._asdict().items()}


class Stream:
    """A stream that repeats after ``period`` steps; a subclass defines the observations."""

    def __init__(self, n_envs: int, period: int) -> None:
        if period % PERIOD:
            raise ValueError(f"the period is {period}, but has to be a multiple of {PERIOD}")
        self.n_envs = n_envs
        self.period = period
        time = np.arange(period)[:, None]
        env = np.arange(n_envs)[None, :]
        clock = time + env * 37  # so that no two environments end together
        end = clock % EPISODE == EPISODE - 1
        odd = clock // EPISODE % 2 == 1
        self.age = clock % EPISODE
        self.terminated = end & ~odd
        self.truncated = end & odd
        self.done = end
        self.act = time * n_envs + env
        self.rew = (time * 0.5 + env).astype(np.float32)

    def step(self, time: int) -> Step:
        """Return the step at a time."""
        t = time % self.period
        obs, next_obs = self.observations(np.full(self.n_envs, t), np.arange(self.n_envs))
        ends = self.terminated[t], self.truncated[t]
        return Step(obs, self.act[t], self.rew[t], *ends, next_obs)

    def steps(self) -> list[Step]:
        """One whole period."""
        return [self.step(t) for t in range(self.period)]

    def observations(self, time: np.ndarray, env: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observations and next observations at some times of some environments."""
        raise NotImplementedError

    def verify(self, rows: Rows, stored: range, true_next: bool = True) -> np.ndarray:
        """Raise unless all rows are transitions of this stream at stored times.

        Args:
            rows: Sampled transitions. Fields that a system does not give back are left out.
            stored: The times of the transitions that can be in the buffer.
            true_next: Whether the next observation has to be the true one where no row follows.

        Returns:
            The number of each row: ``time * n_envs + env``.
        """
        number = rows["act"].astype(np.int64)
        time, env = np.divmod(number, self.n_envs)
        _expect(bool(((time >= stored.start) & (time < stored.stop)).all()), "rows are overwritten")
        for key in ("rew", "terminated", "truncated"):
            if key in rows:
                same = rows[key] == getattr(self, key)[time, env]
                _expect(bool(same.all()), f"{key} is of another transition")
        obs, next_obs = self.observations(time, env)
        self.compare("obs", rows["obs"], obs, time, stored.start)
        checked = true_next | ~(self.done[time, env] | (time == stored[-1]))
        got = rows["next_obs"][checked]
        self.compare("next_obs", got, next_obs[checked], time[checked] + 1, stored.start)
        return number

    def compare(
        self, key: str, got: np.ndarray, wanted: np.ndarray, _time: np.ndarray, _oldest: int
    ) -> None:
        """Raises unless observations are the expected ones."""
        _expect(got.shape == wanted.shape, f"{key} has shape {got.shape}, not {wanted.shape}")
        _expect(bool((got == wanted).all()), f"{key} is of another transition")


class VectorStream(Stream):
    """Observations are float32[4]: environment, time, age of the episode, 1 (-1 in the last)."""

    def __init__(self, n_envs: int, period: int = PERIOD) -> None:
        super().__init__(n_envs, period)
        time, env = np.mgrid[:period, :n_envs]
        self._obs = np.stack([env, time, self.age, np.ones_like(time)], -1).astype(np.float32)
        last = self._obs * np.float32([1, 1, 1, -1])
        self._next = np.where(self.done[..., None], last, np.roll(self._obs, -1, 0))

    def observations(self, time: np.ndarray, env: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observations and next observations at some times of some environments."""
        return self._obs[time, env], self._next[time, env]


class FrameStream(Stream):
    """Observations are uint8[4, 84, 84] of one environment: four frames, the newest last.

    An episode starts with its first frame four times.
    """

    def __init__(self, period: int = PERIOD) -> None:
        super().__init__(1, period)
        generator = np.random.default_rng(0)
        # The first `period` frames are those of observations, the others those after the last.
        self._frames = generator.integers(0, 256, (2 * period, *FRAME), np.uint8)

    def observations(self, time: np.ndarray, env: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observations and next observations at some times of some environments."""
        age, done = self.age[time, env], self.done[time, env]
        back = np.arange(STACK - 1, -1, -1)
        now = time[:, None] - np.minimum(back, age[:, None])
        follow = time[:, None] + 1 - np.minimum(back, age[:, None] + 1)
        follow[:, -1] = np.where(done, time + self.period, (time + 1) % self.period)
        return self._frames[now], self._frames[follow]

    def compare(
        self, key: str, got: np.ndarray, wanted: np.ndarray, time: np.ndarray, oldest: int
    ) -> None:
        """Raises unless stacks are the expected ones; frames no longer stored may be anything."""
        _expect(got.shape == wanted.shape, f"{key} has shape {got.shape}, not {wanted.shape}")
        kept = time[:, None] - np.arange(STACK - 1, -1, -1) >= oldest
        same = (got == wanted).all(axis=(-2, -1))
        _expect(bool((same | ~kept).all()), f"{key} is of another transition")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)

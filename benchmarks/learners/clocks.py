"""Clocks: for the speed of training, and for the time to solve CartPole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

if TYPE_CHECKING:
    from learners.base import Act

EPISODES, TARGET = 20, 475.0


class SpeedClock:
    """Environment steps a second, between the end of the warm-up and that of the training.

    Args:
        warmup_steps: Not timed: compiles, allocates, fills the buffer.
        seconds: How long to go on after that, to the end of an iteration.
    """

    def __init__(self, warmup_steps: int, seconds: float) -> None:
        self.warmup_steps = warmup_steps
        self.seconds = seconds
        self._start: tuple[int, float] | None = None
        self._end = (0, 0.0)

    def __call__(self, steps: int, act: Act) -> bool:  # noqa: ARG002
        """Return whether the time is over."""
        self._end = (steps, time.perf_counter())
        if steps < self.warmup_steps:
            return False
        if self._start is None:
            self._start = self._end
        return self._end[1] - self._start[1] >= self.seconds

    def result(self) -> dict[str, Any]:
        """Steps, seconds, and their ratio."""
        start = self._start or self._end
        steps, seconds = self._end[0] - start[0], self._end[1] - start[1]
        return {"value": steps / seconds, "steps": steps, "seconds": seconds}


class SolveClock:
    """Seconds of training to the first of two good evaluations in a row; they are not counted.

    Args:
        every: Environment steps from one evaluation to the next, or to the end of the iteration.
        limit_steps: Steps after which a run is stopped.
        limit_seconds: Seconds after which it is stopped.
    """

    def __init__(self, every: int, limit_steps: int, limit_seconds: float) -> None:
        self.every = every
        self.limit_steps = limit_steps
        self.limit_seconds = limit_seconds
        self._next = every
        self._trained = 0.0
        self._resumed: float | None = None
        self._good: tuple[int, float] | None = None
        self._solved = False
        self._evaluations: list[tuple[int, float, float]] = []

    def __call__(self, steps: int, act: Act) -> bool:
        """Return whether it is solved, or at a limit."""
        now = time.perf_counter()
        if self._resumed is not None:
            self._trained += now - self._resumed
        if steps >= self._next:
            self._next = steps - steps % self.every + self.every
            self._evaluate(steps, act)
        self._resumed = time.perf_counter()
        return self._solved or steps >= self.limit_steps or self._trained >= self.limit_seconds

    def _evaluate(self, steps: int, act: Act) -> None:
        value = evaluate(act, seed=len(self._evaluations))
        self._evaluations.append((steps, round(self._trained, 4), value))
        if value < TARGET:
            self._good = None
        elif self._good is None:
            self._good = (steps, self._trained)
        else:
            self._solved = True

    def result(self) -> dict[str, Any]:
        """Seconds and steps (None if it was not solved), and all evaluations."""
        steps, seconds = self._good if self._solved and self._good else (None, None)
        return {"value": seconds, "steps": steps, "evaluations": self._evaluations}


def evaluate(act: Act, seed: int) -> float:
    """The mean return of 20 episodes of CartPole-v1, one in each environment."""
    if gymnasium.__version__ < "1":  # imitation needs an old one
        envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * EPISODES)
    else:
        envs = gymnasium.make_vec("CartPole-v1", EPISODES, "vector_entry_point")
    obs, _ = envs.reset(seed=10_000 + seed)
    returns, running = np.zeros(EPISODES), np.ones(EPISODES, bool)
    with torch.no_grad():
        while running.any():
            actions = np.asarray(act(np.ascontiguousarray(obs)), np.int64)
            obs, rewards, terminated, truncated, _ = envs.step(actions)
            returns += rewards * running
            running &= ~(terminated | truncated)
    return float(returns.mean())

"""`Counting`: an environment with numbered steps, for testing collectors."""

import os
import signal
import time
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

_FOREVER = 3600.0


class Counting(gymnasium.Env[np.ndarray, np.int64]):
    """Observation: [environment number, episode, step]; reward: the step number.

    Args:
        number: Number of this environment; see `settings` of `make_vec`.
        lengths: Lengths of episodes, cycled.
        truncates: Whether episodes end by truncation instead of termination; cycled.
        fails_at: Step since construction at which it fails; None for never.
        failure: Kind of failure: an exception, a hang, or a killed process.
        in_place: Return the same array every time, overwritten, as some environments do.
    """

    def __init__(
        self,
        number: int = 0,
        lengths: Sequence[int] = (3, 5, 1),
        truncates: Sequence[bool] = (False, True),
        fails_at: int | None = None,
        failure: Literal["raise", "hang", "kill"] = "raise",
        in_place: bool = False,
    ) -> None:
        if min(lengths) < 1:
            raise ValueError(f"lengths is {list(lengths)}, but an episode needs 1 step or more")
        self.observation_space = spaces.Box(0, 2**31, (3,), np.int64)
        self.action_space = spaces.Discrete(4)
        self._lengths = tuple(lengths)
        self._truncates = tuple(truncates)
        self._fails_at = fails_at
        self._failure = failure
        self._in_place = in_place
        self._counts = np.array([number, -1, 0])
        self._total = 0

    def _observation(self) -> np.ndarray:
        return self._counts if self._in_place else self._counts.copy()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start the next episode; with a seed, the first."""
        super().reset(seed=seed, options=options)
        self._counts[1] = self._counts[1] + 1 if seed is None else 0
        self._counts[2] = 0
        return self._observation(), {"new": True}

    def step(
        self,
        action: np.int64,  # noqa: ARG002 - has no effect
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        self._total += 1
        if self._total == self._fails_at:
            self._fail()
        self._counts[2] += 1
        episode, step = int(self._counts[1]), int(self._counts[2])
        done = step >= self._lengths[episode % len(self._lengths)]
        truncated = done and self._truncates[episode % len(self._truncates)]
        return self._observation(), float(step), done and not truncated, truncated, {"step": step}

    def _fail(self) -> None:
        if self._failure == "raise":
            raise RuntimeError(f"Counting fails at step {self._total} (option fails_at)")
        if self._failure == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(_FOREVER)

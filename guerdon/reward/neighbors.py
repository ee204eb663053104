"""What happened in the running episodes, and how near to it something new is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from collections.abc import Mapping


class EpisodicMemory:
    """The points that each environment went through in its episode; the newest where it is full.

    Args:
        size: Points an environment that it holds at most.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._points = np.zeros((0, size, 0), np.float32)  # [n_envs, size, n_features]
        self._written = np.zeros(0, np.int64)  # since the episode began

    def scan(
        self, before: np.ndarray, after: np.ndarray, mask: np.ndarray, over: np.ndarray, k: int
    ) -> np.ndarray:
        """Goes through a rollout [T, n_envs, ...]: notes where a step starts, looks where it leads.

        Args:
            before: Points where steps start [T, n_envs, n_features].
            after: Points where they lead.
            mask: Which rows are real [T, n_envs].
            over: Where episodes are over [T, n_envs].
            k: How many neighbours to look for.

        Returns:
            Squared distances [T, n_envs, k] of the nearest points of the same episode, the nearest
            first; infinite where there are fewer.
        """
        if len(self._points) != before.shape[1]:
            self._make(*before.shape[1:])
        before, after = (np.ascontiguousarray(x, np.float32) for x in (before, after))
        found: np.ndarray = _scan(before, after, mask, over, self._points, self._written, k)
        return found

    def _make(self, n_envs: int, n_features: int) -> None:
        self._points = np.zeros((n_envs, self.size, n_features), np.float32)
        self._written = np.zeros(n_envs, np.int64)

    def clear(self, env_ids: np.ndarray | None = None) -> None:
        """Forgets the running episodes of some environments (None: all)."""
        if len(self._written):
            self._written[slice(None) if env_ids is None else env_ids] = 0

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        held = min(int(self._written.max(initial=0)), self.size)
        return {"points": self._points[:, :held].copy(), "written": self._written.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        points = np.asarray(state["points"])
        self._make(len(points), points.shape[2])
        self._points[:, : points.shape[1]] = points
        self._written[:] = state["written"]


# Sums in any order, so that they are vectorised; infinities stay what they are.
@njit(cache=True, fastmath={"reassoc", "contract"})
def _scan(
    before: np.ndarray,
    after: np.ndarray,
    mask: np.ndarray,
    over: np.ndarray,
    points: np.ndarray,
    written: np.ndarray,
    k: int,
) -> np.ndarray:
    n_steps, n_envs, n_features = after.shape
    size = points.shape[1]
    found = np.full((n_steps, n_envs, k), np.inf, np.float32)
    for env in range(n_envs):
        for step in range(n_steps):
            if not mask[step, env]:
                continue
            points[env, written[env] % size] = before[step, env]
            written[env] += 1
            nearest = found[step, env]
            for index in range(min(written[env], size)):
                distance = np.float32(0.0)
                for feature in range(n_features):
                    gap = after[step, env, feature] - points[env, index, feature]
                    distance += gap * gap
                place = k
                while place > 0 and distance < nearest[place - 1]:
                    place -= 1
                    if place + 1 < k:
                        nearest[place + 1] = nearest[place]
                if place < k:
                    nearest[place] = distance
            if over[step, env]:
                written[env] = 0
    return found

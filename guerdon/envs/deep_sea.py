"""`DeepSea`: hard exploration; one action sequence in 2**size is rewarded."""

import numpy as np
from gymnasium import spaces

from guerdon.envs.batched import BatchedEnv, SingleEnv

_COST = 0.01


class DeepSeaVector(BatchedEnv):
    """Vector of `DeepSea`, with the same options."""

    def __init__(
        self,
        num_envs: int = 1,
        size: int = 20,
        mapping_seed: int = 0,
        max_episode_steps: int | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"size is {size}, but has to be 1 or more")
        space = spaces.Box(0.0, 1.0, (size * size,), np.float32)
        super().__init__(num_envs, space, spaces.Discrete(2), max_episode_steps)
        self._size = size
        self._right = np.random.default_rng(mapping_seed).integers(2, size=(size, size))
        self._row = np.zeros(num_envs, np.int64)
        self._column = np.zeros(num_envs, np.int64)

    def _begin(self, ids: np.ndarray) -> None:
        self._row[ids] = self._column[ids] = 0

    def _move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        last = self._size - 1
        right = actions == self._right[self._row, self._column]
        success = right & (self._column == last)  # this column is reachable only in the last row
        self._row += 1
        self._column = np.clip(self._column + np.where(right, 1, -1), 0, last)
        rew = success - right * (_COST / self._size)
        return rew, self._row > last, {"success": success}

    def _observe(self) -> np.ndarray:
        obs = np.zeros((self.num_envs, self._size * self._size), np.float32)
        inside = self._row < self._size
        obs[self._ids[inside], (self._row * self._size + self._column)[inside]] = 1
        return obs


class DeepSea(SingleEnv):
    """Deep sea of bsuite (https://arxiv.org/abs/1908.03568), a square grid.

    Each step moves down one row, and left or right. A step to the right costs 0.01 / `size`; in the
    bottom right cell its reward is 1, with ``info["success"]``. The best return is 0.99, by only
    one action sequence. Which of the two actions means right differs between cells. The observation
    is the one-hot cell, row by row; all zeros at the end, after `size` steps.

    Args:
        size: Number of rows and columns.
        mapping_seed: Random seed of the action that means right in each cell.
        max_episode_steps: Time limit of episodes; None for no limit.
    """

    vector = DeepSeaVector

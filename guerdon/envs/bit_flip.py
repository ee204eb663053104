"""`BitFlip`: bits to be made equal to a goal, with a reward that says nothing on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from guerdon.envs.batched import BatchedEnv, SingleEnv


class GoalReward:
    """Reward and end by the goal alone, so that they can be asked for any other goal as well.

    Goals are arrays [..., n_bits]; the names are those of Gymnasium-Robotics.
    """

    def compute_reward(
        self,
        achieved_goal: np.ndarray,
        desired_goal: np.ndarray,
        info: Any,  # noqa: ARG002 - callers of such environments give it
    ) -> np.ndarray:
        """0 where the goal is reached, else -1."""
        return _reached(achieved_goal, desired_goal) - 1.0

    def compute_terminated(
        self,
        achieved_goal: np.ndarray,
        desired_goal: np.ndarray,
        info: Any,  # noqa: ARG002 - callers of such environments give it
    ) -> np.ndarray:
        """Whether the goal is reached."""
        return _reached(achieved_goal, desired_goal)


def _reached(achieved_goal: np.ndarray, desired_goal: np.ndarray) -> np.ndarray:
    reached: np.ndarray = (achieved_goal == desired_goal).all(-1)
    return reached


class BitFlipVector(GoalReward, BatchedEnv):
    """Many `BitFlip`, stepped together.

    Args:
        num_envs: How many.
        n_bits: See `BitFlip`.
        length: See `BitFlip`.
        max_episode_steps: Truncates episodes before `length`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        n_bits: int = 15,
        length: int | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        if n_bits < 1:
            raise ValueError(f"n_bits is {n_bits}, but there has to be 1 or more")
        bits = spaces.Box(0.0, 1.0, (n_bits,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        limit = n_bits if length is None else length
        if max_episode_steps is not None:
            limit = min(limit, max_episode_steps)
        space = spaces.Dict([(name, bits) for name in names])
        super().__init__(num_envs, space, spaces.Discrete(n_bits), limit)
        self._bits = np.zeros((num_envs, n_bits), np.float32)
        self._goal = np.ones((num_envs, n_bits), np.float32)

    def _begin(self, ids: np.ndarray) -> None:
        self._bits[ids] = self._draw(len(ids))
        self._goal[ids] = self._draw(len(ids))
        while len(ids := ids[_reached(self._bits[ids], self._goal[ids])]):
            self._goal[ids] = self._draw(len(ids))

    def _draw(self, n: int) -> np.ndarray:
        return self.np_random.integers(2, size=(n, self._bits.shape[1]))

    def _move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        self._bits[self._ids, actions] = 1 - self._bits[self._ids, actions]
        rew = self.compute_reward(self._bits, self._goal, {})
        terminated = self.compute_terminated(self._bits, self._goal, {})
        return rew, terminated, {"is_success": terminated}

    def _observe(self) -> dict[str, np.ndarray]:
        return {
            "observation": self._bits.copy(),
            "achieved_goal": self._bits.copy(),
            "desired_goal": self._goal.copy(),
        }


class BitFlip(GoalReward, SingleEnv):
    """Flips one of its bits at each step, until all are as the goal has them.

    Pays -1 for a step that does not reach the goal, and 0 for the one that does and ends the
    episode; ``info["is_success"]`` tells it too. Start and goal are drawn at random, and differ.
    Observations have the keys of Gymnasium-Robotics. From https://arxiv.org/abs/1707.01495.

    Args:
        n_bits: How many, and how many actions.
        length: Steps after which an episode is truncated; None is `n_bits`, in which any goal can
            be reached. A limit from outside (``env.max_episode_steps``) can only be shorter.
    """

    def __init__(self, n_bits: int = 15, length: int | None = None) -> None:
        super().__init__(BitFlipVector(1, n_bits, length))

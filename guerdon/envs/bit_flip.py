"""`BitFlip`: flip bits until they equal a goal, with a sparse reward."""

from typing import Any

import numpy as np
from gymnasium import spaces

from guerdon.envs.batched import BatchedEnv, SingleEnv


class GoalReward:
    """Reward and termination for any goals [..., n_bits], as in Gymnasium-Robotics."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> np.ndarray:
        """Return 0 if the goal is reached, else -1."""
        return self.compute_terminated(achieved_goal, desired_goal, info) - 1.0

    def compute_terminated(
        self,
        achieved_goal: Any,
        desired_goal: Any,
        info: Any,  # noqa: ARG002 - part of the interface
    ) -> np.ndarray:
        """Return whether the goal is reached."""
        reached: np.ndarray = (achieved_goal == desired_goal).all(-1)
        return reached


class BitFlipVector(GoalReward, BatchedEnv):
    """Vector of `BitFlip`, with the same options."""

    def __init__(
        self,
        num_envs: int = 1,
        n_bits: int = 15,
        length: int | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        if n_bits < 1:
            raise ValueError(f"n_bits is {n_bits}, but has to be 1 or more")
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
        while len(ids := ids[self.compute_terminated(self._bits[ids], self._goal[ids], {})]):
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
    """Flip one bit at each step, until all equal the goal (https://arxiv.org/abs/1707.01495).

    The reward is 0 for reaching the goal, which ends the episode with ``info["is_success"]``, and
    -1 otherwise. Start and goal are drawn at random, and differ. Observations have the keys of
    Gymnasium-Robotics.

    Args:
        n_bits: Number of bits and actions.
        length: Steps after which an episode is truncated; None for `n_bits`, within which any goal
            can be reached.
        max_episode_steps: Time limit of episodes, if shorter than `length`.
    """

    vector = BitFlipVector

"""Environments written once, for many rows: as a vector, and a single one as its only row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium import Space


class BatchedEnv(VectorEnv[Any, np.ndarray, np.ndarray]):
    """Environments whose states are rows of arrays; ``options={"reset_mask": …}`` resets some.

    A subclass begins, moves and observes rows (`_begin`, `_move`, `_observe`).

    Args:
        num_envs: How many.
        observation_space: Of one environment.
        action_space: Of one environment.
        max_episode_steps: Truncates episodes; None is never.
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        max_episode_steps: int | None = None,
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.num_envs = num_envs
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self._ids = np.arange(num_envs)
        self._n_steps = np.zeros(num_envs, np.int64)
        self._limit = np.inf if max_episode_steps is None else max_episode_steps

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes, in all rows or in those of the mask."""
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask")
        ids = self._ids if mask is None else np.flatnonzero(mask)
        self._n_steps[ids] = 0
        self._begin(ids)
        return self._observe(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Takes one step in every row; one whose episode ended has to be reset before."""
        rew, terminated, info = self._move(np.asarray(actions))
        self._n_steps += 1
        truncated = self._n_steps >= self._limit
        known = {f"_{key}": np.ones(self.num_envs, bool) for key in info}
        return self._observe(), rew, terminated, truncated, {**info, **known}

    def _begin(self, ids: np.ndarray) -> None:
        """Puts rows into a first state."""
        raise NotImplementedError

    def _move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Acts in every row, and gives rewards, what has terminated, and the info."""
        raise NotImplementedError

    def _observe(self) -> Any:
        """The observations of all rows, in arrays of their own."""
        raise NotImplementedError


class SingleEnv(gymnasium.Env[Any, np.int64]):
    """One environment: the only row of a batch.

    Args:
        batch: Of one row.
    """

    def __init__(self, batch: BatchedEnv) -> None:
        self._batch = batch
        self.observation_space = batch.single_observation_space
        self.action_space = batch.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins a new episode."""
        super().reset(seed=seed, options=options)
        self._batch.np_random = self.np_random
        return _only(self._batch.reset()[0]), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one step."""
        obs, rew, terminated, truncated, info = self._batch.step(np.array([action]))
        told = {key: value.item() for key, value in info.items() if f"_{key}" in info}
        return _only(obs), float(rew[0]), bool(terminated[0]), bool(truncated[0]), told


def _only(obs: Any) -> Any:
    return {key: part[0] for key, part in obs.items()} if isinstance(obs, dict) else obs[0]

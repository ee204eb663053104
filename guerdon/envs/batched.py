"""Environments implemented with arrays: a vector, and a single environment of one row."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class BatchedEnv(VectorEnv[Any, np.ndarray, np.ndarray]):
    """Vector environment with states as array rows; ``options={"reset_mask": …}`` resets some.

    A subclass defines `_begin`, `_move` and `_observe`.

    Args:
        num_envs: Number of environments.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        max_episode_steps: Time limit of episodes; None for no limit.
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
        """Start new episodes in all rows, or in those of the mask."""
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask")
        ids = self._ids if mask is None else np.flatnonzero(mask)
        self._n_steps[ids] = 0
        self._begin(ids)
        return self._observe(), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every row; a row whose episode ended has to be reset first."""
        rew, terminated, info = self._move(np.asarray(actions))
        self._n_steps += 1
        truncated = self._n_steps >= self._limit
        known = {f"_{key}": np.ones(self.num_envs, bool) for key in info}
        return self._observe(), rew, terminated, truncated, {**info, **known}

    def _begin(self, ids: np.ndarray) -> None:
        """Draw the initial states of some rows."""
        raise NotImplementedError

    def _move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Step every row; return rewards, terminations and infos."""
        raise NotImplementedError

    def _observe(self) -> Any:
        """Return the observations of all rows, in new arrays."""
        raise NotImplementedError


class SingleEnv(gymnasium.Env[Any, Any]):
    """Single environment: a `BatchedEnv` with one row.

    Takes the options of `vector`, the batched class, which a subclass sets.
    """

    vector: ClassVar[type[BatchedEnv]]

    def __init_subclass__(cls) -> None:
        """Copy the signature of the batched class, for `help` and error messages."""
        parameters = inspect.signature(cls.vector).parameters.values()
        options = [one for one in parameters if one.name != "num_envs"]
        cls.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._batch = self.vector(1, *args, **kwargs)
        self.observation_space = self._batch.single_observation_space
        self.action_space = self._batch.single_action_space
        self.render_mode = self._batch.render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        super().reset(seed=seed, options=options)
        self._batch.np_random = self.np_random
        return _only(self._batch.reset()[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        obs, rew, terminated, truncated, info = self._batch.step(np.array([action]))
        infos = {key: value.item() for key, value in info.items() if f"_{key}" in info}
        return _only(obs), float(rew[0]), bool(terminated[0]), bool(truncated[0]), infos

    def render(self) -> Any:
        """Return a frame, if made with a render mode."""
        frames = self._batch.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close the environment."""
        self._batch.close()


def _only(obs: Any) -> Any:
    return {key: part[0] for key, part in obs.items()} if isinstance(obs, dict) else obs[0]

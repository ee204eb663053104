"""`CartPoleFixed`: CartPole with episodes of fixed length."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector.utils import batch_space

LENGTH = 500
"""Registered length of episodes."""
_ANYWHERE = spaces.Box(-np.inf, np.inf, (4,), np.float32)
_CENTER = (0.0, 0.0, 0.0, 0.0)


class CartPoleFixed(CartPoleEnv):
    """Gymnasium's CartPole with episodes of fixed length, which do not reveal the return.

    The reward is 1 until the pole falls (by the limits at which CartPole-v1 terminates), and 0 for
    the rest of the episode.

    Args:
        render_mode: See `CartPoleEnv`.
        gravity: Acceleration of gravity.
        pole_mass: Mass of the pole; the cart's is 1.
        start: Center of the start states (position, velocity, angle, angular velocity), which are
            uniform within 0.05 of it.
    """

    def __init__(
        self,
        render_mode: str | None = None,
        gravity: float = 9.8,
        pole_mass: float = 0.1,
        start: Sequence[float] = _CENTER,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self.observation_space = _ANYWHERE
        self._start = _with_dynamics(self, gravity, pole_mass, start)
        self._fallen = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a new episode."""
        self._fallen = False
        _, info = super().reset(seed=seed, options=options)
        self.state = self.state + self._start
        return self.state.astype(np.float32), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        obs, _, down, _, info = super().step(action)  # type: ignore[no-untyped-call]
        self.steps_beyond_terminated = None  # avoids a warning about steps after the end
        self._fallen |= down
        return obs, float(not self._fallen), False, False, info

    def render(self) -> Any:
        """Return a frame; a cart outside the view is drawn at its edge."""
        with _clipped_positions(self):
            return super().render()  # type: ignore[no-untyped-call]


class CartPoleFixedVector(CartPoleVectorEnv):
    """Vector of `CartPoleFixed`.

    Args:
        num_envs: Number of environments.
        max_episode_steps: Length of episodes.
        render_mode: See `CartPoleVectorEnv`.
        gravity: See `CartPoleFixed`.
        pole_mass: See `CartPoleFixed`.
        start: See `CartPoleFixed`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int = LENGTH,
        render_mode: str | None = None,
        gravity: float = 9.8,
        pole_mass: float = 0.1,
        start: Sequence[float] = _CENTER,
    ) -> None:
        super().__init__(num_envs, max_episode_steps, render_mode)
        self.single_observation_space = _ANYWHERE
        self.observation_space = batch_space(_ANYWHERE, num_envs)
        self._start = _with_dynamics(self, gravity, pole_mass, start)
        self._fallen = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a new episode in every environment."""
        self._fallen[:] = False
        _, info = super().reset(seed=seed, options=options)
        state: Any = self.state
        state += self._start[:, None]
        return state.T.astype(np.float32), info

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step; environments whose episode had ended are reset instead."""
        new = self.prev_done
        obs, _, down, truncated, info = super().step(action)
        if self._start.any() and new.any():
            state: Any = self.state
            state[:, new] += self._start[:, None]
            obs = state.T.astype(np.float32)
        self._fallen = (self._fallen & ~new) | down
        rew = (~(self._fallen | new)).astype(np.float32)
        self.prev_done = truncated  # a fall does not end the episode
        return obs, rew, np.zeros_like(down), truncated, info

    def render(self) -> Any:
        """Return frames; a cart outside the view is drawn at its edge."""
        with _clipped_positions(self):
            return super().render()  # type: ignore[no-untyped-call]


def _with_dynamics(
    env: CartPoleEnv | CartPoleVectorEnv, gravity: float, pole_mass: float, start: Sequence[float]
) -> np.ndarray:
    """Set the dynamics of an environment, and return the center of its start states."""
    if gravity <= 0 or pole_mass <= 0:
        raise ValueError(f"gravity and pole_mass must be above 0, not {gravity} and {pole_mass}")
    if len(start) != len(_CENTER):
        raise ValueError(
            f"start takes position, velocity, angle and angular velocity, not {list(start)}"
        )
    env.gravity, env.masspole = gravity, pole_mass
    env.total_mass = env.masscart + pole_mass
    env.polemass_length = pole_mass * env.length
    return np.array(start, np.float64)


@contextmanager
def _clipped_positions(env: CartPoleEnv | CartPoleVectorEnv) -> Iterator[None]:
    """Clip cart positions for rendering: pygame has 16-bit coordinates."""
    state = env.state
    if state is not None:
        env.state = state.copy()
        env.state[0] = state[0].clip(-2 * env.x_threshold, 2 * env.x_threshold)
    try:
        yield
    finally:
        env.state = state

"""`CartPoleFixed`: CartPole in which a fall ends the pay, and not the episode."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from gymnasium.vector.utils import batch_space

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH = 500
"""Steps of every episode, by the registration of the id."""
_ANYWHERE = spaces.Box(-np.inf, np.inf, (4,), np.float32)


class CartPoleFixed(CartPoleEnv):
    """Gymnasium's CartPole without early ends: how long an episode is tells nothing about it.

    A step pays 1 if the pole has been up ever since the episode began (by the limits at which
    CartPole-v1 ends), else 0. After a fall the physics goes on.

    Args:
        render_mode: See `CartPoleEnv`.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.observation_space = _ANYWHERE
        self._fallen = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Puts the pole up."""
        self._fallen = False
        obs, info = super().reset(seed=seed, options=options)
        return obs, info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pushes the cart."""
        obs, _, down, _, info = super().step(action)  # type: ignore[no-untyped-call]
        self.steps_beyond_terminated = None  # else it warns of steps after the end
        self._fallen |= down
        return obs, float(not self._fallen), False, False, info

    def render(self) -> Any:
        """A picture; a cart that has left it stands beside it."""
        with _near(self):
            return super().render()  # type: ignore[no-untyped-call]


class CartPoleFixedVector(CartPoleVectorEnv):
    """Many `CartPoleFixed`, stepped together.

    Args:
        num_envs: How many.
        max_episode_steps: Steps of every episode.
        render_mode: See `CartPoleVectorEnv`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int = LENGTH,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(num_envs, max_episode_steps, render_mode)
        self.single_observation_space = _ANYWHERE
        self.observation_space = batch_space(_ANYWHERE, num_envs)
        self._fallen = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Puts all poles up."""
        self._fallen[:] = False
        return super().reset(seed=seed, options=options)

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Pushes all carts; those whose episode had ended are put up anew instead."""
        anew = self.prev_done
        obs, _, down, truncated, info = super().step(action)
        self._fallen = (self._fallen & ~anew) | down
        rew = (~(self._fallen | anew)).astype(np.float32)
        self.prev_done = truncated  # a fall is no end
        return obs, rew, np.zeros_like(down), truncated, info

    def render(self) -> Any:
        """Pictures; a cart that has left its own stands beside it."""
        with _near(self):
            return super().render()  # type: ignore[no-untyped-call]


@contextmanager
def _near(env: CartPoleEnv | CartPoleVectorEnv) -> Iterator[None]:
    """Has carts no further away than pygame, with its coordinates of 16 bits, can draw."""
    state = env.state
    if state is not None:
        env.state = state.copy()
        env.state[0] = state[0].clip(-2 * env.x_threshold, 2 * env.x_threshold)
    try:
        yield
    finally:
        env.state = state

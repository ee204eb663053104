"""`Noisy`: a policy that does something at random now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from guerdon.data import Batch
    from guerdon.envs import VectorEnv
    from guerdon.policy import Policy


class Noisy:
    """A policy some of whose actions are drawn from the action space instead.

    Args:
        policy: Who acts else.
        env: Where.
        noise: How likely an action is drawn.
        seed: Of which are.
    """

    def __init__(self, policy: Policy, env: VectorEnv, noise: float, seed: int) -> None:
        self._policy = policy
        self._space = env.action_space
        self._noise = noise
        self._generator = np.random.default_rng(seed)

    def __call__(self, batch: Batch, state: Any = None) -> Batch:
        """Acts; see `Policy`."""
        output: Batch = self._policy(batch, state)
        act = np.array(output.act)
        for row in np.flatnonzero(self._generator.random(len(act)) < self._noise):
            act[row] = self._space.sample()  # the environments' reset has seeded it
        return output.replace(act=act)

"""`Noisy`: a policy with random actions mixed in."""

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
        policy: The policy.
        env: Environments; their reset seeds the action space.
        noise: Probability of a random action.
        seed: Random seed.
    """

    def __init__(self, policy: Policy, env: VectorEnv, noise: float, seed: int) -> None:
        self._policy, self._space, self._noise = policy, env.action_space, noise
        self._generator = np.random.default_rng(seed)

    def __call__(self, batch: Batch, state: Any = None) -> Batch:
        """Act; see `Policy`."""
        output: Batch = self._policy(batch, state)
        act = np.array(output.act)
        for row in np.flatnonzero(self._generator.random(len(act)) < self._noise):
            act[row] = self._space.sample()
        return output.replace(act=act)

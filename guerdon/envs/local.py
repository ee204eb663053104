"""`LocalVectorEnv`: environments one after the other, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.envs.rows import batch_info, copied, replaced, stack, unstack
from guerdon.envs.seeding import spawn_seeds
from guerdon.envs.vector import Step, VectorEnv, check_all, check_spaces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guerdon.envs.recipe import Recipe


class LocalVectorEnv(VectorEnv):
    """The ``base`` backend; an environment whose episode ends is reset in the same step.

    Args:
        recipe: How to make each environment.
        n_envs: How many.
    """

    can_begin = True

    def __init__(self, recipe: Recipe, n_envs: int) -> None:
        self.envs = []
        try:
            for i in range(n_envs):
                self.envs.append(recipe.build(i))
            check_spaces([(env.observation_space, env.action_space) for env in self.envs])
        except BaseException:
            self.close()
            raise
        self.n_envs = n_envs
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self.spec_id = recipe.name

    def reset(self, seed: int | None = None) -> Any:
        """Starts a new episode in every environment."""
        seeds: Sequence[int | None] = [None] * self.n_envs
        if seed is not None:
            *seeds, of_actions = spawn_seeds(seed, self.n_envs + 1)
            self.action_space.seed(of_actions)
        firsts = [env.reset(seed=seeds[i])[0] for i, env in enumerate(self.envs)]
        return stack(self.observation_space, firsts)

    def step(self, act: Any, env_ids: np.ndarray | None = None) -> Step:
        """Takes one step in every environment, and begins new episodes where one ended."""
        n = self.n_envs
        if env_ids is not None:
            check_all(env_ids, n)
        rew = np.empty(n)
        terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
        observations: list[Any] = []
        infos: dict[int, dict[str, Any]] = {}
        firsts: dict[int, Any] = {}
        for i, action in enumerate(unstack(self.action_space, act, n)):
            env = self.envs[i]
            observation, rew[i], ended, cut, info = env.step(action)
            observations.append(observation)
            if info:
                infos[i] = info
            if ended or cut:
                terminated[i], truncated[i] = ended, cut
                # the environment may reset into the array it gave
                observations[i] = copied(observation)
                firsts[i] = env.reset()[0]
        obs_next = obs = stack(self.observation_space, observations)
        if firsts:
            observations = [
                firsts.get(i, observation) for i, observation in enumerate(observations)
            ]
            obs = stack(self.observation_space, observations)
        info = batch_info(infos, n) if infos else {}
        return Step(None, obs_next, rew, terminated, truncated, info, obs)

    def begin(self, env_ids: np.ndarray, obs: Any) -> Any:
        """See `VectorEnv`."""
        return replaced(obs, env_ids, {i: self.envs[i].reset()[0] for i in env_ids})

    def example(self) -> Any:
        """The first environment."""
        return self.envs[0]

    def render(self) -> Any:
        """A frame for each environment, for those made with a render mode."""
        return tuple(env.render() for env in self.envs)

    def close(self) -> None:
        """Ends all environments."""
        for env in self.envs:
            env.close()

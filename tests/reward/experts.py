"""Spaces, transitions and demonstrations for tests of imitation."""

import numpy as np
from gymnasium import spaces

from guerdon.data import Batch
from guerdon.data.demonstrations import KEYS, Demonstrations

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 12, 12), np.uint8)
TWO = spaces.Discrete(2)
ARM = spaces.Box(-1, 1, (2,), np.float32)


def draw(space, shape, generator, shift=0.0):
    if isinstance(space, spaces.Dict):
        return Batch(
            {key: draw(part, shape, generator, shift) for key, part in space.spaces.items()}
        )
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.n, size=shape) + space.start
    if space.dtype == np.uint8:
        return generator.integers(256, size=(*shape, *space.shape)).astype(np.uint8)
    return (generator.normal(size=(*shape, *space.shape)) + shift).astype(space.dtype)


def rows(obs, act, shape=None):
    """Transitions in time order, [T] or [T, B], of episodes that do not end."""
    shape = np.shape(obs)[:-1] if shape is None else shape
    first = np.zeros(shape, bool)
    first[0] = True
    return Batch(
        obs=obs,
        act=act,
        rew=np.zeros(shape, np.float32),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        obs_next=obs,
        mask=np.ones(shape, bool),
        first=first,
    )


def transitions(shape, observation_space=VECTOR, action_space=TWO, seed=0, shift=0.0):
    """Random transitions, [T] or [T, B]; `shift` is the mean of observations."""
    generator = np.random.default_rng(seed)
    obs = draw(observation_space, shape, generator, shift)
    act = draw(action_space, shape, generator)
    obs_next = draw(observation_space, shape, generator, shift)
    return rows(obs, act, shape).replace(obs_next=obs_next)


def demonstrations(*episodes, observation_space=None, action_space=None):
    """Demonstrations of episodes as `rows` and `transitions` return them, which end."""
    whole = [Batch({key: episode[key] for key in KEYS}) for episode in episodes]
    for episode in whole:
        episode.terminated = np.arange(len(episode.rew)) == len(episode.rew) - 1
    return Demonstrations(whole, None, observation_space, action_space)


def noise(observation_space=VECTOR, action_space=TWO, n_rows=60, n_episodes=2):
    """Demonstrations of random transitions."""
    episodes = (
        transitions((n_rows,), observation_space, action_space, 90 + i) for i in range(n_episodes)
    )
    return demonstrations(*episodes, observation_space=observation_space, action_space=action_space)


def as_items(batch):
    """Transitions as a list of dictionaries, as DI-engine's guide has them."""
    return [
        {"obs": row.obs, "action": row.act, "next_obs": row.obs_next, "reward": 7.0, "done": False}
        for row in (batch[i] for i in range(len(batch.rew)))
    ]

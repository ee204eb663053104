"""Spaces, transitions and demonstrations for tests of imitation."""

import numpy as np
from gymnasium import spaces

from guerdon.data import Batch
from guerdon.data.demonstrations import Demonstrations

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 12, 12), np.uint8)
TWO = spaces.Discrete(2)
ARM = spaces.Box(-1, 1, (2,), np.float32)


def draw(space, shape, generator):
    if isinstance(space, spaces.Dict):
        return Batch({key: draw(part, shape, generator) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.n, size=shape) + space.start
    if space.dtype == np.uint8:
        return generator.integers(256, size=(*shape, *space.shape)).astype(np.uint8)
    return generator.normal(size=(*shape, *space.shape)).astype(space.dtype)


def rows(obs, act, shape=None):
    """Transitions of these observations and actions, with which no episode ends."""
    shape = np.shape(obs)[:-1] if shape is None else shape
    return Batch(
        obs=obs,
        act=act,
        rew=np.zeros(shape, np.float32),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        obs_next=obs,
        mask=np.ones(shape, bool),
        cut=np.zeros(shape, bool),
    )


def transitions(shape, observation_space=VECTOR, action_space=TWO, seed=0):
    """Noise, as rows [B] or a rollout [T, B]."""
    generator = np.random.default_rng(seed)
    obs = draw(observation_space, shape, generator)
    return rows(obs, draw(action_space, shape, generator), shape)


def demonstrations(*episodes):
    """Of episodes as `rows` and `transitions` make them."""
    whole = []
    for episode in episodes:
        whole.append(Batch({key: episode[key] for key in episode.keys() - {"mask", "cut"}}))
        whole[-1].terminated[-1] = True
    return Demonstrations(whole)


def noise(observation_space=VECTOR, action_space=TWO, n_rows=60, n_episodes=2):
    """Demonstrations of nothing in particular."""
    return demonstrations(
        *(
            transitions((n_rows,), observation_space, action_space, 90 + i)
            for i in range(n_episodes)
        )
    )


def as_items(batch):
    """The guide's list of dictionaries."""
    return [
        {"obs": row.obs, "action": row.act, "next_obs": row.obs_next, "reward": 7.0, "done": False}
        for row in (batch[i] for i in range(len(batch.rew)))
    ]

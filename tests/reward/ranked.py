"""Data for tests of rewards that learn from better and worse segments."""

import numpy as np
from gymnasium import spaces

from guerdon.data import Batch, Demonstrations
from guerdon.reward import Setting

VECTOR = spaces.Box(-np.inf, np.inf, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 12, 12), np.uint8)
TWO = spaces.Discrete(2)
ARM = spaces.Box(-1, 1, (2,), np.float32)


def setting(observation_space=VECTOR, action_space=TWO, n_envs=2, seed=3):
    return Setting(observation_space, action_space, n_envs=n_envs, seed=seed)


def rows(shape, quality=0.0, observation_space=VECTOR, action_space=TWO, seed=0):
    """Transitions that pay the first number of their observation, or the brightness of an image."""
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=(*shape, *observation_space.shape))
    if observation_space.dtype == np.uint8:
        obs = (100 + 20 * quality + 5 * noise).clip(0, 255).astype(np.uint8)
        rew = obs.mean((-3, -2, -1))
    else:
        obs = noise.astype(np.float32)
        obs[..., 0] += quality
        rew = obs[..., 0]
    if isinstance(action_space, spaces.Discrete):
        act = generator.integers(2, size=shape)
    else:
        act = generator.uniform(-1, 1, (*shape, 2)).astype(np.float32)
    return Batch(
        obs=obs,
        act=act,
        rew=rew.astype(np.float32),
        terminated=np.zeros(shape, bool),
        truncated=np.zeros(shape, bool),
        obs_next=obs,
    )


def rollout(shape, **options):
    """A rollout whose episodes go on after it."""
    data = rows(shape, **options)
    cut = np.zeros(shape, bool)
    cut[-1] = True
    return data.replace(mask=np.ones(shape, bool), cut=cut)


def demonstrations(qualities=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), lengths=None, noise=None, **options):
    """Episodes, each the better the larger its quality."""
    lengths = lengths or [40] * len(qualities)
    episodes = [
        rows((length,), quality / 3, seed=number, **options)
        for number, (quality, length) in enumerate(zip(qualities, lengths, strict=True))
    ]
    if noise is not None:
        episodes = [
            episode.replace(noise=np.full(len(episode.rew), level))
            for episode, level in zip(episodes, noise, strict=True)
        ]
    return Demonstrations(episodes)


def same_states(left, right):
    """Whether two states are equal to the bit."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_states(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same_states, left, right))
    return bool(np.array_equal(np.asarray(left), np.asarray(right)))

"""Data for tests of rewards that are learned from pairs of segments."""

import copy

import numpy as np
from gymnasium import spaces

from guerdon.compat.di_engine.items import from_batch
from guerdon.data import Batch, Demonstrations
from guerdon.reward import Setting
from tests.rounding import assert_close

VECTOR = spaces.Box(-np.inf, np.inf, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 12, 12), np.uint8)
TWO = spaces.Discrete(2)
ARM = spaces.Box(-1, 1, (2,), np.float32)


def setting(observation_space=VECTOR, action_space=TWO, n_envs=2, seed=3):
    return Setting(observation_space, action_space, n_envs=n_envs, seed=seed)


def rows(shape, quality=0.0, observation_space=VECTOR, action_space=TWO, seed=0):
    """Transitions whose reward is the first number of the observation, or an image's brightness."""
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


def rollout(shape, first=(), ends=(), **options):
    """Fresh transitions [T, n_envs], with the times at which episodes begin and end."""
    times = np.arange(shape[0])
    data = rows(shape, **options)
    marks = [np.repeat(np.isin(times, at)[:, None], shape[1], 1) for at in (first, ends)]
    return data.replace(mask=np.ones(shape, bool), first=marks[0], terminated=marks[1])


def demonstrations(qualities=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), lengths=None, noise=None, **options):
    """Episodes, the better the larger their quality."""
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


def correlation(model):
    """Correlation of estimated and true rewards."""
    data = rows((500,), seed=99)
    return np.corrcoef(model.estimate(data).rew, data.rew)[0, 1]


def check_estimate(model):
    """Check that an estimate is pure, scores every row by itself, and takes lists."""
    data = rows((4, 3), seed=7)
    before, state = copy.deepcopy(data), copy.deepcopy(model.training_state())
    rew = model.estimate(data).rew
    assert rew.shape == (4, 3)
    np.testing.assert_array_equal(model.estimate(data).rew, rew)
    assert_close(model.estimate(data[1:3]).rew, rew[1:3], rtol=1e-4, atol=1e-5)
    order = np.array([2, 0, 3, 1])
    assert_close(model.estimate(data[order]).rew, rew[order], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.estimate(data.replace(rew=data.rew + 5)).rew, rew)
    items = model.estimate(from_batch(data[0]))
    assert isinstance(items, list)
    found = [float(item["reward"]) for item in items]
    assert_close(found, rew[0], rtol=1e-4, atol=1e-5)
    assert same_states(model.training_state(), state)
    assert data == before

"""What the tests of rnd, icm and ngu share."""

import numpy as np
from gymnasium import spaces

from guerdon.data import Batch
from guerdon.reward import Setting, create_reward_model

NAMES = ["rnd", "icm", "ngu"]
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 12, 12), np.uint8)
TWO = spaces.Discrete(2)
ARM = spaces.Box(-1, 1, (2,), np.float32)


def draw(space, shape, generator, shift=0.0):
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.n, size=shape) + space.start
    if space.dtype == np.uint8:
        return generator.integers(256, size=(*shape, *space.shape)).astype(np.uint8)
    return (generator.normal(size=(*shape, *space.shape)) + shift).astype(space.dtype)


def rollout(shape=(20, 4), observation_space=VECTOR, action_space=TWO, shift=0.0, seed=0):
    """Transitions [T, n_envs] that go on from row to row."""
    generator = np.random.default_rng(seed)
    walk = draw(observation_space, (shape[0] + 1, *shape[1:]), generator, shift)
    none = np.zeros(shape, bool)
    cut = none.copy()
    cut[-1] = True
    return Batch(
        obs=walk[:-1],
        act=draw(action_space, shape, generator),
        rew=np.zeros(shape, np.float32),
        terminated=none,
        truncated=none.copy(),
        obs_next=walk[1:],
        mask=~none,
        cut=cut,
    )


def make(name, observation_space=VECTOR, action_space=TWO, seed=1, **options):
    """A model that is ready at once."""
    options = {"hidden_size": [16], "warmup": 1, "train_every": 1, **options}
    model = create_reward_model({"type": name, **options})
    model.setup(Setting(observation_space, action_space, n_envs=4, seed=seed))
    return model


def feed(model, data):
    """Lets a model look at a rollout as a run does; what it scanned is with the result."""
    if not model.episodic:
        model.collect_data(data)
        return data
    seen = data.replace(scanned=model.scan(data))
    model.collect_data(data)
    return seen

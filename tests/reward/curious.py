"""Rollouts and models for the tests of rnd, icm and ngu."""

import numpy as np

from guerdon.reward import EpisodeRewardModel, Setting, create_reward_model
from tests.reward.experts import TWO, VECTOR, draw, rows

NAMES = ["rnd", "icm", "ngu"]


def rollout(shape=(20, 4), observation_space=VECTOR, action_space=TWO, shift=0.0, seed=0):
    """Random transitions [T, n_envs] of episodes that begin at the first row and do not end."""
    generator = np.random.default_rng(seed)
    walk = draw(observation_space, (shape[0] + 1, *shape[1:]), generator, shift)
    act = draw(action_space, shape, generator)
    return rows(walk[:-1], act, shape).replace(obs_next=walk[1:])


def make(name, observation_space=VECTOR, action_space=TWO, seed=1, **options):
    """A small model that needs no warm-up."""
    config = {"type": name, "hidden_size": [16], "warmup": 1, "train_every": 1, **options}
    return create_reward_model(config, Setting(observation_space, action_space, 4, seed=seed))


def feed(model, batch):
    """Give a model a rollout as a run does; returns the rollout with its annotations."""
    if isinstance(model, EpisodeRewardModel):
        columns, _ = model.annotate(batch, model.new_memory(batch.rew.shape[1]))
        batch = batch.replace(**columns)
    model.collect_data(batch)
    return batch

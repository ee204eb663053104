"""Fills folders with frames, in a module that is quick to import elsewhere."""

import numpy as np

from guerdon.collect.reward_data import RewardDataCollector
from guerdon.config.schema import DataCollectionConfig
from guerdon.config.validation import validated


def configured(folder, **options):
    values = {"positive_dir": f"{folder}/positive", "negative_dir": f"{folder}/negative"}
    return validated(DataCollectionConfig, {**values, **options}, "reward.data_collection")


def collector_into(folder, n_envs=1, **options):
    return RewardDataCollector(configured(folder, **options), n_envs)


def noise(rng):
    return {"obs": {"base_camera": rng.integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)}}


def fill(data, n_episodes):
    """Adds positive episodes of two frames that cannot be compressed."""
    rng = np.random.default_rng(0)
    for _ in range(n_episodes):
        data.add_env_output(noise(rng), {"success": [True]}, False)
        data.add_env_output(noise(rng), {"success": [True]}, True)

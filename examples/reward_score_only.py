"""A reward model of your own: a class with `score`.

    python examples/reward_score_only.py run.max_steps=50000 seed=0

The decorator registers a name, for use with every policy and on the command line:

    guerdon train env=cartpole policy=dqn reward=upright imports=examples/reward_score_only.py
"""

import sys

import torch
from pydantic import Field

import guerdon
from guerdon.data import Batch
from guerdon.reward import RewardConfig, RewardModel, register_reward_model


class UprightConfig(RewardConfig):
    """Options of `upright`."""

    limit: float = Field(default=0.2, gt=0)
    """Angle of the pole with reward 0, in radians."""


@register_reward_model("upright")
class Upright(RewardModel):
    """Reward 1 for an upright pole, less for a tilted one."""

    Config = UprightConfig
    fields = ("obs_next",)  # what `score` reads

    def score(self, batch: Batch) -> torch.Tensor:
        """Return the rewards [...] of transitions [...], which are tensors on the device."""
        return 1 - batch.obs_next[..., 2].abs() / self.config.limit


if __name__ == "__main__":
    names = "env=cartpole", "policy=ppo", "reward=upright"
    guerdon.train(None, *names, *sys.argv[1:])

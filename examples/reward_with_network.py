"""A reward model of your own with a network, trained beside the policy.

    python examples/reward_with_network.py run.max_steps=50000 seed=0

It learns which transitions end an episode, and rewards the others.
"""

import copy
import sys

import torch
from torch import nn

import guerdon
from guerdon.data import Batch
from guerdon.nn.init import seeded
from guerdon.reward import RewardConfig, RewardModel, Setting, register_reward_model


@register_reward_model("survival")
class Survival(RewardModel):
    """Reward: the predicted probability that the episode continues."""

    fields = ("obs_next",)  # what `score` reads
    collects = ("obs_next", "terminated")  # what `collect_data` reads

    def __init__(self, config: RewardConfig, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        (size,) = self.setting.observation_space.shape
        with seeded(self.setting.seed):
            network = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 1))
        self.network = network.to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self.generator = torch.Generator().manual_seed(self.setting.seed)
        self.data: list[Batch] = []

    @torch.no_grad()
    def score(self, batch: Batch) -> torch.Tensor:
        """Return the rewards [...] of transitions [...], which are tensors on the device."""
        return torch.sigmoid(-self.network(batch.obs_next)).squeeze(-1)

    def collect_data(self, batch: Batch) -> None:
        """Keep the transitions of the newest 10 rollouts [T, n_envs, ...]."""
        rows = Batch(obs_next=batch.obs_next, terminated=batch.terminated)[batch.mask]
        self.data = [*self.data[-9:], rows.to_device(self.device)]

    def train(self) -> dict[str, torch.Tensor]:
        """Take 32 gradient steps; the metrics appear in the log as ``reward/survival/...``."""
        data = Batch.cat(self.data)
        for _ in range(32):
            rows = data[torch.randint(len(data), (128,), generator=self.generator)]
            ends, logit = rows.terminated.float(), self.network(rows.obs_next).squeeze(-1)
            rare = (len(ends) - ends.sum()) / ends.sum().clamp(min=1)  # weighs both kinds equally
            loss = nn.functional.binary_cross_entropy_with_logits(logit, ends, pos_weight=rare)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return {"loss": loss.detach()}

    def training_state(self) -> dict:
        """Return what a resumed run needs."""
        parts = self.network.state_dict(), self.optimizer.state_dict(), self.generator.get_state()
        return copy.deepcopy({"parts": parts, "data": [dict(rows.items()) for rows in self.data]})

    def load_training_state(self, state: dict) -> None:
        """Restore `training_state`."""
        network, optimizer, generator = state["parts"]
        self.network.load_state_dict(network)
        self.optimizer.load_state_dict(optimizer)
        self.generator.set_state(generator)
        self.data = [Batch(rows) for rows in state["data"]]


if __name__ == "__main__":
    names = "env=cartpole", "policy=ppo", "reward=survival"
    guerdon.train(None, *names, *sys.argv[1:])

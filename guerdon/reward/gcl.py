"""Guided cost learning: maximum-entropy inverse reinforcement learning during policy training.

https://arxiv.org/abs/1603.00448. The paper weights whole trajectories, whose probabilities span
many orders of magnitude; here single transitions are weighted by the probability of their actions.
"""

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from guerdon.data.batch import Batch
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.inputs import TransitionNetwork
from guerdon.reward.trained import (
    ImitationConfig,
    ImitationReward,
    Inputs,
    TrainedConfig,
    TrainedReward,
)


class GCLConfig(ImitationConfig, TrainedConfig):
    """Options of `gcl`."""

    inputs: Inputs = Field(default=["obs", "act"])
    """Inputs of the cost network."""
    weight_decay: float = Field(default=1.0, ge=0)
    """Decoupled weight decay, as in AdamW; usually 0.1 to 3. Without it, costs grow without bound
    far from the demonstrations."""
    statistics_rate: float = Field(default=0.01, gt=0, le=1)
    """Step size of the running mean and variance that normalise rewards, per gradient step."""
    limit: float = Field(default=10.0, gt=0)
    """Largest absolute reward, in standard deviations."""


def guided_cost_loss(expert: Tensor, samples: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
    """Negative log-likelihood of demonstrations under exp(-cost) / Z, and log Z.

    Args:
        expert: Costs of demonstrations [N].
        samples: Costs of the samples for estimating Z [M].
        log_prob: Log-probabilities of these samples [M].
    """
    log_partition = torch.logsumexp(-samples - log_prob, 0) - math.log(len(samples))
    return expert.mean() + log_partition, log_partition.detach()


def mixed_log_prob(cost: Tensor, log_partition: Tensor, log_prob: Tensor) -> Tensor:
    """Log-probability of samples that are half the policy's and half demonstrations.

    The density of demonstrations is unknown and estimated as exp(-cost) / Z
    (https://arxiv.org/abs/1611.03852). This limits importance weights to twice their mean.
    """
    return torch.logaddexp(log_prob, -cost - log_partition) - math.log(2.0)


class Cost(TransitionNetwork):
    """Cost of a transition, with running statistics that normalise rewards."""

    def __init__(self, setting: Setting, config: GCLConfig) -> None:
        super().__init__(setting, config.inputs, config.hidden)
        self.limit = config.limit
        self.mean = nn.Buffer(torch.zeros(()))
        self.variance = nn.Buffer(torch.ones(()))
        self.count = nn.Buffer(torch.zeros(()))
        self.log_partition = nn.Buffer(torch.zeros(()))

    def reward(self, cost: Tensor) -> Tensor:
        """Return rewards [...] of costs, normalised over recent policy transitions."""
        standard = (self.mean - cost) / (self.variance + 1e-8).sqrt()
        return standard.clamp(-self.limit, self.limit)

    @torch.no_grad()
    def update_statistics(self, cost: Tensor, rate: float) -> None:
        """Update mean and variance with new costs: plain averages at first, then at `rate`."""
        self.count.add_(1)
        weight = (1.0 / self.count).clamp(min=rate)
        self.mean.lerp_(cost.mean(), weight)
        self.variance.lerp_((cost - self.mean).square().mean(), weight)


@register_reward_model("guided_cost")
@register_reward_model("gcl")
class GCL(ImitationReward, TrainedReward):
    """A cost network under which demonstrations have maximum likelihood.

    The partition function is estimated by importance sampling from equal numbers of policy
    transitions and demonstrations.
    """

    Config = GCLConfig
    requires = frozenset({"demonstrations", "density"})
    Network = Cost
    network: Cost

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        self.fields = self.collects = tuple(dict.fromkeys(("obs", "act", *self.config.inputs)))

    @torch.no_grad()
    def score(self, batch: Batch) -> Tensor:
        """Return the normalised negative cost."""
        return self.network.reward(self.network(self.tensors(batch)))

    def kept(self, rows: Batch) -> Batch:
        """See `TrainedReward`; adds log-probabilities of the policy."""
        return rows.replace(log_prob=self.log_prob(self.tensors(rows)).numpy(force=True))

    def loss(self) -> tuple[Tensor, Metrics]:
        """Return the negative log-likelihood of demonstrations; update the running statistics."""
        config, network = self.config, self.network
        expert, policy = self.sample_expert(config.batch_size), self.sample(config.batch_size)
        cost = network.output(torch.cat([network.input(expert), network.input(policy)]))
        expert_cost, policy_cost = cost.chunk(2)
        log_prob = torch.cat([self.log_prob(expert), policy["log_prob"]])
        drawn = mixed_log_prob(cost.detach(), network.log_partition, log_prob)
        loss, log_partition = guided_cost_loss(expert_cost, cost, drawn)
        network.log_partition.copy_(log_partition)
        network.update_statistics(policy_cost.detach(), config.statistics_rate)
        costs = {"expert_cost": expert_cost, "policy_cost": policy_cost}
        return loss, {name: cost.detach().mean() for name, cost in costs.items()}

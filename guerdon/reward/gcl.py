"""Guided cost learning: maximum-entropy inverse reinforcement learning beside a policy.

https://arxiv.org/abs/1603.00448. The paper weighs whole trajectories, whose probabilities span many
orders of magnitude; here transitions are weighed, by the probability of their actions alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from guerdon.nn.encoders import MLP
from guerdon.nn.init import linear
from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.inputs import TransitionInput, take_rows
from guerdon.reward.trained import ImitationConfig, ImitationReward

if TYPE_CHECKING:
    from collections.abc import Callable

    from guerdon.data.batch import Batch

_CHUNK = 1024  # rows that the policy is asked about at a time


class GCLConfig(ImitationConfig):
    """Options of `gcl`."""

    inputs: list[Literal["obs", "act", "obs_next"]] = Field(default=["obs", "act"], min_length=1)
    """What the cost reads of a transition."""
    weight_decay: float = Field(default=1.0, ge=0)
    """Decoupled, as in AdamW; 0.1 to 3. Without any, costs grow without end where demonstrations
    never were."""
    statistics_rate: float = Field(default=0.01, gt=0, le=1)
    """How fast mean and spread of the reward follow the network, in each gradient step."""
    limit: float = Field(default=10.0, gt=0)
    """The largest absolute value of a reward, in standard deviations."""


def guided_cost_loss(expert: Tensor, samples: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
    """How much less likely than possible demonstrations are, if exp(-cost) says how likely.

    Args:
        expert: Costs of demonstrations [N].
        samples: Costs of all that the partition function is estimated from [M].
        log_prob: How likely each of these was to be drawn [M].

    Returns:
        The loss, and the logarithm of the partition function, which is a part of it.
    """
    log_partition = torch.logsumexp(-samples - log_prob, 0) - math.log(len(samples))
    return expert.mean() + log_partition, log_partition.detach()


def mixed_log_prob(cost: Tensor, log_partition: Tensor, log_prob: Tensor) -> Tensor:
    """How likely actions are to be drawn, if half of the draws are the policy's.

    The other half are demonstrations, of which nobody knows how likely they are: the cost's own
    word is taken (https://arxiv.org/abs/1611.03852). So no sample counts for more
    than twice the mean, however unlikely the policy was to act so.

    Args:
        cost: Of transitions [M].
        log_partition: The logarithm of the partition function.
        log_prob: How likely the policy was to act so [M].
    """
    return torch.logaddexp(log_prob, -cost - log_partition) - math.log(2.0)


class Cost(nn.Module):
    """What a transition costs; and, for rewards, how costs are spread.

    Args:
        setting: Knows the spaces.
        config: Its options.
    """

    def __init__(self, setting: Setting, config: GCLConfig) -> None:
        super().__init__()
        self.input = TransitionInput(setting, config.inputs)
        body = MLP(self.input.size, config.hidden)
        self.layers = nn.Sequential(body, linear(body.size, 1, 1.0))
        for name in ("mean", "variance", "count", "log_partition"):
            self.register_buffer(name, torch.zeros(()))
        self.mean: Tensor
        self.variance: Tensor
        self.count: Tensor
        self.log_partition: Tensor
        self.limit = config.limit

    def forward(self, data: Any) -> Tensor:
        """Costs [...] of transitions."""
        cost: Tensor = self.layers(self.input(data))
        return cost.squeeze(-1)

    def reward(self, cost: Tensor) -> Tensor:
        """What costs are worth: of mean 0 and spread 1 for what the policy did lately."""
        spread = torch.where(self.count > 0, (self.variance + 1e-8).sqrt(), 1.0)
        return ((self.mean - cost) / spread).clamp(-self.limit, self.limit)

    @torch.no_grad()
    def follow(self, cost: Tensor, rate: float) -> None:
        """Moves mean and variance towards those of new costs, at first faster than `rate`."""
        self.count += 1
        way = (1.0 / self.count).clamp(min=rate)
        self.mean.lerp_(cost.mean(), way)
        self.variance.lerp_((cost - self.mean).square().mean(), way)


@register_reward_model("guided_cost")
@register_reward_model("gcl")
class GCL(ImitationReward):
    """A cost by which demonstrations are as likely as can be, among all that a policy may do.

    The partition function is estimated from samples: one half is what the policy did, the other
    the demonstrations themselves. Each weighs the less, the likelier it was to be drawn.
    """

    Config = GCLConfig
    network: Cost
    needs_log_prob = True

    def build(self, setting: Setting) -> None:
        """Makes the cost."""
        config = self.config
        self.fields = tuple(dict.fromkeys(("obs", "act", *config.inputs)))
        self.network = Cost(setting, config).to(self.device)
        self.optimizers["network"] = Optimizer(
            self.network.parameters(),
            config.learning_rate,
            weight_decay=config.weight_decay,
            alone=True,
        )

    def take_experts(self, rows: Batch) -> None:  # noqa: ARG002 - it has them as tensors
        """Normalises with the experts' statistics: they stay, whatever the policy does."""
        self.network.input.settle(self.expert)

    @torch.no_grad()
    def score(self, data: Batch) -> Tensor:
        """Minus the cost, on the scale of one."""
        self.prepare(data)
        return self.network.reward(self.network(self.tensors(data)))

    def remembered(self, rows: Batch) -> Batch:
        """The fields, and how likely the policy was to act so."""
        log_prob = self._log_prob(self.tensors(rows))
        return super().remembered(rows).replace(log_prob=log_prob.numpy(force=True))

    def step(self) -> Metrics:
        """One step towards costs by which demonstrations are likelier."""
        config, network = self.config, self.network
        expert, policy = self.sample_expert(config.batch_size), self.sample(config.batch_size)
        features = torch.cat([network.input(expert), network.input(policy)])
        cost = network.layers(features).squeeze(-1)
        of_expert, of_policy = cost.split(config.batch_size)
        log_prob = torch.cat([self._log_prob(expert), policy["log_prob"]])
        drawn = mixed_log_prob(cost.detach(), network.log_partition, log_prob)
        loss, log_partition = guided_cost_loss(of_expert, cost, drawn)
        self.optimizers["network"].step(loss)
        network.log_partition.copy_(log_partition)
        network.follow(of_policy.detach(), config.statistics_rate)
        return {
            "loss": loss.detach(),
            "expert_cost": of_expert.detach().mean(),
            "policy_cost": of_policy.detach().mean(),
        }

    @torch.no_grad()
    def _log_prob(self, rows: dict[str, Any]) -> Tensor:
        """How likely the policy as it is now is to act so."""
        ask = self.setting.log_prob if self.setting is not None else None
        if ask is None:
            raise ValueError(
                f"{self.config.type or 'gcl'} needs to know how likely the policy's actions are: "
                "call setup() with a Setting that has 'log_prob'"
            )
        return _in_chunks(ask, rows["obs"], rows["act"])


def _in_chunks(function: Callable[[Any, Any], Tensor], obs: Any, act: Tensor) -> Tensor:
    parts = [slice(start, start + _CHUNK) for start in range(0, len(act), _CHUNK)]
    return torch.cat([function(take_rows(obs, part), act[part]).float() for part in parts])

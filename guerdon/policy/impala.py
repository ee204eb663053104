"""IMPALA, for rollouts of older policies: https://arxiv.org/abs/1802.01561."""

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from guerdon import ops
from guerdon.config.validation import ReadIf
from guerdon.data import Batch
from guerdon.nn import ActorCritic
from guerdon.nn.optimizer import Optimizer
from guerdon.policy.actions import make_actions
from guerdon.policy.actor_critic import ActorCriticPolicy
from guerdon.policy.advantages import branch, minibatches, scatter_rows, with_values
from guerdon.policy.base import Metrics, PolicyConfig, register_policy


class ImpalaConfig(PolicyConfig):
    """Options of `impala`."""

    learning_rate: float = Field(default=7e-4, gt=0)
    """Learning rate of Adam; usually 1e-4 to 2e-3."""
    max_grad_norm: float | None = Field(default=0.5, gt=0)
    """Maximum norm for gradient clipping; usually 0.5 to 40."""
    rho_clip: float = Field(default=1.0, gt=0)
    """Largest importance weight of a TD error; usually 1."""
    c_clip: float = Field(default=1.0, gt=0)
    """Largest importance weight in a trace; usually 1."""
    trace_lambda: float = Field(default=1.0, ge=0, le=1)
    """Decay of traces, as GAE lambda; usually 0.9 to 1."""
    value_coefficient: float = Field(default=0.5, ge=0)
    """Weight of the value loss, for a shared encoder and gradient clipping; usually 0.25 to 1."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus; usually 0 to 0.02."""
    normalize_advantage: bool = False
    """Whether to normalise advantages in every minibatch, before they are weighted."""
    read_if: ClassVar[ReadIf] = (("model.dueling", "model.type", True),)


@register_policy("impala")
class Impala(ActorCriticPolicy):
    """Actor-critic with V-trace, for Discrete and Box actions: one pass over each rollout.

    In a synchronous run all rollouts are of the current policy, and it is `a2c` with minibatches.
    """

    Config = ImpalaConfig
    ignores = ("learn.repeat",)
    splits = True
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "collect": {"n_step": 256},
        "learn": {"batch_size": 64},
    }
    fields = ("obs", "act", "policy", "rew", "terminated", "obs_next")
    target_name = "V-trace"
    stores_output = True

    def build(self) -> None:
        """Make the actor-critic and its optimizer."""
        self.actions = make_actions(self.action_space, "impala")
        self.model = self.create_model(ActorCritic)
        self.optimizers["model"] = Optimizer(
            self.model.parameters(),
            self.config.learning_rate,
            max_grad_norm=self.config.max_grad_norm,
            eps=1e-5,
        )

    @torch.no_grad()
    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Add V-trace's targets, advantages and importance weights."""
        config, stored = self.config, self.stored_output(batch)
        rows, values = with_values(self, self.model, self.actions, batch, stored)
        acted = {name: rows.pop(name) for name in stored}
        output = branch(self.model, "actor")(rows.obs)
        log_prob, _ = self.actions.log_prob_entropy(output, rows.act)
        if stored:
            rows.log_rho = log_prob - self.actions.log_prob_entropy(acted, rows.act)[0]
        else:  # random actions, or data without a policy
            rows.log_rho = torch.zeros_like(log_prob)
        found = ops.vtrace(
            batch.rew.float(),  # users may have stored integers
            values.now,
            values.after,
            config.gamma * (~batch.terminated).float(),
            batch.cut,
            scatter_rows(rows.log_rho, values.rows, batch.mask),
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
            trace_lambda=config.trace_lambda,
            mask=batch.mask,
        )
        flat = (each.flatten() for each in found)
        own = [each if values.rows is None else each[values.rows] for each in flat]
        rows.returns, rows.advantage, rows.rho = own
        return rows

    def learn(self, batch: Batch, batch_size: int = 64, **_: Any) -> Metrics:
        """Take one optimizer step per minibatch.

        Args:
            batch: Result of `process_fn`.
            batch_size: Rows per minibatch.
        """
        config, losses = self.config, list[Tensor]()
        for rows in minibatches(batch, batch_size, self.generator):
            advantage = rows["advantage"]
            if config.normalize_advantage and len(advantage) > 1:
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            mine = self.ranks.mine({**rows, "advantage": advantage})
            output = self.model(mine["obs"])
            log_prob, entropy = self.actions.log_prob_entropy(output, mine["act"])
            policy = ops.a2c_policy_loss(log_prob, mine["rho"] * mine["advantage"])
            value = ops.a2c_value_loss(output["value"], mine["returns"])
            mean_entropy = entropy.mean()
            # Coefficients are for the squared error; the ops function computes half of it.
            loss = policy + 2 * config.value_coefficient * value
            self.optimizers["model"].step(loss - config.entropy_coefficient * mean_entropy)
            parts = torch.stack([policy, value, mean_entropy]).detach()
            losses.append(self.ranks.weighted(parts))
        self.update_normalizer(self.model, batch.obs)
        policy_loss, value_loss, entropy_mean = self.ranks.added(torch.stack(losses).mean(0))
        return {
            "train/policy_gradient_loss": policy_loss,
            "train/value_loss": value_loss,
            "train/entropy_loss": -entropy_mean,
            "train/importance_weight": batch.log_rho.exp().mean(),
            "train/explained_variance": ops.explained_variance(batch.value, batch.returns),
            "train/learning_rate": self.optimizers["model"].learning_rate,
        }

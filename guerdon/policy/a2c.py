"""Synchronous advantage actor-critic: https://arxiv.org/abs/1602.01783."""

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from guerdon import ops
from guerdon.config.validation import ReadIf
from guerdon.data import Batch
from guerdon.nn import ActorCritic
from guerdon.nn.optimizer import Optimizer
from guerdon.policy.actions import make_actions
from guerdon.policy.actor_critic import ActorCriticPolicy
from guerdon.policy.advantages import with_advantages
from guerdon.policy.base import Metrics, PolicyConfig, register_policy


class A2CConfig(PolicyConfig):
    """Options of `a2c`."""

    learning_rate: float = Field(default=7e-4, gt=0)
    """Learning rate of Adam; usually 3e-4 to 2e-3."""
    max_grad_norm: float | None = Field(default=0.5, gt=0)
    """Maximum norm for gradient clipping; usually 0.5 to 10."""
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """GAE lambda, usually 0.9 to 1; 1 uses all collected rewards."""
    value_coefficient: float = Field(default=0.5, ge=0)
    """Weight of the value loss, for a shared encoder and gradient clipping; usually 0.25 to 1."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus; usually 0 to 0.02."""
    normalize_advantage: bool = False
    """Whether to normalise advantages in every rollout."""
    read_if: ClassVar[ReadIf] = (("model.dueling", "model.type", True),)


@register_policy("a2c")
class A2C(ActorCriticPolicy):
    """Advantage actor-critic, for Discrete and Box actions: one optimizer step per rollout."""

    Config = A2CConfig
    ignores = ("learn.batch_size", "learn.repeat")
    splits = True
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "collect": {"n_step": 64},
        "learn": {"batch_size": 64},
    }

    def build(self) -> None:
        """Make the actor-critic and its optimizer."""
        self.actions = make_actions(self.action_space, "a2c")
        self.fields = ("obs", *self.actions.fields, "rew", "terminated", "obs_next")
        self.model = self.create_model(ActorCritic)
        self.optimizers["model"] = Optimizer(
            self.model.parameters(),
            self.config.learning_rate,
            max_grad_norm=self.config.max_grad_norm,
            eps=1e-5,
        )

    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Add advantages and returns."""
        return with_advantages(self, self.model, self.actions, batch)

    def learn(self, batch: Batch, **_: Any) -> Metrics:
        """Take one optimizer step with all rows."""
        config, advantage = self.config, batch.advantage
        if config.normalize_advantage and len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        rows = self.ranks.mine(batch.replace(advantage=advantage))
        obs = rows.obs.to_dict() if hasattr(rows.obs, "to_dict") else rows.obs
        output = self.model(obs)
        log_prob, entropy = self.actions.log_prob_entropy(output, rows.act)
        policy = ops.a2c_policy_loss(log_prob, rows.advantage)
        value = ops.a2c_value_loss(output["value"], rows.returns)
        mean_entropy = entropy.mean()
        # Coefficients are for the squared error; the ops function computes half of it.
        loss = policy + 2 * config.value_coefficient * value
        self.optimizers["model"].step(loss - config.entropy_coefficient * mean_entropy)
        self.update_normalizer(self.model, batch.obs)
        parts = self.ranks.average(torch.stack([policy, value, mean_entropy]).detach())
        return {
            "train/policy_gradient_loss": parts[0],
            "train/value_loss": parts[1],
            "train/entropy_loss": -parts[2],
            "train/explained_variance": ops.explained_variance(batch.value, batch.returns),
            "train/learning_rate": self.optimizers["model"].learning_rate,
        }

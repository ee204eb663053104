"""Proximal policy optimisation: https://arxiv.org/abs/1707.06347."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from guerdon import ops
from guerdon.config.validation import ReadIf
from guerdon.data import Batch
from guerdon.nn import ActorCritic, ModelConfig
from guerdon.nn.optimizer import Optimizer
from guerdon.policy.actions import make_actions
from guerdon.policy.actor_critic import ActorCriticPolicy
from guerdon.policy.advantages import branch, minibatches, with_advantages
from guerdon.policy.base import Metrics, PolicyConfig, register_policy
from guerdon.policy.intrinsic import IntrinsicConfig, IntrinsicCritic, with_intrinsic


class PPOConfig(PolicyConfig):
    """Options of `ppo`."""

    learning_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of Adam; usually 1e-4 to 1e-3."""
    max_grad_norm: float | None = Field(default=0.5, gt=0)
    """Maximum norm for gradient clipping; usually 0.5 to 10."""
    model: ModelConfig = ModelConfig(normalize_obs=True)
    """Actor and critic."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """GAE lambda; usually 0.8 to 0.99."""
    clip_range: float = Field(default=0.2, gt=0)
    """Clip range of the probability ratio; usually 0.1 to 0.3."""
    value_clip_range: float | None = Field(default=None, gt=0)
    """Clip range of the value function; rarely useful."""
    value_coefficient: float = Field(default=0.5, ge=0)
    """Weight of the value loss, for a shared encoder and gradient clipping; usually 0.25 to 1."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus; usually 0 to 0.02."""
    normalize_advantage: bool = True
    """Whether to normalise advantages in every minibatch."""
    target_kl: float | None = Field(default=None, gt=0)
    """Approximate KL divergence at which an iteration stops early; usually 0.01 to 0.05."""
    intrinsic: IntrinsicConfig | None = None
    """Second value function for bonus terms of the reward, such as `rnd`; null for none."""
    read_if: ClassVar[ReadIf] = (("model.dueling", "model.type", True),)


@register_policy("ppo")
class PPO(ActorCriticPolicy):
    """Proximal policy optimisation, for Discrete and Box actions."""

    Config = PPOConfig
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "collect": {"n_step": 2048},
        "learn": {"batch_size": 64, "repeat": 10},
    }
    fields = ("obs", "act", "policy", "rew", "terminated", "obs_next")
    stores_output = True
    splits = True

    def build(self) -> None:
        """Make the actor-critic and its optimizer."""
        self.actions = make_actions(self.action_space, "ppo")
        self.model = self.create_model(ActorCritic)
        parameters = [*self.model.parameters()]
        self.intrinsic: Any = None
        if self.config.intrinsic is not None:
            self.intrinsic = self.create_part(IntrinsicCritic)
            parameters += self.intrinsic.parameters()
        self.optimizers["model"] = Optimizer(
            parameters,
            self.config.learning_rate,
            max_grad_norm=self.config.max_grad_norm,
            eps=1e-5,
        )

    @torch.no_grad()
    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Add log-probabilities, values, advantages and returns."""
        stored = self.stored_output(batch)
        rows = with_advantages(self, self.model, self.actions, batch, stored)
        output = {name: rows.pop(name) for name in stored}
        output = output or branch(self.model, "actor")(rows.obs)
        rows.log_prob = self.actions.log_prob_entropy(output, rows.act)[0]
        if self.intrinsic is None:
            return rows
        return with_intrinsic(self, self.intrinsic, batch, rows)

    def learn(self, batch: Batch, batch_size: int = 64, repeat: int = 1, **_: Any) -> Metrics:
        """Take one optimizer step per minibatch, over several epochs.

        Args:
            batch: Result of `process_fn`.
            batch_size: Rows per minibatch.
            repeat: Number of epochs.
        """
        losses: list[Tensor] = []
        change = torch.zeros(2)
        epoch = 0
        for epoch in range(1, repeat + 1):
            changes: list[Tensor] = []
            for rows in minibatches(batch, batch_size, self.generator):
                loss, parts, log_prob = self.loss(rows)
                self.optimizers["model"].step(loss)
                losses.append(self.ranks.weighted(parts))
                if epoch == repeat or self.config.target_kl is not None:
                    old = self.ranks.mine(rows["log_prob"])
                    found = self._kl_and_clip_fraction(log_prob, old)
                    changes.append(self.ranks.weighted(found))
            if changes:
                change = self.ranks.added(torch.stack(changes).mean(0))
            if self.config.target_kl is not None and change[0] > self.config.target_kl:
                break
        self.update_normalizer(self.model, batch.obs)
        self.update_normalizer(self.intrinsic, batch.obs)
        policy_loss, value_loss, entropy = self.ranks.added(torch.stack(losses).mean(0))
        return {
            "train/policy_gradient_loss": policy_loss,
            "train/value_loss": value_loss,
            "train/entropy_loss": -entropy,
            "train/approx_kl": change[0],
            "train/clip_fraction": change[1],
            "train/explained_variance": ops.explained_variance(batch.value, batch.returns),
            "train/epochs": epoch,
            "train/learning_rate": self.optimizers["model"].learning_rate,
        }

    def loss(self, rows: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of a minibatch, its parts (policy, value, entropy), and log-probs."""
        config, advantage = self.config, rows["advantage"]
        if config.normalize_advantage and len(advantage) > 1:
            std, mean = torch.std_mean(advantage)
            advantage = (advantage - mean) / (std + 1e-8)
        rows = self.ranks.mine({**rows, "advantage": advantage})
        output, advantage = self.model(rows["obs"]), rows["advantage"]
        log_prob, entropy = self.actions.log_prob_entropy(output, rows["act"])
        policy = ops.ppo_policy_loss(log_prob, rows["log_prob"], advantage, config.clip_range)
        value = ops.ppo_value_loss(
            output["value"], rows["returns"], rows["value"], config.value_clip_range
        )
        if "intrinsic_returns" in rows:
            value = value + ops.ppo_value_loss(
                self.intrinsic.value(rows["obs"]),
                rows["intrinsic_returns"],
                rows["intrinsic_value"],
                config.value_clip_range,
            )
        mean_entropy = entropy.mean()
        # Coefficients are for the squared error; the ops function computes half of it.
        loss = policy + 2 * config.value_coefficient * value
        if config.entropy_coefficient:
            loss = loss - config.entropy_coefficient * mean_entropy
        return loss, torch.stack([policy, value, mean_entropy]).detach(), log_prob.detach()

    def _kl_and_clip_fraction(self, log_prob: Tensor, old: Tensor) -> Tensor:
        """Return the approximate KL divergence from the old policy, and the clipped fraction."""
        clipped = ops.clip_fraction(log_prob, old, self.config.clip_range)
        return torch.stack([ops.approx_kl(log_prob, old), clipped])

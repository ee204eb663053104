"""Twin delayed deep deterministic policy gradient: https://arxiv.org/abs/1802.09477."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from guerdon.config.validation import ReadIf
from guerdon.data.batch import Batch
from guerdon.nn import DeterministicActor, ModelConfig, QCritic
from guerdon.nn.optimizer import Optimizer
from guerdon.nn.target import frozen, make_target, update_target
from guerdon.policy.advantages import with_returns
from guerdon.policy.base import Metrics, Policy, PolicyConfig, register_policy
from guerdon.policy.bounds import Bounds
from guerdon.policy.noise import NoiseConfig, add_noise


class TD3Config(NoiseConfig):
    """Options of `td3`."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam, for actor and critics; usually 1e-4 to 1e-3."""
    model: ModelConfig = ModelConfig(hidden=[256, 256], activation="relu", orthogonal=False)
    """Actor and critics, which do not share layers."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Soft update coefficient of the target networks; usually 0.001 to 0.05."""
    n_step: int = Field(default=1, ge=1)
    """Number of rewards in a target before bootstrapping; usually 1 to 5."""
    n_critics: int = Field(default=2, ge=1)
    """Number of critics; targets take their minimum."""
    actor_every: int = Field(default=2, ge=1)
    """Critic updates per update of the actor and the target networks; usually 1 to 4."""
    exploration_noise: float = Field(default=0.1, ge=0)
    """Standard deviation of action noise while collecting, for actions in [-1, 1]; usually 0.1 to
    0.5."""
    target_noise: float = Field(default=0.2, ge=0)
    """Standard deviation of the noise on target actions, for actions in [-1, 1]; usually 0 to
    0.3."""
    target_noise_clip: float = Field(default=0.5, ge=0)
    """Maximum absolute value of that noise; usually 0.5."""
    read_if: ClassVar[ReadIf] = (
        *NoiseConfig.read_if,
        ("target_noise_clip", "target_noise", True),
        ("model.dueling", "model.type", True),
    )


@register_policy("td3")
class TD3(Policy):
    """Twin delayed DDPG, for Box actions."""

    Config: ClassVar[type[PolicyConfig]] = TD3Config
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "env": {"n_envs": 1},
        "collect": {"n_step": 1, "warmup_steps": 1_000, "buffer_size": 1_000_000},
        "learn": {"batch_size": 256},
    }
    target_name = "{n_step}-step TD"

    def build(self) -> None:
        """Make actor, critics, their targets and the optimizers."""
        config = self.config
        self.segment_length = config.n_step
        self.bounds = Bounds(self.action_space, type(self).__name__.lower(), self.device)
        self.actor = self.create_model(DeterministicActor)
        self.critic = self.create_part(QCritic, n_critics=config.n_critics)
        self.actor_target, self.critic_target = make_target(self.actor), make_target(self.critic)
        for name, model in (("actor", self.actor), ("critic", self.critic)):
            self.optimizers[name] = Optimizer(
                model.parameters(), config.learning_rate, max_grad_norm=config.max_grad_norm
            )

    def load_actor(self, weights: Mapping[str, Tensor]) -> None:
        """See `Policy`; of the head of a squashed clone, the half that gives the mean."""
        size = int(np.prod(self.action_space.shape))
        super().load_actor(
            {k: value[:size] if "head." in k else value for k, value in weights.items()}
        )

    def forward(self, batch: Batch, state: Any = None) -> Batch:
        """Choose the actor's actions, with noise while collecting."""
        if not self.explores:
            return self.best_output(batch.obs)
        act = self.actor(self.observation(batch.obs))["action"]
        act, state = add_noise(act, state, self.config, self.generator)
        output = Batch(act=self.bounds.to_env(act))
        return output if state is None else output.replace(state=state)

    def best_action(self, obs: Any) -> Tensor:
        """See `Policy`."""
        return self.bounds.scaled(self.actor(self.observation(obs))["action"])

    @torch.no_grad()
    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Add ``target``: the n-step return, bootstrapped with the target networks."""
        config, rows = self.config, with_returns(self, batch)
        rows.act = self.bounds.to_unit(rows.act)
        act_next = self.actor_target(rows.obs_next)["action"]
        if config.target_noise:
            noise = torch.empty_like(act_next).normal_(generator=self.generator)
            noise = (noise * config.target_noise).clamp(
                -config.target_noise_clip, config.target_noise_clip
            )
            act_next = (act_next + noise).clamp(-1, 1)
        value_next = self.critic_target(rows.obs_next, act_next)["q_value"].amin(0)
        rows.target = torch.addcmul(rows.returns, rows.discount, value_next)
        return rows

    def learn(self, batch: Batch, **_: Any) -> Metrics:
        """Update the critics; every `actor_every` updates also the actor and the targets."""
        config = self.config
        q_value = self.critic(batch.obs, batch.act)["q_value"]
        critic_loss = (q_value - batch.target).square().sum(0).mean()
        self.optimizers["critic"].step(critic_loss)
        metrics = {
            "train/critic_loss": critic_loss.detach(),
            "train/q_value": q_value.detach().mean(),
        }
        if (self.updates + 1) % config.actor_every == 0:
            with frozen(self.critic):
                act = self.actor(batch.obs)["action"]
                actor_loss = -self.critic(batch.obs, act)["q_value"][0].mean()
                self.optimizers["actor"].step(actor_loss)
            update_target(self.actor_target, self.actor, config.tau)
            update_target(self.critic_target, self.critic, config.tau)
            metrics["train/actor_loss"] = actor_loss.detach()
        for model in (self.actor, self.critic):
            self.update_normalizer(model, batch.obs)
        return metrics

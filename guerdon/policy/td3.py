"""Twin delayed deep deterministic policy gradient: https://arxiv.org/abs/1802.09477."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field

from guerdon.compat.nervex.armor import Armor
from guerdon.data.batch import Batch
from guerdon.nn import DeterministicActor, ModelConfig, QCritic
from guerdon.nn.optimizer import Optimizer
from guerdon.policy.base import Metrics, Policy, PolicyConfig, register_policy
from guerdon.policy.bounds import Bounds
from guerdon.policy.targets import with_returns

if TYPE_CHECKING:
    import numpy as np


class TD3Config(PolicyConfig):
    """Options of `td3`."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Step size of Adam, for actor and critics; 3e-4 to 1e-3."""
    model: ModelConfig = ModelConfig(hidden=[256, 256], activation="relu", orthogonal=False)
    """Actor and critics, which do not share layers."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """How much of the way targets go when the actor learns."""
    n_step: int = Field(default=1, ge=1)
    """Rewards in a target before the next value."""
    n_critics: int = Field(default=2, ge=1)
    """Critics, of which targets take the least; 1 is DDPG's."""
    actor_every: int = Field(default=2, ge=1)
    """Updates of the critics for one of the actor."""
    exploration_noise: float = Field(default=0.1, ge=0)
    """Spread of the noise on actions while collecting, as a share of half their range."""
    target_noise: float = Field(default=0.2, ge=0)
    """Spread of the noise on the next actions in targets, likewise."""
    target_noise_clip: float = Field(default=0.5, ge=0)
    """Bound of that noise."""


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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.config
        self.segment_length = config.n_step
        self.bounds = Bounds(self.action_space, type(self).__name__.lower(), self.device)
        self.actor = self.create_model(DeterministicActor)
        self.critic = self.create_part(QCritic, n_critics=config.n_critics)
        self.explorer = Armor(self.actor)
        self.explorer.add_plugin(
            "main", "action_noise", sigma=config.exploration_noise, generator=self.generator
        )
        self.actor_learner, self.critic_learner = Armor(self.actor), Armor(self.critic)
        for name, armor in (("actor", self.actor_learner), ("critic", self.critic_learner)):
            armor.add_model("target", update_type="momentum", update_kwargs={"theta": config.tau})
            self.optimizers[name] = Optimizer(
                armor.model.parameters(), config.learning_rate, max_grad_norm=config.max_grad_norm
            )
        if config.target_noise:
            self.actor_learner.add_plugin(
                "target",
                "action_noise",
                sigma=config.target_noise,
                noise_range=(-config.target_noise_clip, config.target_noise_clip),
                generator=self.generator,
            )

    def forward(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002 - no memory
        """Takes the best action it knows; while collecting, with noise."""
        act = (self.explorer if self.explores else self.actor)(self.observation(batch.obs))
        return Batch(act=self.bounds.to_env(act["action"]))

    @torch.no_grad()
    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Adds ``target``: the reward, and the least value of a noisy next action."""
        rows = with_returns(self, batch)
        rows.act = self.bounds.to_unit(rows.act)
        act = self.actor_learner.target_forward(rows.obs_next)["action"]
        value = self.critic_learner.target_forward(rows.obs_next, act=act)["q_value"].amin(0)
        rows.target = torch.addcmul(rows.returns, rows.discount, value)
        return rows

    def learn(self, batch: Batch, **_: Any) -> Metrics:
        """One step of the critics; now and then one of the actor and of the targets."""
        q_value = self.critic(batch.obs, batch.act)["q_value"]
        critic_loss = (q_value - batch.target).square().sum(0).mean()
        self.optimizers["critic"].step(critic_loss)
        metrics = {
            "train/critic_loss": critic_loss.detach(),
            "train/q_value": q_value.detach().mean(),
        }
        if (self.updates + 1) % self.config.actor_every == 0:
            act = self.actor(batch.obs)["action"]
            actor_loss = -self.critic(batch.obs, act)["q_value"][0].mean()
            self.optimizers["actor"].step(actor_loss)
            self.actor_learner.target_update()
            self.critic_learner.target_update()
            metrics["train/actor_loss"] = actor_loss.detach()
        for model in (self.actor, self.critic):
            self.update_normalizer(model, batch.obs)
        return metrics

"""Soft actor-critic: https://arxiv.org/abs/1812.05905, and for Discrete actions 1910.07207."""

import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from guerdon import ops
from guerdon.config.validation import ReadIf, refuse
from guerdon.data.batch import Batch
from guerdon.nn import GaussianActor, ModelConfig, QCritic, QNetwork
from guerdon.nn.optimizer import Optimizer
from guerdon.nn.target import frozen, make_target, update_target
from guerdon.policy.advantages import with_returns
from guerdon.policy.base import Metrics, Policy, register_policy
from guerdon.policy.bounds import Bounds
from guerdon.policy.noise import NoiseConfig, add_noise

_EDGE = 0.01  # width of averaging at the bounds; see `squashed_gaussian_log_prob`


class SACConfig(NoiseConfig):
    """Options of `sac`."""

    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam, for actor, critics and temperature; usually 3e-4 to 1e-3."""
    model: ModelConfig = ModelConfig(hidden=[256, 256], activation="relu", orthogonal=False)
    """Actor and critics, which do not share layers."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Soft update coefficient of the target critics; usually 0.001 to 0.05."""
    n_step: int = Field(default=1, ge=1)
    """Number of rewards in a target before bootstrapping; usually 1 to 5."""
    temperature: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    """Entropy coefficient, usually 0.01 to 1; ``auto`` tunes it towards `target_entropy`."""
    target_entropy: float | None = None
    """Target entropy; by default minus the number of action dimensions, for Discrete actions
    `target_entropy_share` of the maximum entropy."""
    target_entropy_share: float = Field(default=0.5, gt=0, lt=1)
    """Target entropy of Discrete actions as a fraction of log(number of actions); usually 0.3 to
    0.98."""
    read_if: ClassVar[ReadIf] = (
        *NoiseConfig.read_if,
        ("target_entropy", "temperature", "auto"),
        ("target_entropy_share", "temperature", "auto"),
        ("target_entropy_share", "target_entropy", None),
    )


@register_policy("sac")
class SAC(Policy):
    """Soft actor-critic, for Box and Discrete actions."""

    Config = SACConfig
    has_density = True
    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "env": {"n_envs": 1},
        "collect": {"n_step": 1, "warmup_steps": 1_000, "buffer_size": 1_000_000},
        "learn": {"batch_size": 256},
    }
    target_name = "{n_step}-step soft TD"

    def build(self) -> None:
        """Make actor, critics, their target, the temperature and the optimizers."""
        config = self.config
        self.segment_length = config.n_step
        self.discrete = isinstance(self.action_space, spaces.Discrete)
        self.bounds = None if self.discrete else Bounds(self.action_space, "sac", self.device)
        idle = ("exploration_noise", "noise_correlation")
        if not self.discrete:
            idle = ("target_entropy_share", "model.dueling")
        refuse(config, idle, f"actions are in a {type(self.action_space).__name__} space", "policy")
        self.actor = self.create_model(QNetwork if self.discrete else GaussianActor)
        self.critic = self.create_part(QCritic)
        self.critic_target = make_target(self.critic)
        for name, model in (("actor", self.actor), ("critic", self.critic)):
            self.optimizers[name] = Optimizer(
                model.parameters(), config.learning_rate, max_grad_norm=config.max_grad_norm
            )
        start = 1.0 if config.temperature == "auto" else config.temperature
        self.log_temperature = nn.Parameter(torch.tensor(math.log(start), device=self.device))
        if config.temperature == "auto":
            self.optimizers["temperature"] = Optimizer([self.log_temperature], config.learning_rate)
        self.target_entropy = self._target_entropy()

    def _target_entropy(self) -> float:
        config = self.config
        if config.target_entropy is not None:
            return float(config.target_entropy)
        if self.discrete:
            return float(config.target_entropy_share * math.log(self.action_space.n))
        return -float(np.prod(self.action_space.shape))

    def log_prob(self, obs: Any, act: Tensor) -> Tensor:
        """See `Policy`."""
        inputs = self.observation(obs)
        if self.bounds is None:
            act = act - int(self.action_space.start)
            return ops.categorical_log_prob(self.logit(inputs), act)
        output = self.actor(inputs)
        parts = (output["mu"], output["log_std"], self.bounds.to_unit(act))
        mu, log_std, unit = (part.flatten(1) for part in parts)
        return ops.squashed_gaussian_log_prob(mu, log_std, unit, _EDGE)

    def forward(self, batch: Batch, state: Any = None) -> Batch:
        """Sample actions while collecting; choose the most likely ones while testing."""
        if not self.explores:
            return self.best_output(batch.obs)
        inputs = self.observation(batch.obs)
        if self.bounds is None:
            act = ops.categorical_sample(self.logit(inputs), self.generator)
            return Batch(act=act.numpy(force=True) + self.action_space.start)
        output = self.actor(inputs)
        act, _ = ops.squashed_gaussian_sample(output["mu"], output["log_std"], self.generator)
        act, state = add_noise(act, state, self.config, self.generator)
        output = Batch(act=self.bounds.to_env(act))
        return output if state is None else output.replace(state=state)

    def best_action(self, obs: Any) -> Tensor:
        """See `Policy`."""
        inputs = self.observation(obs)
        if self.bounds is None:
            return ops.categorical_mode(self.logit(inputs)) + int(self.action_space.start)
        return self.bounds.scaled(torch.tanh(self.actor(inputs)["mu"]))

    def logit(self, obs: Any) -> Tensor:
        """Return the logits of Discrete actions, for inputs of the networks."""
        logit: Tensor = self.actor(obs)["logit"]
        return logit

    def value(self, critic: Any, obs: Any) -> Tensor:
        """Return the soft value [B] of observations: expected Q-value and entropy."""
        temperature = self.log_temperature.detach().exp()
        if self.bounds is None:
            log_prob = functional.log_softmax(self.logit(obs), -1)
            q_value: Tensor = critic(obs)["q_value"].amin(0)
            return (log_prob.exp() * (q_value - temperature * log_prob)).sum(-1)
        act, log_prob = self._sample(obs)
        q_value = critic(obs, act)["q_value"].amin(0)
        return q_value - temperature * log_prob

    @torch.no_grad()
    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Add ``target``: the n-step return, bootstrapped with the soft value."""
        rows = with_returns(self, batch)
        rows.act = self.critic_action(rows.act)
        value_next = self.value(self.critic_target, rows.obs_next)
        rows.target = torch.addcmul(rows.returns, rows.discount, value_next)
        return rows

    def critic_action(self, act: Tensor) -> Tensor:
        """Return actions of the environment as the critics take them: from 0, or in [-1, 1]."""
        if self.bounds is None:
            return act - int(self.action_space.start)
        return self.bounds.to_unit(act)

    def _sample(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Sample actions in [-1, 1], with their log-probabilities [B]."""
        output = self.actor(obs)
        mu, log_std = output["mu"], output["log_std"]
        act, log_prob = ops.squashed_gaussian_sample(
            mu.flatten(1), log_std.flatten(1), self.generator
        )
        return act.view_as(mu), log_prob

    def learn(self, batch: Batch, **_: Any) -> Metrics:
        """Update the critics, the actor, the temperature and the target critics."""
        q_value = self.q_value(batch.obs, batch.act)
        critic_loss = 0.5 * (q_value - batch.target).square().sum(0).mean()
        self.optimizers["critic"].step(critic_loss)
        with frozen(self.critic):
            actor_loss, entropy = self._actor_loss(batch.obs)
            self.optimizers["actor"].step(actor_loss)
        if "temperature" in self.optimizers:
            gap = entropy - self.target_entropy
            self.optimizers["temperature"].step(self.log_temperature * gap)
        update_target(self.critic_target, self.critic, self.config.tau)
        for model in (self.actor, self.critic):
            self.update_normalizer(model, batch.obs)
        return {
            "train/critic_loss": critic_loss.detach(),
            "train/actor_loss": actor_loss.detach(),
            "train/entropy": entropy,
            "train/ent_coef": self.log_temperature.detach().exp(),
        }

    def q_value(self, obs: Any, act: Tensor) -> Tensor:
        """Return the Q-values [2, B] of actions as the critics take them."""
        if self.bounds is None:
            return ops.select_action(self.critic(obs)["q_value"], act.expand(2, -1))
        q_value: Tensor = self.critic(obs, act)["q_value"]
        return q_value

    def _actor_loss(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return the soft policy loss, and the policy's entropy."""
        temperature = self.log_temperature.detach().exp()
        if self.bounds is None:
            log_prob = functional.log_softmax(self.logit(obs), -1)
            q_value = self.critic(obs)["q_value"].amin(0)
            loss = (log_prob.exp() * (temperature * log_prob - q_value)).sum(-1).mean()
            return loss, -(log_prob.detach().exp() * log_prob.detach()).sum(-1).mean()
        act, log_prob = self._sample(obs)
        q_value = self.critic(obs, act)["q_value"].amin(0)
        return (temperature * log_prob - q_value).mean(), -log_prob.detach().mean()

"""Inverse soft Q-learning (IQ-Learn): https://arxiv.org/abs/2106.12142."""

from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from guerdon import ops
from guerdon.config.validation import refuse
from guerdon.data.batch import Batch
from guerdon.data.demonstrations import Demonstrations
from guerdon.data.loading import TO_GET_SOME, DemonstrationsConfig
from guerdon.data.spaces import in_spaces
from guerdon.nn.target import frozen, update_target
from guerdon.policy.base import Metrics, register_policy
from guerdon.policy.sac import SAC, SACConfig


class IQLearnConfig(DemonstrationsConfig, SACConfig):
    """Options of `iqlearn`."""

    learning_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of Adam, for actor and critics; usually 1e-4 to 1e-3."""
    temperature: Annotated[float, Field(gt=0)] | Literal["auto"] = 0.01
    """Entropy coefficient, usually 0.001 to 0.1; ``auto`` tunes it towards `target_entropy`."""
    method: Literal["value", "value_expert", "v0"] = "value"
    """Estimate of the value at the start of episodes: by the differences of values along the
    transitions of the policy and of the demonstrations (``value``, which lowers values where the
    policy leaves the demonstrations), along the demonstrations alone (``value_expert``), or by
    their first observations (``v0``)."""
    alpha: float = Field(default=0.5, gt=0)
    """Scale of the recovered reward, whose square is penalised by 1 / (4 alpha); usually 0.1 to
    10."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.method == "v0" and self.subsample > 1:
            raise ValueError("'v0' needs the first observations of episodes: leave 'subsample' out")
        return self


@register_policy("iqlearn")
class IQLearn(SAC):
    """Inverse soft Q-learning: learns Q-values, and so a reward, from demonstrations.

    The recovered reward is Q(s, a) - gamma V(s'), see `recovered_reward`. Actions are those of
    `sac` for a Box, and sampled from softmax(Q / temperature) for Discrete actions.

    Attributes:
        expert: Demonstrated transitions.
        first_obs: First observations of the demonstrations.
    """

    Config = IQLearnConfig
    uses_reward = False
    target_name = "inverse soft Q"
    fields = ("obs", "act", "terminated", "obs_next")
    expert: Batch
    first_obs: Any

    def build(self) -> None:
        """Make actor, critics, their target and the optimizers; no actor for Discrete actions."""
        super().build()
        refuse(self.config, ["n_step"], "iqlearn has no n-step targets", "policy")
        if self.discrete:
            del self.actor, self.optimizers["actor"]

    def load_expert_data(self, demonstrations: Demonstrations | None = None) -> None:
        """Read demonstrations, by default those of ``expert_data_path``."""
        if demonstrations is None and self.config.expert_data_path is None:
            raise ValueError(
                "iqlearn learns from demonstrations: set 'policy.expert_data_path'; " + TO_GET_SOME
            )
        found = self.config.load(demonstrations)
        spaces_of_run = self.env_observation_space, self.action_space
        rows = in_spaces(found.transitions(), *spaces_of_run, "the demonstrations")
        self.expert = Batch({name: rows[name] for name in self.fields})
        self.first_obs = rows[np.cumsum(found.lengths) - found.lengths].obs
        if self.config.model.normalize_obs == "demonstrations":
            self.normalize_by(rows.obs)

    def logit(self, obs: Any) -> Tensor:
        """Return the logits of Discrete actions: Q / temperature, the mean of both critics."""
        q_value: Tensor = self.critic(obs)["q_value"].mean(0)
        return q_value / self.log_temperature.detach().exp()

    def value(self, critic: Any, obs: Any) -> Tensor:
        """Return the soft values [2, B] of observations, of each critic.

        The loss compares them with Q-values: the minimum would have less than one of these.
        """
        temperature = self.log_temperature.detach().exp()
        if self.bounds is None:
            return ops.soft_value(critic(obs)["q_value"], temperature)
        act, log_prob = self._sample(obs)
        value: Tensor = critic(obs, act)["q_value"] - temperature * log_prob
        return value

    def read(
        self, batch_size: int, source: Any, fields: tuple[str, ...]
    ) -> tuple[Batch, np.ndarray]:
        """Draw transitions of the policy and of the demonstrations, half of each."""
        half = batch_size // 2
        batch, indices = source.sample(batch_size - half, fields=fields)
        drawn = torch.randint(
            len(self.expert), (half,), generator=self.generator, device=self.device
        ).numpy(force=True)
        parts = [Batch({name: batch[name] for name in fields}), self.expert[drawn]]
        joined = Batch.cat([part.to_device(self.device) for part in parts])
        is_expert = torch.arange(batch_size, device=self.device) >= batch_size - half
        return joined.replace(is_expert=is_expert), indices

    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Return inputs of the networks, and ``discount``."""
        return Batch(
            obs=self.observation(batch.obs),
            act=self.critic_action(batch.act),
            obs_next=self.observation(batch.obs_next),
            discount=self.config.gamma * ~batch.terminated,
            is_expert=batch.is_expert,
        )

    @torch.no_grad()
    def recovered_reward(self, batch: Batch) -> Tensor:
        """Return the recovered rewards [B] of transitions: the mean of both critics."""
        rows = Batch({name: batch[name] for name in self.fields}).to_device(self.device)
        rows = self.process_fn(rows.replace(is_expert=rows.terminated), None, np.zeros(0))
        after: Tensor = rows.discount * self.value(self.critic_target, rows.obs_next)
        return (self.q_value(rows.obs, rows.act) - after).mean(0)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of the critics, and the recovered rewards [2, B]."""
        config, shown = self.config, batch.is_expert
        with torch.no_grad():
            value_next = batch.discount * self.value(self.critic_target, batch.obs_next)
        reward = self.q_value(batch.obs, batch.act) - value_next
        if config.method == "v0":
            first = self.observation(Batch(obs=self.first_obs).to_device(self.device).obs)
            start = (1 - config.gamma) * self.value(self.critic, first).mean()
        else:
            start = self.value(self.critic, batch.obs) - value_next
            start = (start if config.method == "value" else start[:, shown]).mean()
        penalty = reward.square().mean() / (4 * config.alpha)
        return start - reward[:, shown].mean() + penalty, reward.detach()

    def learn(self, batch: Batch, **_: Any) -> Metrics:
        """Update the critics, the actor, the temperature and the target critics."""
        config, shown = self.config, batch.is_expert
        critic_loss, reward = self.loss(batch)
        self.optimizers["critic"].step(critic_loss)
        metrics = {
            "train/critic_loss": critic_loss.detach(),
            "train/expert_reward": reward[:, shown].mean(),
            "train/policy_reward": reward[:, ~shown].mean(),
            "train/entropy": self._improve(batch.obs),
        }
        update_target(self.critic_target, self.critic, config.tau)
        for model in {self.critic, getattr(self, "actor", self.critic)}:
            self.update_normalizer(model, batch.obs)
        return metrics

    def _improve(self, obs: Any) -> Tensor:
        """Update the actor and the temperature; return the entropy of actions."""
        if self.discrete:
            with torch.no_grad():
                log_prob = functional.log_softmax(self.logit(obs), -1)
            entropy = -(log_prob.exp() * log_prob).sum(-1).mean()
        else:
            with frozen(self.critic):
                actor_loss, entropy = self._actor_loss(obs)
                self.optimizers["actor"].step(actor_loss)
        if "temperature" in self.optimizers:
            self.optimizers["temperature"].step(
                self.log_temperature * (entropy - self.target_entropy)
            )
        return entropy

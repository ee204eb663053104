"""A policy of your own in one file: REINFORCE with a baseline, trained on CartPole.

    python examples/custom_policy.py run.max_steps=60_000 seed=0

The decorator registers a name, for use with any reward and environment of Discrete or Box actions:
`guerdon.train(env="Pendulum-v1", policy="reinforce")`.
"""

import sys
from typing import Any

import numpy as np
import torch
from pydantic import Field

import guerdon
from guerdon import ops
from guerdon.data import Batch
from guerdon.nn import ActorCritic
from guerdon.nn.optimizer import Optimizer
from guerdon.policy import Policy, PolicyConfig, register_policy
from guerdon.policy.actions import make_actions


class ReinforceConfig(PolicyConfig):
    """Options of `reinforce`, beside those of every policy (gamma, model, ...)."""

    learning_rate: float = Field(5e-3, gt=0)
    """Learning rate of Adam."""
    entropy_coefficient: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""


@register_policy("reinforce")
class Reinforce(Policy):
    """REINFORCE with a learned baseline."""

    Config = ReinforceConfig
    on_policy = True
    ignores = ("learn.batch_size", "learn.repeat")  # one step with all data
    defaults = {"collect": {"n_episode": 8}}  # noqa: RUF012

    def build(self) -> None:
        """Make the network and its optimizer."""
        self.actions = make_actions(self.action_space, "reinforce")
        self.fields = ("obs", *self.actions.fields, "rew", "terminated", "obs_next")
        self.model = self.create_model(ActorCritic)
        self.optimizers["model"] = Optimizer(self.model.parameters(), self.config.learning_rate)

    def forward(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002
        """Sample actions while collecting; choose the most likely ones while testing."""
        if not self.explores:
            return self.best_output(batch.obs)
        output = self.model.actor(self.observation(batch.obs))
        return self.actions.sample(output, self.generator)

    def best_action(self, obs: Any) -> torch.Tensor:
        """Choose the most likely actions; `guerdon export` needs this, too."""
        return self.actions.mode(self.model.actor(self.observation(obs)))

    @torch.no_grad()
    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Return the rollout [T, n_envs] as rows with ``returns``; its reward is resolved."""
        gamma, rew = self.config.gamma, batch.rew.clone()
        truncated = batch.cut & batch.mask & ~batch.terminated  # bootstrap
        if truncated.any():
            obs_next = self.observation(batch.obs_next[truncated])
            rew[truncated] += gamma * self.model.critic(obs_next)["value"]
        returns = ops.backward_scan(rew, gamma * (~batch.cut).float())
        rows = {"obs": batch.obs, "act": self.actions.taken(batch), "returns": returns}
        return Batch({key: value[batch.mask] for key, value in rows.items()})

    def learn(self, batch: Batch, **_: Any) -> dict[str, Any]:
        """Take one optimizer step with all transitions."""
        output = self.model(batch.obs)
        log_prob, entropy = self.actions.log_prob_entropy(output, batch.act)
        advantage = batch.returns - output["value"].detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = -(log_prob * advantage).mean()
        value_loss = (output["value"] - batch.returns).square().mean()
        bonus = self.config.entropy_coefficient * entropy.mean()
        self.optimizers["model"].step(policy_loss + 0.5 * value_loss - bonus)
        return {"train/policy_loss": policy_loss.detach(), "train/value_loss": value_loss.detach()}


if __name__ == "__main__":
    names = "env=cartpole", "policy=reinforce"
    until = "eval.every=5_000", "eval.target_return=475", "run.max_steps=60_000"
    guerdon.train(None, *names, *until, *sys.argv[1:])

"""A policy of your own in one file: REINFORCE with a baseline, trained on CartPole.

    python examples/custom_policy.py --steps 60000 --seed 0

The decorator gives it a name. From then on it goes with any environment of Discrete or Box actions
and with any reward: `guerdon.train(None, "env.id=Pendulum-v1", "policy=reinforce")`.
"""

import argparse
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
    """What can be said under ``policy:``, beside what every policy has (gamma, model, ...)."""

    learning_rate: float = Field(5e-3, gt=0)
    """Step size of Adam."""
    entropy_coefficient: float = Field(0.01, ge=0)
    """Weight of a bonus for randomness."""


@register_policy("reinforce")
class Reinforce(Policy):
    """The policy gradient: actions that did better than expected become more likely."""

    Config = ReinforceConfig
    on_policy = True
    ignores = ("learn.batch_size", "learn.repeat")  # it takes one step with all data
    defaults = {"collect": {"n_episode": 8}}  # noqa: RUF012

    def build(self) -> None:
        """Make the network and its optimizer."""
        self.actions = make_actions(self.action_space, "reinforce")
        self.fields = ("obs", *self.actions.fields, "rew", "terminated", "obs_next")
        self.model = self.create_model(ActorCritic)
        self.optimizers["model"] = Optimizer(self.model.parameters(), self.config.learning_rate)

    def forward(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002
        """Draws actions while collecting, and takes the most likely ones while testing."""
        output = self.model.actor(self.observation(batch.obs))
        return self.actions.act(output, self.generator if self.explores else None)

    @torch.no_grad()
    def process_fn(self, batch: Batch, buffer: Any, indices: np.ndarray) -> Batch:  # noqa: ARG002
        """Return the rollout [T, n_envs] as rows with ``returns``; its reward is resolved."""
        gamma, rew = self.config.gamma, batch.rew.clone()
        truncated = batch.cut & batch.mask & ~batch.terminated  # bootstrap from what comes next
        if truncated.any():
            obs_next = self.observation(batch.obs_next[truncated])
            rew[truncated] += gamma * self.model.critic(obs_next)["value"]
        returns = ops.backward_scan(rew, gamma * (~batch.cut).float())
        rows = {"obs": batch.obs, "act": self.actions.taken(batch), "returns": returns}
        return Batch({key: value[batch.mask] for key, value in rows.items()})

    def learn(self, batch: Batch, **_: Any) -> dict[str, Any]:
        """One step with all that was collected."""
        output = self.model(batch.obs)
        log_prob, entropy = self.actions.log_prob_entropy(output, batch.act)
        advantage = batch.returns - output["value"].detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = -(log_prob * advantage).mean()
        value_loss = (output["value"] - batch.returns).square().mean()
        bonus = self.config.entropy_coefficient * entropy.mean()
        self.optimizers["model"].step(policy_loss + 0.5 * value_loss - bonus)
        return {"train/policy_loss": policy_loss.detach(), "train/value_loss": value_loss.detach()}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Trains until the mean return of an evaluation is 475, or the steps are used up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60_000, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", help="the run's folder")
    options = parser.parse_args(arguments)
    config = {
        "env": {"id": "CartPole-v1", "n_envs": 8},
        "policy": {"type": "reinforce"},
        "eval": {"every": 5_000, "target_return": 475},
        "run": {"max_steps": options.steps, "dir": options.dir},
        "imports": [__file__],  # so that `guerdon eval` and `--resume` find the policy again
    }
    return guerdon.train(config, seed=options.seed)


if __name__ == "__main__":
    main()

"""A reward model of your own, written by DI-engine's guide, and a policy that learns from it.

    python examples/custom_reward_model.py --steps 20000 --seed 0

The model learns which of the policy's transitions end an episode, and rewards the others. The
environment's reward is used for evaluation only.
"""

import argparse
from typing import Any

import torch
from torch import nn

from guerdon.compat.di_engine import BaseRewardModel
from guerdon.entry import serial_pipeline_reward_model_offpolicy
from guerdon.reward import register_reward_model


class SafetyNetwork(nn.Module):
    """Predicts the probability that an episode ends in a state."""

    def __init__(self, obs_size: int, hidden_size: int) -> None:
        super().__init__()
        self.feature = nn.Sequential(
            nn.Linear(obs_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 1)
        )

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return rewards [B] of next observations [B, obs_size]: the probability of no end."""
        return 1 - torch.sigmoid(self.feature(data)).squeeze(-1)

    def learn(self, data: torch.Tensor, over: torch.Tensor) -> torch.Tensor:
        """Return the loss, in which ends have the same total weight as all other rows."""
        weight = (len(over) - over.sum()) / over.sum().clamp(min=1)
        logit = self.feature(data).squeeze(-1)
        return nn.functional.binary_cross_entropy_with_logits(logit, over, pos_weight=weight)


@register_reward_model("safety")
class SafetyRewardModel(BaseRewardModel):
    """Reward: the predicted probability that a transition does not end the episode."""

    def __init__(self, config: Any, device: str, tb_logger: Any) -> None:
        super().__init__(config, device, tb_logger)
        self.reward_model = SafetyNetwork(config.obs_size, config.hidden_size).to(device)
        self.optimizer = torch.optim.Adam(self.reward_model.parameters(), config.learning_rate)
        self.train_data: list[dict[str, torch.Tensor]] = []
        self.train_iter = 0

    def collect_data(self, data: list[dict[str, torch.Tensor]]) -> None:
        """Store the policy's newest transitions."""
        self.train_data.extend(data)

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the guide's name
        """Forgets it now and then."""
        if iter % self.cfg.clear_buffer_per_iters == 0:
            self.train_data.clear()

    def train(self) -> None:
        """Take some gradient steps, and log the loss."""
        for _ in range(self.cfg.update_per_collect):
            loss = self._train()
            self.tb_logger.add_scalar("reward_model/reward_loss", loss, self.train_iter)
            self.train_iter += 1

    def _train(self) -> float:
        chosen = torch.randint(len(self.train_data), (self.cfg.batch_size,))
        batch = [self.train_data[i] for i in chosen.tolist()]
        data = torch.stack([item["next_obs"] for item in batch]).to(self.device)
        over = torch.stack([item["done"] for item in batch]).float().to(self.device)
        loss = self.reward_model.learn(data, over)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def estimate(self, data: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
        """Return the same transitions with the model's reward."""
        states = torch.stack([item["next_obs"] for item in data]).to(self.device)
        with torch.no_grad():
            reward = self.reward_model(states).cpu()
        for item, rew in zip(data, reward, strict=True):
            item["reward"] = rew
        return data


main_config = {
    "env": {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 10},
    "reward_model": {
        "type": "safety",
        "obs_size": 4,
        "hidden_size": 32,
        "learning_rate": 1e-3,
        "batch_size": 64,
        "update_per_collect": 8,
        "clear_buffer_per_iters": 1_280,
    },
    "policy": {
        "discount_factor": 0.99,
        "model": {"encoder_hidden_size_list": [128, 128]},
        "learn": {"batch_size": 128, "learning_rate": 1e-3, "update_per_collect": 128},
        "collect": {"n_sample": 256},
        "other": {
            "eps": {"type": "linear", "start": 1.0, "end": 0.04, "decay": 8_000},
            "replay_buffer": {"replay_buffer_size": 50_000},
        },
    },
    "collect": {"warmup_steps": 1_000},
}
create_config = {"env": {"type": "cartpole"}, "policy": {"type": "dqn"}}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", help="run directory")
    options = parser.parse_args(arguments)
    config = {**main_config, "run": {"dir": options.dir}}
    return serial_pipeline_reward_model_offpolicy(
        (config, create_config), seed=options.seed, max_env_step=options.steps
    )


if __name__ == "__main__":
    main()

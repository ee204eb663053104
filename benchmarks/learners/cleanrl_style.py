"""PPO and DQN in the style of CleanRL: one plain file, one loop each, nothing shared.

Written for this comparison, with the parts that style is made of: SyncVectorEnv with episode
statistics, torch.distributions, tensors for the rollout, numpy's shuffled indices, Adam (with
foreach, which is faster than its default). As there, PPO takes truncation for an end, and reads a
scalar after each minibatch.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical

from learners.base import DQNSetting, Learner, PPOSetting, Watch


def _environments(n: int) -> SyncVectorEnv:
    def make() -> gymnasium.Env:
        return RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))

    return SyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.SAME_STEP)


def _layer(before: int, after: int, gain: float = 2**0.5) -> nn.Linear:
    layer = nn.Linear(before, after)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Actor and critic."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(
                _layer(4, 64), nn.Tanh(), _layer(64, 64), nn.Tanh(), _layer(64, out, gain)
            )
            for out, gain in ((2, 0.01), (1, 1.0))
        )

    def act(self, obs: torch.Tensor, action: torch.Tensor | None = None) -> tuple:
        """Actions, their log-probabilities, entropies and values."""
        distribution = Categorical(logits=self.actor(obs))
        action = distribution.sample() if action is None else action
        return action, distribution.log_prob(action), distribution.entropy(), self.critic(obs)


@dataclass(frozen=True)
class PPOExtras:
    """What the equal setting leaves out."""

    anneal_over: int | None = None
    """Environment steps over which the learning rate goes to zero."""
    clip_values: bool = False


def ppo(s: PPOSetting, extras: PPOExtras, seed: int, watch: Watch) -> None:
    """The loop; `s` is the setting."""
    np.random.seed(seed)  # noqa: NPY002  as the style has it
    torch.manual_seed(seed)
    envs = _environments(s.n_envs)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), s.learning_rate, eps=1e-5, foreach=True)

    shape = (s.n_steps, s.n_envs)
    obs = torch.zeros((*shape, 4))
    actions, log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
    next_obs = torch.Tensor(envs.reset(seed=seed)[0])
    next_done = torch.zeros(s.n_envs)
    steps = 0

    while not watch(steps, lambda o: agent.actor(torch.from_numpy(o)).argmax(-1).numpy()):
        if extras.anneal_over:
            left = max(0.0, 1 - steps / extras.anneal_over)
            optimizer.param_groups[0]["lr"] = left * s.learning_rate

        for t in range(s.n_steps):
            steps += s.n_envs
            obs[t], dones[t] = next_obs, next_done
            with torch.no_grad():
                action, log_prob, _, value = agent.act(next_obs)
            actions[t], log_probs[t], values[t] = action, log_prob, value.flatten()
            step_obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards[t] = torch.tensor(reward)
            next_obs = torch.Tensor(step_obs)
            next_done = torch.Tensor(np.logical_or(terminated, truncated))

        with torch.no_grad():
            next_value = agent.critic(next_obs).flatten()
            advantages = torch.zeros_like(rewards)
            trace = torch.zeros(s.n_envs)
            for t in reversed(range(s.n_steps)):
                going = 1.0 - (next_done if t == s.n_steps - 1 else dones[t + 1])
                after = next_value if t == s.n_steps - 1 else values[t + 1]
                delta = rewards[t] + s.gamma * after * going - values[t]
                advantages[t] = trace = delta + s.gamma * s.gae_lambda * going * trace
            returns = advantages + values

        b_obs, b_actions = obs.reshape(-1, 4), actions.reshape(-1)
        b_log_probs, b_values = log_probs.reshape(-1), values.reshape(-1)
        b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
        indices = np.arange(s.rows)
        clipped_parts = []
        for _ in range(s.epochs):
            np.random.shuffle(indices)  # noqa: NPY002
            for start in range(0, s.rows, s.batch_size):
                i = indices[start : start + s.batch_size]
                _, log_prob, entropy, value = agent.act(b_obs[i], b_actions.long()[i])
                log_ratio = log_prob - b_log_probs[i]
                ratio = log_ratio.exp()
                with torch.no_grad():
                    kl = ((ratio - 1) - log_ratio).mean()
                    clipped_parts.append(((ratio - 1).abs() > s.clip).float().mean().item())

                advantage = b_advantages[i]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(
                    -advantage * ratio, -advantage * torch.clamp(ratio, 1 - s.clip, 1 + s.clip)
                ).mean()
                value = value.view(-1)
                error = (value - b_returns[i]) ** 2
                if extras.clip_values:
                    near = b_values[i] + torch.clamp(value - b_values[i], -s.clip, s.clip)
                    error = torch.max(error, (near - b_returns[i]) ** 2)
                value_loss = 0.5 * error.mean()
                loss = policy_loss - s.entropy_weight * entropy.mean() + s.value_weight * value_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), s.max_grad_norm)
                optimizer.step()
        _ = value_loss.item(), policy_loss.item(), kl.item(), np.mean(clipped_parts)
    envs.close()


@dataclass(frozen=True)
class DQNExtras:
    """What the equal setting leaves out."""

    epsilon_start: float
    epsilon_over: int
    """Environment steps over which epsilon falls to that of the setting."""
    every: int
    """Environment steps between two updates, with one environment."""


def dqn(s: DQNSetting, extras: DQNExtras | None, seed: int, watch: Watch) -> None:
    """The loop; `s` is the setting."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    envs = _environments(s.n_envs)
    sizes = (4, *s.hidden)
    layers = [
        part
        for before, after in itertools.pairwise(sizes)
        for part in (nn.Linear(before, after), nn.ReLU())
    ]
    network = nn.Sequential(*layers, nn.Linear(sizes[-1], 2))
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), s.learning_rate, foreach=True)

    size = s.buffer_size // s.n_envs
    store_obs, store_next = np.zeros((2, size, s.n_envs, 4), np.float32)
    store_rew, store_done = np.zeros((2, size, s.n_envs), np.float32)
    store_act = np.zeros((size, s.n_envs), np.int64)
    obs, _ = envs.reset(seed=seed)
    t = updates = 0
    every = extras.every if extras else 1

    while t % every or not watch(
        t * s.n_envs, lambda o: network(torch.from_numpy(o)).argmax(-1).numpy()
    ):
        steps = t * s.n_envs
        epsilon = s.epsilon
        if extras:
            slope = (s.epsilon - extras.epsilon_start) / extras.epsilon_over
            epsilon = max(s.epsilon, extras.epsilon_start + slope * steps)
        if random.random() < epsilon:
            actions = random.integers(0, 2, s.n_envs)
        else:
            with torch.no_grad():
                actions = network(torch.Tensor(obs)).argmax(dim=1).numpy()
        next_obs, rewards, terminated, truncated, infos = envs.step(actions)
        true_next = next_obs.copy()
        for index in np.flatnonzero(terminated | truncated):
            true_next[index] = infos["final_obs"][index]
        row = t % size
        store_obs[row], store_next[row], store_act[row] = obs, true_next, actions
        store_rew[row], store_done[row] = rewards, terminated
        obs = next_obs
        t += 1
        if t * s.n_envs <= s.warmup_steps or t % every:
            continue

        rows = random.integers(0, min(t, size), s.batch_size)
        columns = random.integers(0, s.n_envs, s.batch_size)
        data = [
            torch.from_numpy(array[rows, columns])
            for array in (store_obs, store_next, store_act, store_rew, store_done)
        ]
        with torch.no_grad():
            best, _ = target(data[1]).max(dim=1)
            goal = data[3] + s.gamma * best * (1 - data[4])
        old = network(data[0]).gather(1, data[2].view(-1, 1)).squeeze()
        loss = nn.functional.mse_loss(goal, old)
        optimizer.zero_grad()
        loss.backward()
        if s.max_grad_norm:
            nn.utils.clip_grad_norm_(network.parameters(), s.max_grad_norm)
        optimizer.step()
        updates += 1
        if updates % s.target_every == 0:
            target.load_state_dict(network.state_dict())
    envs.close()


class _CleanRLStyle(Learner):
    name = "CleanRL-style"
    usage: ClassVar = {
        "ppo, dqn": "see benchmarks/learners/cleanrl_style.py; CleanRL itself needs an older "
        "Gymnasium and PyTorch",
        "tuned": "the defaults of CleanRL's ppo.py and dqn.py, its published CartPole runs",
    }

    def ppo(self, setting: PPOSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        ppo(setting, PPOExtras(), seed, watch)

    def dqn(self, setting: DQNSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        dqn(setting, None, seed, watch)

    def tuned_ppo(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        setting = PPOSetting(n_envs=4, learning_rate=2.5e-4)
        ppo(setting, PPOExtras(anneal_over=500_000, clip_values=True), seed, watch)

    def tuned_dqn(self, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        setting = DQNSetting(
            n_envs=1,
            hidden=(120, 84),
            learning_rate=2.5e-4,
            batch_size=128,
            buffer_size=10_000,
            warmup_steps=10_000,
            epsilon=0.05,
            target_every=50,
            max_grad_norm=0.0,
        )
        extras = DQNExtras(epsilon_start=1.0, epsilon_over=250_000, every=10)
        dqn(setting, extras, seed, watch)


LEARNER = _CleanRLStyle()

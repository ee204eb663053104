"""PPO as a loop of 45 lines: what PyTorch and Gymnasium cost when nothing else is there.

Its one purpose is speed on this task. Gymnasium's own CartPole vector resets an environment in the
step after an end; that row is no data, and is left out of the GAE, the statistics and the loss.
"""

from __future__ import annotations

from typing import ClassVar

import gymnasium
import numba
import numpy as np
import torch
from torch.nn import Linear, Sequential, Tanh
from torch.nn.functional import mse_loss

from learners.base import Learner, PPOSetting, Watch


@numba.njit(cache=True)
def _gae(rew, value, terminated, ended, dummy, gamma, gae_lambda):  # noqa: ANN001, ANN202
    advantage = np.zeros_like(rew)
    for env in range(rew.shape[1]):
        trace = np.float32(0)
        for t in range(len(rew) - 1, -1, -1):
            after = np.float32(0) if terminated[t, env] else gamma * value[t + 1, env]
            carried = np.float32(0) if ended[t, env] else gamma * gae_lambda * trace
            trace = rew[t, env] + after - value[t, env] + carried
            advantage[t, env] = trace = np.float32(0) if dummy[t, env] else trace
    return advantage


def train(s: PPOSetting, seed: int, watch: Watch) -> None:
    """The loop; `s` is the setting."""
    torch.manual_seed(seed)
    envs = gymnasium.make_vec("CartPole-v1", s.n_envs, "vector_entry_point")
    actor, critic = (
        Sequential(Linear(4, 64), Tanh(), Linear(64, 64), Tanh(), Linear(64, n)) for n in (2, 1)
    )
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, s.learning_rate, fused=True)
    obs = np.empty((s.n_steps + 1, s.n_envs, 4), np.float32)
    rew = np.empty((s.n_steps, s.n_envs), np.float32)
    act = np.empty(rew.shape, np.int64)
    terminated, ended, dummy = np.zeros((3, *rew.shape), bool)
    logits, steps = torch.empty(*rew.shape, 2), 0
    obs[-1] = envs.reset(seed=seed)[0]
    obs_all, act_all = torch.from_numpy(obs), torch.from_numpy(act).view(-1, 1)
    while not watch(steps, lambda o: actor(torch.from_numpy(o)).argmax(-1).numpy()):
        obs[0], last_ended = obs[-1], ended[-1].copy()
        with torch.inference_mode():
            noise = torch.empty_like(logits).exponential_().log_()  # Gumbel's, with the sign turned
            for t in range(s.n_steps):
                logits[t] = actor(obs_all[t])
                act[t] = (logits[t] - noise[t]).argmax(-1).numpy()
                obs[t + 1], rew[t], terminated[t], truncated, _ = envs.step(act[t])
                ended[t] = terminated[t] | truncated
            dummy[0], dummy[1:] = last_ended, ended[:-1]
            value = critic(obs_all).squeeze(-1).numpy()
            advantage = _gae(rew, value, terminated, ended, dummy, s.gamma, s.gae_lambda)
            old = logits.log_softmax(-1).view(-1, 2).gather(1, act_all)
            columns = [torch.from_numpy(a).view(-1, 1) for a in (advantage, advantage + value[:-1])]
            rows = torch.cat([obs_all[:-1].view(-1, 4), act_all, old, *columns], 1)
            rows = rows[torch.from_numpy(~dummy).view(-1)]
        for _ in range(s.epochs):
            for part in rows.index_select(0, torch.randperm(len(rows))).chunk(s.minibatches):
                log_prob = actor(part[:, :4]).log_softmax(-1)
                ratio = (log_prob.gather(1, part[:, 4:5].long()) - part[:, 5:6]).exp()
                std, mean = torch.std_mean(part[:, 6:7])
                advantage = (part[:, 6:7] - mean) / (std + 1e-8)
                clipped = ratio.clamp(1 - s.clip, 1 + s.clip) * advantage
                gain = torch.minimum(ratio * advantage, clipped).mean()
                entropy = -(log_prob.exp() * log_prob).sum(-1).mean()
                error = mse_loss(critic(part[:, :4]), part[:, 7:8])
                loss = s.value_weight * error - gain - s.entropy_weight * entropy
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, s.max_grad_norm)
                optimizer.step()
        steps += len(rows)


class _BareLoop(Learner):
    name = "bare loop"
    usage: ClassVar = {"ppo": "benchmarks/learners/bare_loop.py, a loop for this one task"}

    def ppo(self, setting: PPOSetting, seed: int, watch: Watch) -> None:
        """See `Learner`."""
        train(setting, seed, watch)


LEARNER = _BareLoop()

"""Gymnasium wrapper with a learned reward."""

from typing import Any

import gymnasium
import numpy as np

from guerdon.data.rollout import Rollout
from guerdon.reward.composition import Reward


class LearnedReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Replaces the reward of an environment by a learned one; see `Reward.wrap`.

    Args:
        env: The environment.
        reward: The reward, which is not trained.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], reward: Reward) -> None:
        super().__init__(env)
        self.reward = reward
        self._rollout = Rollout(1, 1, reward.history)
        self._reads_info = "info" in (*reward.fields, *reward.collects)
        self._obs: Any = None
        self._memory = reward.new_memory(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """See Gymnasium."""
        self._obs, info = self.env.reset(seed=seed, options=options)
        self._rollout.cut()
        self._memory = self.reward.new_memory(1)
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See Gymnasium; ``info["env_reward"]`` is the environment reward."""
        obs, env_reward, terminated, truncated, info = self.env.step(action)
        values = {
            "obs": self._obs, "act": action, "rew": float(env_reward), "terminated": terminated,
            "truncated": truncated, "obs_next": obs, **({"info": info} if self._reads_info else {}),
        }  # fmt: skip
        self._rollout.add({key: _row(value) for key, value in values.items()})
        batch, indices = self._rollout.rollout()
        annotated, self._memory = self.reward.annotate(batch, self._memory)
        device = self.reward.models[0].device
        read = self.reward.transform(annotated, indices, self._rollout).to_device(device)
        resolved = self.reward.resolve(read)
        self._rollout.reset()
        self._obs = obs
        ended = bool(resolved.terminated[0, 0])
        info = {**info, "env_reward": float(env_reward)}
        return obs, float(resolved.rew[0, 0]), ended, bool(truncated), info


def _row(value: Any) -> Any:
    """Add an environment axis; a tuple becomes a dictionary, as in vector environments."""
    if isinstance(value, tuple):
        value = {str(key): part for key, part in enumerate(value)}
    if isinstance(value, dict):
        return {key: _row(part) for key, part in value.items()}
    return np.asarray(value)[None]

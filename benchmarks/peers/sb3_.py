"""Stable-Baselines3: steps are given with a list of infos; samples are tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from peers.base import MissingError, Store, System

if TYPE_CHECKING:
    from stable_baselines3.common.type_aliases import ReplayBufferSamples
    from stream import Rows, Step


class _Vectors(Store):
    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def prepare(self, step: Step) -> tuple[Any, ...]:
        done = step.terminated | step.truncated
        infos = [{"TimeLimit.truncated": bool(truncated)} for truncated in step.truncated]
        return step.obs, step.next_obs, step.act, step.rew, done, infos

    def add(self, item: tuple[Any, ...]) -> None:
        self.buffer.add(*item)

    def sample(self, n: int) -> ReplayBufferSamples:
        return self.buffer.sample(n)

    def rows(self, sample: ReplayBufferSamples) -> Rows:
        return {
            "obs": sample.observations.numpy(),
            "act": sample.actions.numpy()[:, 0],
            "rew": sample.rewards.numpy()[:, 0],
            "terminated": sample.dones.numpy()[:, 0] == 1,
            "next_obs": sample.next_observations.numpy(),
        }


class _Frames(_Vectors):
    true_next = False  # optimize_memory_usage: the first of the next episode

    def rows(self, sample: ReplayBufferSamples) -> Rows:
        rows = super().rows(sample)
        del rows["terminated"]  # optimize_memory_usage does not know truncation
        return rows


class _StableBaselines3(System):
    name = "SB3"
    packages = ("stable-baselines3",)
    usage: ClassVar = {
        "add": "infos with TimeLimit.truncated, made beforehand",
        "frames": "optimize_memory_usage on stacks, its only way; the last next observation of an "
        "episode is not the true one, and truncation is not told from termination",
    }

    def vectors(self, size: int, n_envs: int, use: str) -> Store:  # noqa: ARG002
        space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        return _Vectors(ReplayBuffer(size, space, spaces.Discrete(2), "cpu", n_envs=n_envs))

    def frames(self, size: int, use: str) -> Store:
        if use == "memory":
            raise MissingError("next observations are only right if whole stacks are stored twice")
        space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
        options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
        return _Frames(ReplayBuffer(size, space, spaces.Discrete(2), "cpu", **options))


SYSTEM = _StableBaselines3()

"""Tianshou: steps are given as a `Batch`; samples are a `Batch` of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer, VectorReplayBuffer

from peers.base import BatchClass, Batches, MissingError, Store, System

if TYPE_CHECKING:
    from stream import Rows, Step

_KEYS = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next")


class _Vectors(Store):
    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self.vectorized = isinstance(buffer, VectorReplayBuffer)

    def prepare(self, step: Step) -> Batch:
        fields = step._asdict() if self.vectorized else step.single()
        fields["obs_next"] = fields.pop("next_obs")
        return Batch(**fields)

    def add(self, item: Batch) -> None:
        self.buffer.add(item)

    def sample(self, n: int) -> tuple[Batch, np.ndarray]:
        return self.buffer.sample(n)

    def tensors(self, sample: tuple[Batch, np.ndarray]) -> tuple[dict[str, Any], np.ndarray]:
        # Batch.to_torch copies; this is what it would do without.
        batch = sample[0]
        return {key: torch.from_numpy(batch[key]) for key in _KEYS}, sample[1]

    def rows(self, sample: tuple[Any, np.ndarray]) -> Rows:
        batch = sample[0]
        rows = {key: np.asarray(batch[key]) for key in _KEYS}
        rows["next_obs"] = rows.pop("obs_next")
        if "weight" in batch:
            rows["weight"] = batch["weight"]
        return rows


class _Prioritized(_Vectors):
    buffer: PrioritizedReplayBuffer

    def update(self, sample: tuple[Batch, np.ndarray], priorities: np.ndarray) -> None:
        self.buffer.update_weight(sample[1], priorities)


class _Frames(_Vectors):
    true_next = False  # ignore_obs_next: the observation itself where an episode ends


class _Tianshou(System):
    name = "Tianshou"
    packages = ("tianshou",)
    usage: ClassVar = {
        "add": "ReplayBuffer for one environment, faster than VectorReplayBuffer(n, 1); that for "
        "several; steps are made into a Batch beforehand",
        "sample": "the same; tensors by torch.from_numpy, ten times as fast as its Batch.to_torch",
        "frames": "ReplayBuffer(stack_num=4, ignore_obs_next=True, save_only_last_obs=True), as in "
        "its Atari examples; the last next observation of an episode is not the true one",
        "prioritized": "PrioritizedReplayBuffer",
    }

    def vectors(self, size: int, n_envs: int, use: str) -> Store:  # noqa: ARG002
        return _Vectors(ReplayBuffer(size) if n_envs == 1 else VectorReplayBuffer(size, n_envs))

    def prioritized(self, size: int) -> Store:
        return _Prioritized(PrioritizedReplayBuffer(size, alpha=0.6, beta=0.4))

    def frames(self, size: int, use: str) -> Store:
        if use == "memory":
            raise MissingError("next observations are only right if whole stacks are stored")
        options = {"stack_num": 4, "ignore_obs_next": True, "save_only_last_obs": True}
        return _Frames(ReplayBuffer(size, **options))

    def batches(self) -> Batches:
        return BatchClass(Batch)


SYSTEM = _Tianshou()

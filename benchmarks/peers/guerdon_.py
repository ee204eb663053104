"""guerdon: steps are given as keywords; samples are a `Batch` of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from guerdon.data import Batch, PrioritizedReplayBuffer, ReplayBuffer
from peers.base import BatchClass, Batches, Store, System

if TYPE_CHECKING:
    from stream import Rows, Step


_FIELDS = ("obs", "act", "rew", "terminated", "truncated", "obs_next")


class _Vectors(Store):
    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def prepare(self, step: Step) -> dict[str, Any]:
        fields = step.single() if self.buffer.n_envs == 1 else step._asdict()
        fields["obs_next"] = fields.pop("next_obs")
        return fields

    def add(self, item: dict[str, Any]) -> None:
        self.buffer.add(**item)

    def sample(self, n: int) -> tuple[Batch, np.ndarray]:
        return self.buffer.sample(n, fields=_FIELDS)

    def tensors(self, sample: tuple[Batch, np.ndarray]) -> tuple[Batch, np.ndarray]:
        return sample[0].to_torch(), sample[1]

    def rows(self, sample: tuple[Batch, np.ndarray]) -> Rows:
        rows = {key: np.asarray(value) for key, value in sample[0].items() if value is not None}
        rows["next_obs"] = rows.pop("obs_next")
        return rows


class _Prioritized(_Vectors):
    buffer: PrioritizedReplayBuffer

    def update(self, sample: tuple[Batch, np.ndarray], priorities: np.ndarray) -> None:
        self.buffer.update_weight(sample[1], priorities)


class _Segments(_Vectors):
    def __init__(self, buffer: ReplayBuffer, length: int) -> None:
        super().__init__(buffer)
        self.length = length

    def sample(self, n: int) -> tuple[Batch, np.ndarray]:
        return self.buffer.sample(n, length=self.length, fields=_FIELDS)


class _Frames(_Vectors):
    def __init__(self, buffer: ReplayBuffer) -> None:
        super().__init__(buffer)
        self.true_next = not buffer.ignore_obs_next

    def prepare(self, step: Step) -> dict[str, Any]:
        fields = super().prepare(step)
        return fields | {"obs": fields["obs"][-1], "obs_next": fields["obs_next"][-1]}


class _Guerdon(System):
    name = "guerdon"
    packages = ("guerdon",)
    usage: ClassVar = {
        "frames": "ReplayBuffer(stack_num=4), fed single frames, which are stacked when sampled",
    }

    def vectors(self, size: int, n_envs: int, use: str) -> Store:  # noqa: ARG002
        return _Vectors(ReplayBuffer(size, n_envs=n_envs, seed=0))

    def prioritized(self, size: int) -> Store:
        return _Prioritized(PrioritizedReplayBuffer(size, alpha=0.6, beta=0.4, seed=0))

    def segments(self, size: int, length: int) -> Store:
        return _Segments(ReplayBuffer(size, seed=0), length)

    def frames(self, size: int, use: str) -> Store:
        lossy = use == "lossy"
        return _Frames(ReplayBuffer(size, stack_num=4, ignore_obs_next=lossy, seed=0))

    def batches(self) -> Batches:
        return BatchClass(Batch)


SYSTEM = _Guerdon()

"""cpprb: steps are given as keywords; samples are a dictionary of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

from peers.base import CHUNK, MissingError, Store, System

if TYPE_CHECKING:
    from stream import Rows, Step, Stream

_FIELDS = {
    "act": {"dtype": np.int64},
    "rew": {"dtype": np.float32},
    "terminated": {"dtype": np.bool_},
    "truncated": {"dtype": np.bool_},
}
_VECTOR = {"shape": 4, "dtype": np.float32}
_PLAIN = {"obs": _VECTOR, "next_obs": _VECTOR, **_FIELDS}


class _Vectors(Store):
    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def prepare(self, step: Step) -> dict[str, Any]:
        return step.single() if len(step.act) == 1 else step._asdict()

    def add(self, item: dict[str, Any]) -> None:
        self.buffer.add(**item)

    def fill(self, stream: Stream, periods: int) -> None:
        chunks = zip(*stream.steps(), strict=True)
        keys = ("obs", "act", "rew", "terminated", "truncated", "next_obs")
        period = {key: np.concatenate(chunk) for key, chunk in zip(keys, chunks, strict=True)}
        for _ in range(periods):
            for start in range(0, len(period["act"]), CHUNK):
                self.buffer.add(**{k: v[start : start + CHUNK] for k, v in period.items()})

    def sample(self, n: int) -> dict[str, np.ndarray]:
        return self.buffer.sample(n)

    def tensors(self, sample: dict[str, np.ndarray]) -> dict[str, Any]:
        return {key: torch.from_numpy(value) for key, value in sample.items()}

    def rows(self, sample: dict[str, Any]) -> Rows:
        rows = {key: np.asarray(value) for key, value in sample.items()}
        if "weights" in rows:
            rows["weight"] = rows["weights"].copy()  # the next sample writes over it
        return rows | {key: rows[key][:, 0] for key in _FIELDS}


class _Prioritized(_Vectors):
    buffer: PrioritizedReplayBuffer

    def sample(self, n: int) -> dict[str, np.ndarray]:
        return self.buffer.sample(n, beta=0.4)

    def update(self, sample: dict[str, np.ndarray], priorities: np.ndarray) -> None:
        self.buffer.update_priorities(sample["indexes"], priorities)


class _Shared(_Vectors):
    """The next observation is kept once: the buffer has to be told of every end."""

    def add(self, item: dict[str, Any]) -> None:
        self.buffer.add(**item)
        if item["terminated"] or item["truncated"]:
            self.buffer.on_episode_end()

    def fill(self, stream: Stream, periods: int) -> None:
        Store.fill(self, stream, periods)


class _Frames(_Shared):
    def prepare(self, step: Step) -> dict[str, Any]:
        fields = step.single()
        for key in ("obs", "next_obs"):
            fields[key] = np.ascontiguousarray(fields[key].transpose(1, 2, 0))
        return fields

    def rows(self, sample: dict[str, Any]) -> Rows:
        rows = super().rows(sample)
        return rows | {key: rows[key].transpose(0, 3, 1, 2) for key in ("obs", "next_obs")}


class _Cpprb(System):
    name = "cpprb"
    packages = ("cpprb",)
    usage: ClassVar = {
        "add": "next observations are stored beside, which is no slower than next_of and takes any "
        "number of environments",
        "sample": "the same, two or three times as fast as next_of; tensors by torch.from_numpy",
        "frames": "next_of and stack_compress; stacks have their frames last, as a strided view",
        "memory-vectors": "next_of, which halves the observations",
    }

    def vectors(self, size: int, n_envs: int, use: str) -> Store:
        if use == "memory" and n_envs == 1:
            return _Shared(ReplayBuffer(size, {"obs": _VECTOR, **_FIELDS}, next_of="obs"))
        return _Vectors(ReplayBuffer(size, _PLAIN))

    def prioritized(self, size: int) -> Store:
        return _Prioritized(PrioritizedReplayBuffer(size, _PLAIN, alpha=0.6))

    def frames(self, size: int, use: str) -> Store:
        if use == "lossy":
            raise MissingError("next observations are always kept")
        frames = {"shape": (84, 84, 4), "dtype": np.uint8}
        fields = {"obs": frames, **_FIELDS}
        return _Frames(ReplayBuffer(size, fields, next_of="obs", stack_compress="obs"))


SYSTEM = _Cpprb()

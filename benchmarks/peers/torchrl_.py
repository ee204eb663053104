"""TorchRL: steps are given as a `TensorDict`; samples are a `TensorDict`."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from peers import torchrl_binary
from peers.base import CHUNK, Batches, MissingError, Store, System

os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")
torchrl_binary.ensure()  # before torchrl looks for it

from tensordict import TensorDict  # noqa: E402
from torchrl.data import (  # noqa: E402
    LazyTensorStorage,
    PrioritizedSampler,
    ReplayBuffer,
    SliceSampler,
)
from torchrl.envs import CatFrames  # noqa: E402

if TYPE_CHECKING:
    from stream import Rows, Step, Stream

_END = ("next", "done")


class _Vectors(Store):
    def __init__(self, buffer: ReplayBuffer, n_envs: int = 1) -> None:
        self.buffer = buffer
        self.n_envs = n_envs
        self.write = buffer.add if n_envs == 1 else buffer.extend

    def prepare(self, step: Step) -> TensorDict:
        data = self._convert(step)
        return data[0].clone() if self.n_envs == 1 else data

    def _convert(self, step: Step) -> TensorDict:
        leaf = {key: torch.tensor(value) for key, value in step._asdict().items()}
        ends = {key: leaf[key][:, None] for key in ("terminated", "truncated")}
        ends["done"] = ends["terminated"] | ends["truncated"]
        after = {"observation": leaf["next_obs"], "reward": leaf["rew"][:, None], **ends}
        data = {"observation": leaf["obs"], "action": leaf["act"], "next": after}
        return TensorDict(data, batch_size=[len(step.act)])

    def add(self, item: TensorDict) -> None:
        self.write(item)

    def fill(self, stream: Stream, periods: int) -> None:
        period = torch.cat([self._convert(step) for step in stream.steps()])
        for _ in range(periods):
            for chunk in period.split(CHUNK):
                self.buffer.extend(chunk)

    def sample(self, n: int) -> TensorDict:
        return self.buffer.sample(n)

    def rows(self, sample: TensorDict) -> Rows:
        after = sample["next"]
        return {
            "obs": sample["observation"].numpy(),
            "act": sample["action"].numpy(),
            "rew": after["reward"].numpy()[..., 0],
            "terminated": after["terminated"].numpy()[..., 0],
            "truncated": after["truncated"].numpy()[..., 0],
            "next_obs": after["observation"].numpy(),
        }

    def untraced_bytes(self) -> int:
        return self.buffer.storage[:].bytes()


class _Prioritized(_Vectors):
    def sample(self, n: int) -> tuple[TensorDict, dict[str, Any]]:
        return self.buffer.sample(n, return_info=True)

    def priorities(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).float()

    def update(self, sample: tuple[TensorDict, dict[str, Any]], priorities: torch.Tensor) -> None:
        self.buffer.update_priority(sample[1]["index"], priorities)

    def rows(self, sample: tuple[TensorDict, dict[str, Any]]) -> Rows:
        return super().rows(sample[0]) | {"weight": np.asarray(sample[1]["priority_weight"])}


class _Segments(_Vectors):
    def __init__(self, buffer: ReplayBuffer, length: int) -> None:
        super().__init__(buffer)
        self.length = length

    def sample(self, n: int) -> TensorDict:
        return self.buffer.sample(n * self.length)

    def rows(self, sample: TensorDict) -> Rows:
        rows = super().rows(sample.reshape(-1, self.length).transpose(0, 1))
        # The sampler marks the end of every segment as truncated.
        del rows["truncated"]
        return rows | {"mask": np.ones(rows["act"].shape, bool)}


class _LeanFrames(_Vectors):
    """Single frames are stored, and stacked when sampled."""

    def _convert(self, step: Step) -> TensorDict:
        data = super()._convert(step)
        data["done"] = torch.zeros_like(data[_END])
        for part in (data, data["next"]):
            part["frame"] = part.pop("observation")[:, -1:].clone()
        return data

    def sample(self, n: int) -> TensorDict:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a missing name of the time axis
            return self.buffer.sample(n)


class _Batches(Batches):
    def leaf(self, array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array)

    def construct(self, leaves: dict[str, Any], rows: int) -> TensorDict:
        return TensorDict(leaves, batch_size=[rows])

    def cat(self, batches: list[TensorDict]) -> TensorDict:
        return torch.cat(batches)

    def stack(self, batches: list[TensorDict]) -> TensorDict:
        return torch.stack(batches)

    def arrays(self, batch: TensorDict) -> Rows:
        return {key: value.numpy() for key, value in batch.items()}


class _TorchRL(System):
    name = "TorchRL"
    packages = ("torchrl", "tensordict")
    usage: ClassVar = {
        "add": "ReplayBuffer (twice as fast as TensorDictReplayBuffer) with LazyTensorStorage; "
        "add for one environment, extend for several; steps are TensorDicts beforehand",
        "frames": "stacks are stored; storing frames and stacking them with CatFrames when sampled "
        "takes more than 100 times as long",
        "memory-frames": "frames are stored, and stacked by CatFrames when sampled",
        "segments": "SliceSampler(cache_values=True), as if nothing were added in between",
        "batch": "TensorDict with tensors, indexed by a tensor",
    }

    def vectors(self, size: int, n_envs: int, use: str) -> Store:  # noqa: ARG002
        return _Vectors(ReplayBuffer(storage=LazyTensorStorage(size)), n_envs)

    def prioritized(self, size: int) -> Store:
        if reason := torchrl_binary.problem():
            raise MissingError(reason)
        sampler = PrioritizedSampler(size, alpha=0.6, beta=0.4)
        return _Prioritized(ReplayBuffer(storage=LazyTensorStorage(size), sampler=sampler))

    def segments(self, size: int, length: int) -> Store:
        sampler = SliceSampler(slice_len=length, end_key=_END, cache_values=True)
        return _Segments(ReplayBuffer(storage=LazyTensorStorage(size), sampler=sampler), length)

    def frames(self, size: int, use: str) -> Store:
        if use == "lossy":
            raise MissingError("next observations are always kept")
        storage = LazyTensorStorage(size)
        if use != "memory":
            return _Vectors(ReplayBuffer(storage=storage))
        stacking = CatFrames(4, -3, ["frame"], ["observation"], reset_key="_reset")
        transform, sampler = stacking.make_rb_transform_and_sampler(
            batch_size=32, end_key=_END, cache_values=True
        )
        options = {"storage": storage, "sampler": sampler, "transform": transform}
        return _LeanFrames(ReplayBuffer(**options, batch_size=32))

    def batches(self) -> Batches:
        return _Batches()


SYSTEM = _TorchRL()

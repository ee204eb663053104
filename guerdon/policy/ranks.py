"""Learning in several processes: each computes the gradient of its rows of every batch."""

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from guerdon.data import Batch


class Ranks:
    """Processes that learn together, with the same weights and the same batches.

    The mean of their gradients is that of the whole batch, if a loss is a mean over rows.

    Args:
        rank: Number of this process.
        size: Number of processes.
        add: Replaces a tensor by its sum over the processes.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, add: Callable[[Tensor], object] = lambda _: None
    ) -> None:
        self.rank, self.size, self._add = rank, size, add
        self._share = 1.0 / size

    def learn(self, policy: Any, batch: Batch, options: Mapping[str, Any]) -> dict[str, Any]:
        """Learn from a batch in all processes; returns the metrics."""
        metrics: dict[str, Any] = policy.learn(batch, **options)
        return metrics

    def mine(self, rows: Any) -> Any:
        """Return this process' rows of a tensor, a batch, or a dictionary of tensors."""
        if self.size == 1:
            return rows
        first = rows
        while isinstance(first, dict | Batch):
            first = next(iter(first.values()))
        if len(first) < self.size:  # all rows in each process
            self._share = 1.0 / self.size
            return rows
        part = self._part(len(first))
        self._share = (part.stop - part.start) / len(first)
        return _rows(rows, part)

    def _part(self, count: int) -> slice:
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def weighted(self, value: Tensor) -> Tensor:
        """Weight the mean over the newest rows of `mine`, in place, so that `added` is the mean."""
        return value if self.size == 1 else value.mul_(self._share)

    def added(self, value: Tensor) -> Tensor:
        """Replace a value by its sum over the processes."""
        self._add(value)
        return value

    def average(self, value: Tensor) -> Tensor:
        """Replace the mean over this process' rows, such as a gradient, by that over all rows."""
        return self.added(self.weighted(value))

    def gathered(self, values: Tensor, count: int) -> Tensor:
        """Return the values of all `count` rows, from those of this process' rows."""
        if len(values) == count:
            return values
        found = values.new_zeros(count)
        found[self._part(count)] = values
        self._add(found)
        return found


def _rows(values: Any, part: slice) -> Any:
    if isinstance(values, dict):
        return {key: _rows(value, part) for key, value in values.items()}
    return values[part]


ALONE = Ranks()
LOOPBACK = "127.0.0.1"


def meeting(host: str, port: int | None = None) -> Any:
    """Return the store that processes find each other with; one of them opens its port.

    Args:
        host: Address of the process that opens it, which listens there alone.
        port: Its port; None to open one.
    """
    if host == LOOPBACK:  # else Gloo listens at the address of the host's name
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if port is not None:
        return distributed.TCPStore(host, port)  # type: ignore[attr-defined]
    server = socket.create_server((host, 0))
    return distributed.TCPStore(  # type: ignore[attr-defined]
        host, server.getsockname()[1],
        is_master=True, wait_for_workers=False, master_listen_fd=server.detach(),
    )  # fmt: skip


def join(
    rank: int, size: int, store: Any, device: torch.device, seconds: float
) -> Callable[[Tensor], object]:
    """Join other processes; returns ``add`` of `Ranks`.

    Args:
        rank: Number of this process.
        size: Number of processes.
        store: A store of `torch.distributed`, the same in all of them.
        device: Device of the policy: with CUDA they use NCCL, else Gloo.
        seconds: Seconds after which a process that does not answer has failed.
    """
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds),
    )  # fmt: skip
    return distributed.all_reduce


def leave() -> None:
    """Leave the other processes, which fails what they wait for."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def digest(policy: Any) -> str:
    """Return a checksum of the parameters and buffers of a policy."""
    found = hashlib.sha256()
    for each in policy.state_dict().values():
        found.update(each.contiguous().numpy(force=True).tobytes())
    return found.hexdigest()

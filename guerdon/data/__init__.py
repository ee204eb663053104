"""Batches, buffers, and the files they are kept in."""

from guerdon.data.batch import Batch
from guerdon.data.limits import Limits
from guerdon.data.list_buffer import ListReplayBuffer
from guerdon.data.manager import BufferManager
from guerdon.data.prioritized import PrioritizedReplayBuffer
from guerdon.data.replay_buffer import Finished, ReplayBuffer

__all__ = [
    "Batch",
    "BufferManager",
    "Finished",
    "Limits",
    "ListReplayBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
]

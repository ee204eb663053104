"""Batches, buffers, and the files they are kept in."""

from guerdon.data.batch import Batch
from guerdon.data.replay_buffer import Finished, ReplayBuffer

__all__ = ["Batch", "Finished", "ReplayBuffer"]

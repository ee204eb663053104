"""Batches, buffers, and their file formats."""

from guerdon.data.batch import Batch
from guerdon.data.demonstrations import Demonstrations, save_demonstrations
from guerdon.data.loading import load_demonstrations
from guerdon.data.minari import from_minari, to_minari
from guerdon.data.mixed import MixedReplay
from guerdon.data.preferences import Preference, load_preferences, save_label, save_preferences
from guerdon.data.prioritized import PrioritizedReplayBuffer
from guerdon.data.replay_buffer import ReplayBuffer
from guerdon.data.rollout import Rollout
from guerdon.data.storage import DiskStorage, MemoryStorage, TorchStorage
from guerdon.data.unpickle import UnsafePickleError, safe_unpickle

__all__ = [
    "Batch",
    "Demonstrations",
    "DiskStorage",
    "MemoryStorage",
    "MixedReplay",
    "Preference",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "Rollout",
    "TorchStorage",
    "UnsafePickleError",
    "from_minari",
    "load_demonstrations",
    "load_preferences",
    "safe_unpickle",
    "save_demonstrations",
    "save_label",
    "save_preferences",
    "to_minari",
]

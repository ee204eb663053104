"""Transitions for tests of rewards, and a user's functions."""

from typing import Any

import numpy as np
import torch

from guerdon.data import Batch, ReplayBuffer

CPU = torch.device("cpu")


def transitions(n_rows: int = 4) -> Batch:
    """Rows with the rewards 1, 2, 3, ..."""
    numbers = np.arange(n_rows, dtype=np.float32)
    return Batch(
        obs=np.stack([numbers, -numbers], 1),
        act=np.arange(n_rows) % 2,
        rew=numbers + 1,
        terminated=np.arange(n_rows) == n_rows - 1,
        truncated=np.zeros(n_rows, bool),
        obs_next=np.stack([numbers + 1, -numbers - 1], 1),
    )


def filled_buffer(n_rows: int = 4) -> ReplayBuffer:
    """A buffer that holds them."""
    buffer = ReplayBuffer(n_rows, seed=0)
    buffer.extend(transitions(n_rows))
    return buffer


def first_number(data: Any) -> Any:
    """A user's reward function."""
    return data.obs[..., 0]


NOT_A_FUNCTION = 3

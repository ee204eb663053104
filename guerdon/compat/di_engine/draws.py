"""Seeds code that draws from the global generators of torch, NumPy and Python."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class Draws:
    """A private state of the global generators, from a seed; it is replaced, never changed."""

    def __init__(self, seed: int = 0) -> None:
        self.state: dict[str, Any] = {
            "torch": torch.Generator().manual_seed(seed).get_state(),
            "numpy": np.random.MT19937(seed).state,
            "python": random.Random(seed).getstate(),
        }

    @contextmanager
    def own(self, advance: bool = True) -> Iterator[None]:
        """Set the global generators to this state, which may `advance`, and restore them."""
        others = _exchange(self.state)
        try:
            yield
        finally:
            drawn = _exchange(others)
        if advance:
            self.state = drawn


def _exchange(state: dict[str, Any]) -> dict[str, Any]:
    """Set the global generators to a state, and return the one before."""
    before = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - what users draw from
        "python": random.getstate(),
    }
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])
    return before

"""Seeds code that draws from the global generators of torch, NumPy and Python."""

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class Draws:
    """A private state of the global generators.

    Numbers drawn with it depend only on the seed, and do not affect other code.

    Args:
        seed: Random seed.
    """

    def __init__(self, seed: int = 0) -> None:
        self._state: dict[str, Any] = {
            "torch": torch.Generator().manual_seed(seed).get_state(),
            "numpy": np.random.MT19937(seed).state,
            "python": random.Random(seed).getstate(),
        }

    @contextmanager
    def own(self, advance: bool = True) -> Iterator[None]:
        """Set the global generators to this state, and restore them afterwards.

        Args:
            advance: Whether the next use continues the sequence instead of repeating it.
        """
        others = _read()
        _write(self._state)
        try:
            yield
            if advance:
                self._state = _read()
        finally:
            _write(others)

    def training_state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        return copy.deepcopy(self._state)

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`."""
        self._state = copy.deepcopy(dict(state))


def _read() -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - what users draw from
        "python": random.getstate(),
    }


def _write(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])

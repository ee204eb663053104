"""Randomness for code that draws from the generators that all of a process share."""

from __future__ import annotations

import copy
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Draws:
    """Lets code draw from the shared generators of torch, NumPy and Python as if they were its own.

    What is drawn depends on the seed alone, and nobody else's draws depend on it.

    Args:
        seed: Where the generators begin.
    """

    def __init__(self, seed: int = 0) -> None:
        self._state: dict[str, Any] = {
            "torch": torch.Generator().manual_seed(seed).get_state(),
            "numpy": np.random.MT19937(seed).state,
            "python": random.Random(seed).getstate(),
        }

    @contextmanager
    def own(self, goes_on: bool = True) -> Iterator[None]:
        """While this lasts, the shared generators are its own.

        Args:
            goes_on: Whether the next to draw gets other numbers.
        """
        others = _read()
        _write(self._state)
        try:
            yield
            if goes_on:
                self._state = _read()
        finally:
            _write(others)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        return copy.deepcopy(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
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

"""Seeds code that draws from the global generators of torch, NumPy and Python."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from guerdon.nn import seeded


class Draws:
    """Seeds for code that draws from the global generators: others at every use.

    Attributes:
        uses: Number of uses so far.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed, self.uses = seed, 0

    @contextmanager
    def own(self, advance: bool = True) -> Iterator[None]:
        """Seed the global generators, and restore them; without `advance`, as the next use will."""
        seeds = np.random.SeedSequence((self._seed, self.uses)).generate_state(3).tolist()
        self.uses += advance
        others = np.random.get_state(), random.getstate()  # noqa: NPY002 - what users draw from
        try:
            with seeded(seeds[0]):
                np.random.set_state({**np.random.MT19937(seeds[1]).state})  # noqa: NPY002
                random.setstate(random.Random(seeds[2]).getstate())
                yield
        finally:
            np.random.set_state(others[0])  # noqa: NPY002
            random.setstate(others[1])

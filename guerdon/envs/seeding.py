"""Seeds for environments, all from one."""

import numpy as np


def spawn_seeds(seed: int, n: int) -> list[int]:
    """Draws `n` seeds that have nothing to do with each other, each below 2**31."""
    return [first_seed(child) for child in np.random.SeedSequence(seed).spawn(n)]


def first_seed(sequence: np.random.SeedSequence) -> int:
    """The seed that a sequence stands for; ale-py and EnvPool take 31 bits."""
    return int(sequence.generate_state(1)[0] >> 1)

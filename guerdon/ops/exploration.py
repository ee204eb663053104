"""Epsilon-greedy exploration: the schedule and the draw."""

import math
from collections.abc import Callable
from typing import Literal

import torch


def epsilon_greedy(
    start: float,
    end: float,
    decay: float,
    type: Literal["linear", "exp"] = "exp",  # noqa: A002 - the documented name
) -> Callable[[float], float]:
    """Return the probability of a random action as a function of the step.

    Args:
        start: Value at step 0; usually 1.
        end: Final value; usually 0.01 to 0.1.
        decay: Steps until 'linear' reaches `end`, or in which 'exp' shrinks the difference by e.
        type: Shape of the schedule.
    """
    if type not in ("linear", "exp"):
        raise ValueError(f"epsilon_greedy supports the types 'linear' and 'exp', not {type!r}.")
    if decay <= 0:
        raise ValueError(f"epsilon_greedy needs a positive decay, not {decay}.")
    if type == "linear":
        return lambda step: start + (end - start) * min(max(step / decay, 0.0), 1.0)
    return lambda step: end + (start - end) * math.exp(-step / decay)


def epsilon_greedy_sample(
    q_value: torch.Tensor, epsilon: float, generator: torch.Generator | None
) -> torch.Tensor:
    """Draw the greedy action, or with probability epsilon a uniform one; int64 [...].

    Args:
        q_value: [..., A].
        epsilon: In [0, 1].
        generator: On the device of `q_value`; None for torch's global one.
    """
    best = q_value.argmax(-1)
    other = torch.empty_like(best).random_(q_value.shape[-1], generator=generator)
    explore = torch.empty_like(best, dtype=torch.bool).bernoulli_(epsilon, generator=generator)
    return torch.where(explore, other, best)

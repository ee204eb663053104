"""Exploration: schedules as functions of the step, random actions, and noise on actions."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from guerdon.ops.checks import Array

Generator = np.random.Generator | torch.Generator


def linear_schedule(start: float, end: float, steps: float) -> Callable[[float], float]:
    """A function of the step that goes from start to end in a straight line, and stays there."""
    if steps <= 0:
        raise ValueError(f"A schedule needs a positive number of steps, not {steps}.")

    def schedule(step: float) -> float:
        share = min(max(step / steps, 0.0), 1.0)
        return start + (end - start) * share

    return schedule


def exponential_schedule(start: float, end: float, decay: float) -> Callable[[float], float]:
    """A function of the step whose distance from the end shrinks by e every `decay` steps."""
    if decay <= 0:
        raise ValueError(f"A schedule needs a positive decay, not {decay}.")
    return lambda step: end + (start - end) * math.exp(-step / decay)


def epsilon_greedy(
    start: float,
    end: float,
    decay: float,
    type: Literal["linear", "exp"] = "exp",  # noqa: A002 - the documented name
) -> Callable[[float], float]:
    """The share of random actions as a function of the step.

    Args:
        start: At step 0; usually 1.
        end: At last; usually 0.01 to 0.1.
        decay: Steps: 'linear' arrives after them, 'exp' has 37% of the way left.
        type: The shape of the curve.
    """
    if type == "linear":
        return linear_schedule(start, end, decay)
    if type == "exp":
        return exponential_schedule(start, end, decay)
    raise ValueError(f"epsilon_greedy knows the types 'linear' and 'exp', not {type!r}.")


def epsilon_greedy_sample(
    q_value: torch.Tensor, epsilon: float, generator: torch.Generator
) -> torch.Tensor:
    """The best actions, each replaced by a random one with probability epsilon; int64 [...].

    Args:
        q_value: [..., A].
        epsilon: In [0, 1].
        generator: On the device of `q_value`.
    """
    best = q_value.argmax(-1)
    other = torch.empty_like(best).random_(q_value.shape[-1], generator=generator)
    explore = torch.empty_like(best, dtype=torch.bool).bernoulli_(epsilon, generator=generator)
    return torch.where(explore, other, best)


class GaussianNoise:
    """Independent normal noise, as TD3 has it: https://arxiv.org/abs/1802.09477.

    Args:
        scale: Standard deviation, in the units of the action; usually 0.1 of its range's half.
        generator: Numpy's for arrays, torch's for tensors.
        clip: Bound on the noise; None for none.
    """

    def __init__(self, scale: float, generator: Generator, clip: float | None = None) -> None:
        self.scale = scale
        self.generator = generator
        self.clip = clip

    def __call__(self, act: Array) -> Array:
        """Noise of the shape, kind and dtype of the actions."""
        noise = _standard_normal(act, self.generator) * self.scale
        return noise if self.clip is None else noise.clip(-self.clip, self.clip)

    def reset(self, rows: np.ndarray | torch.Tensor | None = None) -> None:
        """Nothing to do: the noise has no memory."""


class OrnsteinUhlenbeckNoise:
    """Noise that wanders back to 0, as DDPG has it: https://arxiv.org/abs/1509.02971.

    `x += -theta * x * dt + scale * sqrt(dt) * N(0, 1)`; one path for each row of the actions.

    Args:
        scale: Of the random push; usually 0.2 of the action range's half.
        generator: Numpy's for arrays, torch's for tensors.
        theta: The pull to 0, usually 0.15.
        dt: Time of one step, usually 0.01 to 1.
    """

    def __init__(
        self, scale: float, generator: Generator, theta: float = 0.15, dt: float = 1.0
    ) -> None:
        self.scale = scale
        self.generator = generator
        self.theta = theta
        self.dt = dt
        self.state: Any = None

    def __call__(self, act: Array) -> Array:
        """The next noise, of the shape, kind and dtype of the actions."""
        push = _standard_normal(act, self.generator) * (self.scale * math.sqrt(self.dt))
        if self.state is not None:
            if self.state.shape != act.shape:
                raise ValueError(
                    f"The noise follows actions of shape {tuple(self.state.shape)}, and got "
                    f"{tuple(act.shape)}; call reset() before the shape changes."
                )
            push = push + self.state * (1 - self.theta * self.dt)
        self.state = push
        return push

    def reset(self, rows: np.ndarray | torch.Tensor | None = None) -> None:
        """Starts again at 0: all rows, or some (a mask or indices), when their episodes end."""
        if rows is None or self.state is None:
            self.state = None
            return
        self.state = self.state + 0  # a copy: what was handed out last must not change
        self.state[rows] = 0


def _standard_normal(like: Array, generator: Generator) -> Array:
    if isinstance(like, np.ndarray) and isinstance(generator, np.random.Generator):
        return generator.standard_normal(like.shape).astype(like.dtype)
    if isinstance(like, torch.Tensor) and isinstance(generator, torch.Generator):
        return torch.empty_like(like).normal_(generator=generator)
    raise TypeError(
        f"Noise for a {type(like).__name__} cannot come from a {type(generator).__name__}; "
        "arrays need numpy's Generator, tensors torch's."
    )

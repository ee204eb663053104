"""Settings of the measurements, and the interface of a learner.

A learner trains with its own loop and calls ``watch(steps, act)`` before the first iteration and
after each one; ``steps`` are environment steps so far, ``act`` is the greedy policy. It stops when
``watch`` says so. The clock is in ``watch``, so all learners are timed by the same lines, and what
happens inside (an evaluation) is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

Act = Callable[[np.ndarray], np.ndarray]
"""Observations of several environments in, greedy actions out."""

Watch = Callable[[int, Act], bool]
"""Called with the steps so far and the greedy policy; true if training has to stop."""


class StopTraining(Exception):  # noqa: N818  it is no error
    """Raised to leave the loop of a library that cannot be stopped otherwise."""


class MissingError(Exception):
    """The library has no such algorithm, or has published no setting for it."""


@dataclass(frozen=True)
class PPOSetting:
    """PPO on CartPole-v1, the same for all; actor and critic are separate networks (tanh)."""

    n_envs: int
    n_steps: int = 128
    epochs: int = 4
    minibatches: int = 4
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    max_grad_norm: float = 0.5

    @property
    def rows(self) -> int:
        """Transitions per rollout."""
        return self.n_envs * self.n_steps

    @property
    def batch_size(self) -> int:
        """Rows of a minibatch."""
        return self.rows // self.minibatches


@dataclass(frozen=True)
class DQNSetting:
    """DQN on CartPole-v1, the same for all: one update whenever all environments have stepped."""

    n_envs: int = 10
    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    gamma: float = 0.99
    batch_size: int = 64
    buffer_size: int = 20_000
    warmup_steps: int = 1_000
    epsilon: float = 0.1
    target_every: int = 50
    """Updates between two copies to the target network."""
    max_grad_norm: float = 10.0


@dataclass(frozen=True)
class SACSetting:
    """SAC on Pendulum-v1, the same for all: an update a step, tuned temperature."""

    n_envs: int = 1
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    batch_size: int = 256
    buffer_size: int = 100_000
    warmup_steps: int = 300


class Learner:
    """A library, and how it is used here: as its own documents say, for speed; logging is off."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    """Names on the package index, whose versions are reported."""

    usage: ClassVar[dict[str, str]] = {}
    """For readers: how it is used, by algorithm."""

    def ppo(self, setting: PPOSetting, seed: int, watch: Watch) -> None:  # noqa: ARG002
        """Trains PPO."""
        raise MissingError("no PPO")

    def dqn(self, setting: DQNSetting, seed: int, watch: Watch) -> None:  # noqa: ARG002
        """Trains DQN."""
        raise MissingError("no DQN")

    def sac(self, setting: SACSetting, seed: int, watch: Watch) -> None:  # noqa: ARG002
        """Trains SAC."""
        raise MissingError("no SAC")

    def tuned_ppo(self, seed: int, watch: Watch) -> None:  # noqa: ARG002
        """Trains PPO on CartPole-v1 with the settings the library publishes for it."""
        raise MissingError("no PPO setting published for CartPole")

    def tuned_dqn(self, seed: int, watch: Watch) -> None:  # noqa: ARG002
        """Trains DQN on CartPole-v1 with the settings the library publishes for it."""
        raise MissingError("no DQN setting published for CartPole")

    def gail(self, seed: int, watch: Watch) -> None:  # noqa: ARG002
        """Trains PPO on fixed-horizon CartPole on a reward of GAIL, with the library's settings."""
        raise MissingError("no GAIL")

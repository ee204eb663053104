"""Rows of the table, their learners, and guerdon's goals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learners.base import DQNSetting, PPOSetting, SACSetting
from learners.clocks import SolveClock, SpeedClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from learners.base import Learner, Watch

SPEED, TIME = "steps/s", "seconds"
_LIBRARIES = ("guerdon", "sb3", "tianshou", "skrl", "diengine", "cleanrl")
_TUNED = ("guerdon", "sb3", "tianshou", "skrl", "cleanrl")
"""Those that publish settings for CartPole-v1."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    key: str
    title: str
    unit: str
    learners: tuple[str, ...]
    train: Callable[[Learner, int, Watch], None]
    warmup_steps: int
    """Not timed."""

    @property
    def group(self) -> str:
        """What ``--rows`` asks for."""
        return self.key.partition("-")[0]


def _ppo(n_envs: int, learners: tuple[str, ...]) -> Row:
    setting = PPOSetting(n_envs)

    def train(learner: Learner, seed: int, watch: Watch) -> None:
        learner.ppo(setting, seed, watch)

    title = f"PPO, CartPole, {n_envs} environments"
    return Row(f"ppo-{n_envs}", title, SPEED, learners, train, setting.rows)


ROWS = (
    _ppo(8, (*_LIBRARIES, "rllib", "bare")),
    _ppo(64, (*_LIBRARIES, "rllib", "bare")),
    _ppo(256, ("guerdon", "bare")),
    Row(
        "dqn",
        "DQN, CartPole, 10 environments",
        SPEED,
        _LIBRARIES,
        lambda learner, seed, watch: learner.dqn(DQNSetting(), seed, watch),
        2_000,
    ),
    Row(
        "sac",
        "SAC, Pendulum, 1 environment",
        SPEED,
        ("guerdon", "sb3", "tianshou"),
        lambda learner, seed, watch: learner.sac(SACSetting(), seed, watch),
        400,
    ),
    Row(
        "solve-ppo",
        "CartPole solved with PPO",
        TIME,
        _TUNED,
        lambda learner, seed, watch: learner.tuned_ppo(seed, watch),
        3_000,
    ),
    Row(
        "solve-dqn",
        "CartPole solved with DQN",
        TIME,
        _TUNED,
        lambda learner, seed, watch: learner.tuned_dqn(seed, watch),
        3_000,
    ),
    Row(
        "gail",
        "Fixed-horizon CartPole imitated with GAIL",
        TIME,
        ("guerdon", "imitation"),
        lambda learner, seed, watch: learner.gail(seed, watch),
        3_000,
    ),
)
GROUPS = tuple(dict.fromkeys(row.group for row in ROWS))

GOALS = (
    ("ppo-8", "SB3", 2.0),
    ("ppo-64", "SB3", 3.0),
    ("ppo-64", "skrl", 1.3),
    ("ppo-64", "bare loop", 0.85),
    ("ppo-256", "bare loop", 0.85),
    ("dqn", "SB3", 2.5),
    ("sac", "SB3", 1.25),
    ("solve-ppo", "the best peer", 1.0),
    ("solve-dqn", "the best peer", 1.0),
    ("gail", "imitation", 4.0),
)
"""Row, learner to compare with, and minimum ratio of guerdon's speed."""


def measure(
    row: Row, learner: Learner, seed: int, seconds: float, limit: tuple[int, float]
) -> dict[str, Any]:
    """One measurement, in this process.

    Args:
        row: What to measure.
        learner: The learner.
        seed: Random seed.
        seconds: How long to train after the warm-up, where speed is measured.
        limit: Steps and seconds after which a solver is stopped.
    """
    if row.unit == SPEED:
        clock = SpeedClock(row.warmup_steps, seconds)
        row.train(learner, seed, clock)
        return clock.result()
    row.train(learner, seed + 1000, lambda steps, _: steps >= row.warmup_steps)
    solve = SolveClock(1_000, *limit)
    row.train(learner, seed, solve)
    return solve.result()

"""`collect_frames`: camera frames of the policy of a run, for `guerdon reward fit`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from guerdon.collect import Collector
from guerdon.collect.cameras import check_cameras
from guerdon.collect.reward_data import RewardDataCollector
from guerdon.training.evaluation import in_testing_state
from guerdon.training.noise import Noisy
from guerdon.training.parts import make_env
from guerdon.training.replay import Checkpoint, load_policy
from guerdon.training.run import interrupts
from guerdon.training.threads import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from guerdon.config.schema import DataCollectionConfig

    Progress = Callable[[int, int], None]

PATIENCE = 200
"""Episodes of each policy without a new trajectory, after which collection stops."""


@dataclass(frozen=True)
class CollectedFrames:
    """Result of `collect_frames`."""

    positive: int
    """Positive trajectories in their folder, including those of earlier calls."""
    negative: int
    """Negative ones."""
    new: int
    """Trajectories written by this call."""
    episodes: int
    """Episodes played."""
    stop_reason: Literal["full", "episodes", "nothing_new", "interrupted"]
    """Both limits are reached, all episodes were played, `PATIENCE` is over, or Ctrl-C."""


def collect_frames(
    run_dir: str | Path,
    config: DataCollectionConfig,
    n_episodes: int | None = None,
    *,
    checkpoint: Checkpoint | Sequence[Checkpoint] = "best",
    noise: Sequence[float] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> CollectedFrames:
    """Play with the policy of a run in its evaluation environments, and keep the frames.

    Checkpoints and levels of noise take turns. Ctrl-C stops after the turn.

    Args:
        run_dir: The run directory.
        config: Cameras, folders and limits.
        n_episodes: Maximum number of episodes of each checkpoint and level of noise; None plays
            until both limits are reached.
        checkpoint: ``best``, ``latest`` or a step; or several.
        noise: Probability of a random action, 0 to 1; several levels take turns.
        seed: Random seed; together with the numbers of trajectories in the folders, so that
            resuming plays other episodes.
        progress: Called with the numbers of positive and negative trajectories after each turn.
    """
    several = [checkpoint] if isinstance(checkpoint, str | int) else checkpoint
    loaded = [load_policy(run_dir, each) for each in several]
    _, run = loaded[0]
    players = [(policy, level) for policy, _ in loaded for level in noise or (0.0,)]
    patience = PATIENCE * len(players) if n_episodes is None else math.inf
    played = fruitless = 0
    section = run.env.for_evaluation(min(run.eval.n_envs, n_episodes or run.eval.n_envs))
    with make_env(section) as env, threads(run.run.threads):
        check_cameras(env.observation_space, config, section.id)
        with RewardDataCollector(config, env.n_envs) as data, interrupts() as interrupted:
            before = sum(data.counts)
            seeds = np.random.default_rng([seed, *data.counts])
            for turn in count():
                start = turn // len(players) * env.n_envs
                left = env.n_envs if n_episodes is None else min(env.n_envs, n_episodes - start)
                if data.full or interrupted() or fruitless >= patience or left <= 0:
                    break
                policy, level = players[turn % len(players)]
                known = sum(data.counts)
                turn_seed = int(seeds.integers(2**31))
                with in_testing_state(policy, turn_seed, run.eval.deterministic):
                    acting: Any = Noisy(policy, env, level, turn_seed) if level else policy
                    collector = Collector(acting, env, seed=turn_seed, watch=data.watch)
                    collector.collect(n_episode=left)
                data.flush()
                played += left
                fruitless = 0 if sum(data.counts) > known else fruitless + left
                if progress is not None:
                    progress(*data.counts)
            reasons = {
                "full": data.full,
                "interrupted": interrupted(),
                "nothing_new": fruitless >= patience,
                "episodes": True,
            }
            positive, negative = data.counts
    reason: Any = next(name for name, holds in reasons.items() if holds)
    return CollectedFrames(positive, negative, positive + negative - before, played, reason)

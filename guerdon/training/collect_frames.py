"""`collect_frames`: what cameras see of the policy of a run, for `guerdon reward fit`."""

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
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from guerdon.config.schema import DataCollectionConfig
    from guerdon.policy import Policy

    Progress = Callable[[int, int], None]

StopReason = Literal["full", "episodes", "nothing_new", "interrupted"]
PATIENCE = 200
"""Episodes of each policy that bring nothing new, after which nothing more is expected."""


@dataclass(frozen=True)
class CollectedFrames:
    """What `collect_frames` came to."""

    positive: int
    """Positive trajectories in their folder, those of earlier calls among them."""
    negative: int
    """Negative ones."""
    new: int
    """Trajectories of both kinds that were written."""
    episodes: int
    """Episodes that were played."""
    stop_reason: StopReason
    """Both folders have as many as are wanted, all episodes were played, or `PATIENCE` is lost."""


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
    """Plays with the policy of a run, in its evaluation environments, and keeps the frames.

    Checkpoints and levels of noise take turns. Ctrl-C ends it after the turn.

    Args:
        run_dir: The run's folder.
        config: Which cameras, where to, and how many trajectories are wanted.
        n_episodes: How many, of each checkpoint and each level of noise, unless there are enough
            before; None is until there are.
        checkpoint: The best one, the latest, or that of a step; or several.
        noise: How likely each action is replaced by a random one, 0 to 1; several take turns.
        seed: Of the environments, and of everything that is drawn; other episodes are played
            where the folders hold other numbers of trajectories.
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
            before = data.counts
            # With what is there, so that going on does not play the same episodes again.
            seeds = np.random.default_rng([seed, *before])
            for policy, level, number in _turns(players, env.n_envs, n_episodes):
                if data.full or interrupted() or fruitless >= patience:
                    break
                known = sum(data.counts)
                turn_seed = int(seeds.integers(2**31))
                with in_testing_state(policy, turn_seed, run.eval.deterministic):
                    acting: Any = Noisy(policy, env, level, turn_seed) if level else policy
                    collector = Collector(acting, env, seed=turn_seed, watch=data.watch)
                    collector.collect(n_episode=number)
                data.flush()
                positive, negative = data.counts
                played += number
                fruitless = fruitless + number if positive + negative == known else 0
                if progress is not None:
                    progress(positive, negative)
            reason = _reason(data.full, interrupted(), fruitless >= patience)
            positive, negative = data.counts
    return CollectedFrames(positive, negative, positive + negative - sum(before), played, reason)


def _turns(
    players: Sequence[tuple[Policy, float]], n_envs: int, n_episodes: int | None
) -> Iterator[tuple[Policy, float, int]]:
    """Who plays how many episodes, one after the other."""
    for start in count(0, n_envs):
        number = n_envs if n_episodes is None else min(n_envs, n_episodes - start)
        if number <= 0:
            return
        for policy, level in players:
            yield policy, level, number


def _reason(full: bool, interrupted: bool, nothing_new: bool) -> StopReason:
    if full:
        return "full"
    if interrupted:
        return "interrupted"
    return "nothing_new" if nothing_new else "episodes"

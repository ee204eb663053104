"""How good a policy is, in the environment's own reward; and what a learned one says of it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.collect import Collector
from guerdon.data.batch import Batch
from guerdon.reward import EpisodeRewardModel
from guerdon.training.audit import Audit, told_success

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from guerdon.collect import Collected
    from guerdon.envs import Step, VectorEnv
    from guerdon.policy import Policy
    from guerdon.reward import Reward

_CHUNK = 1_024  # transitions that are scored at once: few calls, little memory
_SHOWN = {"obs", "act", "rew", "terminated", "truncated", "obs_next", "annotations"}


def evaluate(
    policy: Policy,
    env: VectorEnv,
    episodes: int,
    *,
    seed: int = 0,
    deterministic: bool = True,
    reward: Reward | None = None,
) -> Collected:
    """Plays whole episodes; the same policy and seed give the same ones, and nothing else changes.

    Args:
        policy: Who plays.
        env: Where.
        episodes: How many.
        seed: Of the environments, and of the policy's draws.
        deterministic: Whether it plays as in testing, or explores as in collecting.
        reward: A learned one, which is asked for its returns of the episodes, too; it may be one
            that cannot say, see `can_follow`.
    """
    watch = None
    if reward is not None and can_follow(reward):
        watch = LearnedReturns(reward, env.n_envs)
    with in_testing_state(policy, seed, deterministic):
        collected = Collector(policy, env, seed=seed, watch=watch).collect(n_episode=episodes)
    if watch is not None:
        collected.learned = watch.returns()
        collected.audit = watch.audit
    return collected


@contextmanager
def in_testing_state(policy: Policy, seed: int, deterministic: bool = True) -> Iterator[None]:
    """Puts a policy into the testing state; its generator starts anew, and goes on afterwards."""
    training, drawn = policy.training, policy.generator.get_state()
    policy.generator.manual_seed(seed)
    policy.train(not deterministic)
    try:
        yield
    finally:
        policy.train(training)
        policy.generator.set_state(drawn)


def evaluation_metrics(result: Collected) -> dict[str, float]:
    """The metrics of an evaluation, under the names everybody knows."""
    metrics = {
        "eval/mean_reward": float(np.mean(result.returns)),
        "eval/std_reward": float(np.std(result.returns)),
        "eval/mean_ep_length": float(np.mean(result.lengths)),
    }
    if result.success_rate is not None:
        metrics["eval/success_rate"] = result.success_rate
    if result.learned:
        metrics["reward/eval_return"] = float(np.mean(result.learned))
        correlation = rank_correlation(result.learned, result.returns)
        if correlation is not None:
            metrics["reward/rank_correlation"] = correlation
    if isinstance(result.audit, Audit):
        metrics |= result.audit.metrics()
    return metrics


def can_follow(reward: Reward) -> bool:
    """Whether a reward other than the environment's can score episodes as they are played.

    What an environment tells beside a transition is not kept.
    """
    return not reward.is_env and _SHOWN.issuperset(reward.fields)


class LearnedReturns:
    """Follows episodes step by step, for a `Collector` to call.

    Args:
        reward: What transitions are worth.
        n_envs: Environments that are played in.

    Attributes:
        audit: What a model of success said beside what is true, where there is one and the
            environment tells.
    """

    def __init__(self, reward: Reward, n_envs: int) -> None:
        self._reward = reward
        self._running = np.zeros(n_envs)
        self._everyone = np.arange(n_envs)
        self._returns: list[float] = []
        self._steps: list[tuple[Step, np.ndarray, Batch]] = []
        # Models that depend on earlier transitions are shown whole episodes, all others many rows.
        self._whole = reward.history > 0 or any(
            isinstance(model, EpisodeRewardModel) for model in reward.models
        )
        self._open: list[list[Batch]] = [[] for _ in range(n_envs)]
        self._judge: Any = None if reward.success is None else reward.success.judge
        self._kept = {"rew", "terminated", "truncated", *reward.fields, *reward.collects}
        self.audit = Audit() if self._judge is not None else None

    def __call__(self, rows: dict[str, Any], step: Step, dummy: np.ndarray | None) -> None:
        """Takes a step; see `Collector`."""
        ids = self._everyone if step.env_ids is None else step.env_ids
        real = np.ones(len(ids), bool) if dummy is None else ~dummy
        told = {
            "obs": rows["obs"],
            "act": rows["act"],
            "rew": step.rew,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "obs_next": step.obs_next,
        }
        shown = Batch({name: part for name, part in told.items() if name in self._kept})
        if self._judge is not None:
            shown.success = told_success(step.info, len(ids))
        if self._whole:
            self._follow(step, ids[real], shown[real])
            return
        self._steps.append((step, ids[real], shown[real]))
        if len(self._steps) * len(self._everyone) >= _CHUNK:
            self._score()

    def returns(self) -> list[float]:
        """The returns of all episodes that ended, in the order in which they did."""
        self._score()
        return self._returns

    def _follow(self, step: Step, ids: np.ndarray, rows: Batch) -> None:
        for env in () if step.broken is None else step.broken:
            self._open[env] = []
        for number, env in enumerate(ids):
            self._open[env].append(rows[number : number + 1])
            if rows.terminated[number] or rows.truncated[number]:
                episode = Batch.cat(self._open[env])
                self._open[env] = []
                if self.audit is not None:
                    judged = self._judge(episode)
                    self.audit.add(judged, episode.success, bool(episode.terminated[-1]))
                    episode.probability = judged.probability  # so that it is asked once
                scored = self._reward.score(episode)
                self._returns.append(float(np.sum(scored, dtype=np.float64)))

    def _score(self) -> None:
        steps, self._steps = self._steps, []
        if not any(len(ids) for _, ids, _ in steps):
            return
        rows = Batch.cat([rows for _, _, rows in steps])
        scored = np.asarray(self._reward.score(rows), np.float64)
        start = 0
        for step, ids, own in steps:
            if step.broken is not None:
                self._running[step.broken] = 0.0
            self._running[ids] += scored[start : start + len(ids)]
            start += len(ids)
            ended = ids[own.terminated | own.truncated]
            self._returns.extend(self._running[ended].tolist())
            self._running[ended] = 0.0


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's: whether two lists put things into the same order, 1 to -1.

    Returns:
        None where one of them makes no difference at all.
    """
    ranks = [_ranks(np.asarray(values)) for values in (one, other)]
    if any(np.ptp(each) == 0 for each in ranks):
        return None
    return float(np.corrcoef(np.stack(ranks))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """The place of each value in order; equal ones share theirs."""
    _, place, number = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(number)
    ranks: np.ndarray = (last - (number - 1) / 2)[place]
    return ranks

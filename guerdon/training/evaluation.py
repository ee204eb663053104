"""Evaluation of a policy: true and learned returns, and the selection of the best policy."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.collect import Collected, Collector
from guerdon.data.batch import Batch
from guerdon.data.rollout import Rollout
from guerdon.training.audit import Audit, told_success

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from guerdon.envs import Step, VectorEnv
    from guerdon.policy import Policy
    from guerdon.reward import Reward

_CHUNK = 1_024  # transitions that are scored at once: few calls, little memory


def evaluate(
    policy: Policy,
    env: VectorEnv,
    episodes: int,
    *,
    seed: int = 0,
    deterministic: bool = True,
    reward: Reward | None = None,
) -> Collected:
    """Play whole episodes; the same policy and seed give the same ones, and nothing else changes.

    Args:
        policy: Policy to evaluate.
        env: Environments of its own.
        episodes: Number of episodes.
        seed: Random seed of the environments and of the policy.
        deterministic: Whether to act without exploration.
        reward: Learned reward whose returns of the episodes are computed, too.
    """
    watch = None
    if reward is not None and not reward.is_env:
        watch = LearnedReturns(reward, env.n_envs)
    with in_testing_state(policy, seed, deterministic):
        collected = Collector(policy, env, seed=seed, watch=watch).collect(n_episode=episodes)
    if watch is not None:
        watch.flush()
        collected.learned, collected.audit = watch.returns, watch.audit
    return collected


class Evaluator:
    """Evaluates the policy of a run, and keeps the weights of the best one.

    The best policy has the highest mean return: the learned one if the reward is learned, else the
    environment's. The scale of a reward that is still trained moves; then the best weights and the
    current ones are both evaluated with the current reward.

    Args:
        policy: Policy to evaluate.
        env: Environments of its own.
        reward: Reward of the run.
        episodes: Episodes of an evaluation.
        seed: Random seed.
        deterministic: Whether to act without exploration.
        by_env: Whether the environment's return selects, whatever the reward is.
        save_best: Called with the number of steps and the weights of a new best policy.
        say: Called with warnings.
    """

    def __init__(
        self,
        policy: Policy,
        env: VectorEnv,
        reward: Reward,
        *,
        episodes: int,
        seed: int,
        deterministic: bool = True,
        by_env: bool = False,
        save_best: Callable[[int, dict[str, Any]], None] = lambda *_: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._policy, self._env, self._reward = policy, env, reward
        self._episodes, self._seed, self._deterministic = episodes, seed, deterministic
        self._by_reward = reward.is_learned and not by_env
        self._save_best, self._say = save_best, say
        self.newest: Collected | None = None
        """The newest evaluation."""
        self.score: float | None = None
        """Mean return of the newest evaluation, in the reward that selects."""
        self.best: dict[str, Any] = {}
        """``step``, ``score``, ``return`` (the environment's) and ``weights`` of the best policy,
        and the ``reward_updates`` when it was scored."""

    def evaluate(self, steps: int) -> dict[str, Any]:
        """Evaluate the policy after a number of steps, and return the metrics."""
        self.newest = self._play(steps)
        self.score = self._score_of(self.newest)
        if self.best and self._by_reward and self.best["reward_updates"] != self._reward.updates:
            self.best |= {"score": self._rescored(steps), "reward_updates": self._reward.updates}
        best = self.best.get("score", -np.inf)
        # Of equal learned returns the newer policy counts: a constant reward selects the last one.
        if not np.isnan(self.score) and (
            self.score > best or not self.best or (self._by_reward and self.score == best)
        ):
            weights = {name: w.clone() for name, w in self._policy.state_dict().items()}
            self.best = {
                "step": steps,
                "score": self.score,
                "return": float(np.mean(self.newest.returns)),
                "reward_updates": self._reward.updates,
                "weights": weights,
            }
            self._save_best(steps, weights)
        metrics: dict[str, Any] = evaluation_metrics(self.newest)
        if self.best:
            metrics["eval/best_mean_reward"] = self.best["return"]
        return metrics

    def confirm(self, steps: int) -> None:
        """Replace the newest evaluation by one with other episodes."""
        self.newest = self._play(steps, others=True)

    def _score_of(self, played: Collected) -> float:
        if not self._by_reward:
            return float(np.mean(played.returns))
        return float(np.mean(played.learned))

    def _rescored(self, steps: int) -> float:
        """Score of the best weights with the reward as it is now."""
        current = {name: w.clone() for name, w in self._policy.state_dict().items()}
        self._policy.load_state_dict(self.best["weights"])
        try:
            return self._score_of(self._play(steps, warn=False))
        finally:
            self._policy.load_state_dict(current)

    def _play(self, steps: int, others: bool = False, warn: bool = True) -> Collected:
        # Seeded by the number of steps, not of evaluations: a resumed run plays the same episodes.
        seed = np.random.SeedSequence([self._seed, steps, others]).generate_state(1)[0]
        played = evaluate(
            self._policy, self._env, self._episodes,
            seed=int(seed), deterministic=self._deterministic, reward=self._reward,
        )  # fmt: skip
        if warn and isinstance(played.audit, Audit):
            for warning in played.audit.warnings(self._reward.cotrain):
                self._say(f"step {steps}: {warning}")
        return played

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume."""
        newest = None
        if self.newest is not None:
            names = ("returns", "lengths", "successes", "learned")
            newest = {name: getattr(self.newest, name) for name in names}
            newest["audit"] = asdict(self.newest.audit) if self.newest.audit else None
        return {"newest": newest, "score": self.score, "best": dict(self.best)}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`."""
        newest = state["newest"]
        if newest is not None:
            audit = newest["audit"] and Audit(**newest["audit"])
            self.newest = Collected(**{**newest, "audit": audit})
        self.score, self.best = state["score"], dict(state["best"])


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


class LearnedReturns:
    """Computes the learned returns of episodes, with an episode memory of its own.

    Called by a `Collector` after every step; rows are scored in rollouts of about `_CHUNK`.

    Args:
        reward: The learned reward.
        n_envs: Number of environments.
    """

    def __init__(self, reward: Reward, n_envs: int) -> None:
        self._reward = reward
        self._rollout = Rollout(max(_CHUNK // n_envs, 1), n_envs, reward.history)
        self._memory = reward.new_memory(n_envs)
        self._store_info = "info" in (*reward.fields, *reward.collects)
        self._open: list[list[Batch]] = [[] for _ in range(n_envs)]  # rows of running episodes
        self._ends: list[tuple[int, int]] = []  # environment and row of episode ends, in order
        self.returns: list[float] = []
        """Learned returns of the episodes, in the order in which they ended; see `flush`."""
        self.audit = None if reward.success is None else Audit()
        """Predicted beside true success, if the reward predicts success."""

    def __call__(self, rows: dict[str, Any], step: Step, dummy: np.ndarray | None) -> None:
        """Take a step; see `Collector`."""
        rollout = self._rollout
        if step.broken is not None:
            self.flush()
            rollout.cut(step.broken)
            for env in step.broken:
                self._open[env] = []
        ids = np.arange(rollout.n_envs) if step.env_ids is None else step.env_ids
        real = np.ones(len(ids), bool) if dummy is None else ~dummy
        fields = {
            **rows,
            "rew": step.rew,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "obs_next": step.obs_next,
            "true_success": told_success(step.info, len(ids)),
        }
        if self._store_info:
            fields["info"] = step.info
        indices = rollout.add(fields, step.env_ids, real)
        ended = real & (step.terminated | step.truncated)
        self._ends += zip(ids[ended], indices[ended] // rollout.n_envs, strict=True)
        if rollout.cursors.max() >= rollout.n_steps:
            self.flush()

    def flush(self) -> None:
        """Score all rows so far."""
        if not self._rollout.cursors.any():
            return
        batch, indices = self._rollout.rollout()
        annotated, self._memory = self._reward.annotate(batch, self._memory)
        rew = self._reward.score_rollout(annotated, indices, self._rollout)
        # Rows after a success have no reward, but count as frames.
        scored = Batch(rew=np.where(annotated.mask, rew, 0.0), terminated=batch.terminated)
        if self.audit is not None:
            columns = annotated.columns[self._reward.success_term]
            for name in ("predicted", "paid", "after_success"):
                scored[name] = columns[name]
            scored.success = batch.true_success
        start = [0] * self._rollout.n_envs
        for env, row in self._ends:
            rows = slice(start[env], row + 1)
            self._finish(env, scored[rows, env][batch.mask[rows, env]])
            start[env] = row + 1
        for env, first in enumerate(start):
            rows = slice(first, None)
            self._open[env].append(scored[rows, env][batch.mask[rows, env]])
        self._ends = []
        self._rollout.reset()

    def _finish(self, env: int, rows: Batch) -> None:
        episode = Batch.cat([*self._open[env], rows])
        self._open[env] = []
        self.returns.append(float(np.sum(episode.rew, dtype=np.float64)))
        if self.audit is not None:
            self.audit.add(
                episode.predicted, episode.paid, episode.after_success, episode.success,
                terminated=bool(episode.terminated[-1]),
            )  # fmt: skip


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

"""Evaluation of a policy: true and learned returns, and the selection of the best policy."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.collect import Collected, Collector
from guerdon.config.schema import EvalConfig
from guerdon.data.batch import Batch
from guerdon.data.leaves import check_like
from guerdon.data.rollout import Rollout
from guerdon.envs import Step, VectorEnv
from guerdon.envs.rows import reported_success
from guerdon.nn import seeded
from guerdon.policy import Policy
from guerdon.reward import Reward
from guerdon.training.alarms import Familiarity
from guerdon.training.audit import Audit
from guerdon.training.checkpoints import save_checkpoint
from guerdon.training.parts import Parts

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
    """Evaluate a policy over whole episodes, reproducibly and without side effects.

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
    if watch is not None:
        collected.learned, collected.audit = watch.returns, watch.audit
        collected.familiarity = watch.familiarity
    return collected


@contextmanager
def in_testing_state(policy: Policy, seed: int, deterministic: bool = True) -> Iterator[None]:
    """Put a policy into the testing state with seeded generators, and restore all afterwards."""
    drawn = policy.generator.get_state()
    policy.generator.manual_seed(seed)
    try:
        with policy.testing(deterministic), seeded(seed, str(policy.device)):
            yield
    finally:
        policy.generator.set_state(drawn)


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
        self._scored: list[list[Batch]] = [[] for _ in range(n_envs)]  # of running episodes
        self._lengths = np.zeros(n_envs, np.int64)  # of running episodes
        self._ended: list[tuple[int, int]] = []  # environment and length of episodes, in order
        self.returns: list[float] = []
        """Learned returns of the episodes, in the order in which they ended; see `flush`."""
        self.familiarity = {name: Familiarity() for name in reward.terms}
        """Distance to the data of each term that is fitted."""
        self.audit = None if reward.success is None else Audit()
        """Comparison of predicted and true success, if the reward predicts success."""

    def __call__(self, rows: dict[str, Any], step: Step, dummy: np.ndarray | None) -> None:
        """Take a step; see `Collector`."""
        if step.broken is not None:
            self.flush()
            self._rollout.cut(step.broken)
            self._lengths[step.broken] = 0
            for env in step.broken:
                self._scored[env] = []
        ids = np.arange(self._rollout.n_envs) if step.env_ids is None else step.env_ids
        real = np.ones(len(ids), bool) if dummy is None else ~dummy
        rows = {**rows, "true_success": reported_success(step.info, len(ids))}
        if self._store_info:
            rows["info"] = step.info
        self._rollout.add(rows, step.env_ids, real)
        self._lengths[ids] += real
        ended = ids[real & (step.terminated | step.truncated)]
        self._ended += zip(ended, self._lengths[ended], strict=True)
        self._lengths[ended] = 0
        if self._rollout.cursors.max() >= self._rollout.n_steps:
            self.flush()

    def flush(self) -> None:
        """Score all rows so far."""
        if not self._rollout.cursors.any():
            return
        batch, indices = self._rollout.rollout()
        annotated, self._memory = self._reward.annotate(batch, self._memory)
        rew = self._reward.score_rollout(annotated, indices, self._rollout)
        for name, found in self._reward.familiarity(annotated, indices, self._rollout).items():
            mask = annotated.mask
            parts = {key: part[mask] for key, part in found.items()}
            shown = Batch({key: batch[key][mask] for key in ("obs", "act", "obs_next")})
            self.familiarity[name].add(parts, shown)
        # Rows after a success have no reward, but count as frames.
        scored = Batch(rew=np.where(annotated.mask, rew, 0.0), terminated=batch.terminated)
        if self.audit is not None:
            columns = annotated.columns[self._reward.success_term]
            for name in ("predicted", "paid", "after_success"):
                scored[name] = columns[name]
            scored.success = batch.true_success
        for env, mask in enumerate(batch.mask.T):
            self._scored[env].append(scored[mask, env])
        for env, length in self._ended:
            rows = Batch.cat(self._scored[env])
            episode, self._scored[env] = rows[:length], [rows[length:]]
            self.returns.append(float(np.sum(episode.rew, dtype=np.float64)))
            if self.audit is not None:
                self.audit.add(
                    episode.predicted, episode.paid, episode.after_success, episode.success,
                    terminated=bool(episode.terminated[-1]),
                )  # fmt: skip
        self._ended = []
        self._rollout.reset()


def evaluation_metrics(result: Collected) -> dict[str, float]:
    """Return the metrics of an evaluation, by the names of Stable-Baselines3."""
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
    if result.audit is not None:
        metrics |= result.audit.metrics()
    return metrics


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None if all values of a list are equal."""
    ranks: list[np.ndarray] = []
    for values in (one, other):
        _, place, number = np.unique(values, return_inverse=True, return_counts=True)
        if len(number) == 1:
            return None
        ranks.append((np.cumsum(number) - (number - 1) / 2)[place])  # equal values share one
    return float(np.corrcoef(np.stack(ranks))[0, 1])


class Evaluator:
    """Evaluates the policy of a run, and keeps the weights of the best one.

    The best policy has the highest mean return: the learned one if the reward is learned, else the
    environment's. The scale of a reward that is still trained moves, and a resumed run may have
    another one; then the best weights and the current ones are both evaluated with the current
    reward.

    Args:
        parts: Parts of the run.
        config: The section ``eval``.
        folder: Folder of the best weights.
        say: Called with warnings.
    """

    def __init__(
        self, parts: Parts, config: EvalConfig, folder: Path, say: Callable[[str], None]
    ) -> None:
        self._policy, self._env, self._reward = parts.policy, parts.eval_env, parts.reward
        self._evaluate = parts.evaluate or evaluate
        self._seed, self._config = parts.seeds.evaluate, config
        self._folder, self._say = folder, say
        self._by_reward = parts.reward.is_learned and config.select_by == "reward"
        reward, weights = parts.reward, [weight for _, weight in parts.reward.terms.values()]
        # What scores depend on and may change when a run is resumed.
        stages = [reward.scale, reward.scaler is not None, *(reward.clip or ())]
        self._scored_by = [weights, stages] if self._by_reward else []
        self.newest: Collected | None = None
        """The newest evaluation."""
        self.score: float | None = None
        """Mean return of the newest evaluation, in the reward that selects."""
        self.best: dict[str, Any] = {}
        """``step``, ``score`` (None: not known in this reward), ``return`` (the environment's) and
        ``weights`` of the best policy, and the ``reward_updates`` when it was scored."""

    def evaluate(self, steps: int) -> dict[str, Any]:
        """Evaluate the policy after a number of steps, and return the metrics."""
        self.newest = self._play(steps)
        self.score = self._score_of(self.newest)
        if self.best and (
            self.best["score"] is None
            or (self._by_reward and self.best["reward_updates"] != self._reward.updates)
        ):
            self.best |= {"score": self._rescored(steps), "reward_updates": self._reward.updates}
        best = self.best.get("score", -np.inf)
        # Of equal learned returns the newer policy counts: a constant reward selects the last one.
        if not np.isnan(self.score) and (
            self.score > best or not self.best or (self._by_reward and self.score == best)
        ):
            self.best = {
                "step": steps,
                "score": self.score,
                "return": float(np.mean(self.newest.returns)),
                "reward_updates": self._reward.updates,
                "weights": self._weights(),
            }
            try:
                self._save_best()
            except OSError as error:  # a later one may succeed; the last is tried again at the end
                self._say(f"Warning: {error.strerror or error}")
        metrics: dict[str, Any] = evaluation_metrics(self.newest)
        for name, (model, _) in self._reward.terms.items():
            found = self.newest.familiarity.get(name)
            for key, value in found.metrics(model.reference).items() if found else ():
                metrics[f"reward/{name}/{key}"] = value
        if self.best:
            metrics["eval/best_mean_reward"] = self.best["return"]
        return metrics

    def confirm(self, steps: int) -> dict[str, Any]:
        """Replace the newest evaluation by one with other episodes, and return the metrics."""
        self.newest = self._play(steps, others=True)
        return evaluation_metrics(self.newest)

    def restore_best(self) -> None:
        """Write the best weights of the checkpoint that a run resumes from to the folder."""
        if self.best:
            self._save_best()
        else:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _save_best(self) -> None:
        state = {"weights": self.best["weights"]}
        save_checkpoint(self._folder, self.best["step"], state, keep=1)

    def _weights(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self._policy.state_dict().items()}

    def _score_of(self, played: Collected) -> float:
        return float(np.mean(played.learned if self._by_reward else played.returns))

    def _rescored(self, steps: int) -> float:
        """Return the score of the best weights with the current reward."""
        current = self._weights()
        self._policy.load_state_dict(self.best["weights"])
        try:
            return self._score_of(self._play(steps, warn=False))
        finally:
            self._policy.load_state_dict(current)

    def _play(self, steps: int, others: bool = False, warn: bool = True) -> Collected:
        # Seeded by the number of steps, not of evaluations: a resumed run plays the same episodes.
        seed = int(np.random.SeedSequence([self._seed, steps, others]).generate_state(1)[0])
        played: Collected = self._evaluate(
            self._policy,
            self._env,
            self._config.episodes,
            seed=seed,
            deterministic=self._config.deterministic,
            reward=self._reward,
        )
        if warn and played.audit is not None:
            for warning in played.audit.warnings(self._reward.cotrain):
                self._say(f"step {steps}: {warning}")
        return played

    def training_state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        newest = None if self.newest is None else asdict(replace(self.newest, familiarity={}))
        return {
            "newest": newest,
            "score": self.score,
            "scored_by": self._scored_by,
            "best": dict(self.best),
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`."""
        newest = state["newest"]
        if newest is not None:
            audit = newest["audit"] and Audit(**newest["audit"])
            self.newest = Collected(**{**newest, "audit": audit})
            evaluation_metrics(self.newest)  # an error if it cannot be used
        self.score, self.best = state["score"], dict(state["best"])
        if self.best:
            sum(self.best[name] or 0 for name in ("step", "score", "return", "reward_updates"))
            own = self._policy.state_dict()
            check_like(self.best, {"step": 0, "weights": own}, "its best policy")
            shapes = {name: value.shape for name, value in self.best["weights"].items()}
            if shapes != {name: value.shape for name, value in own.items()}:
                raise ValueError("its best policy has other weights")
        if state.get("scored_by") != self._scored_by:
            self.score = None
            self.best |= {"score": None} if self.best else {}

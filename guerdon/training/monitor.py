"""What happens beside the loop: counting, stopping, logging, evaluating, saving."""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.collect import Collected
from guerdon.training.audit import Audit
from guerdon.training.evaluation import evaluation_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RECENT = 100  # episodes that the mean return is over
_NO_REWARD = "the reward pays something that is no finite number"
_TOO_FAST = "a smaller 'policy.learning_rate' or 'policy.max_grad_norm' may help"


@dataclass
class Progress:
    """How far a run has come."""

    env_steps: int = 0
    """Transitions collected."""
    episodes: int = 0
    """Episodes that ended."""
    updates: int = 0
    """Calls of `Policy.update`."""
    seconds: float = 0.0
    """On the clock, less evaluations and saving; over all starts of the run."""


@dataclass
class Budget:
    """When a run stops; None is never."""

    max_steps: int | None = None
    max_updates: int | None = None
    max_seconds: float | None = None
    target_return: float | None = None
    """Mean return of an evaluation."""


class Monitor:
    """Counts, and does what is due after an iteration.

    Args:
        budget: When to stop.
        evaluate: Plays evaluation episodes; called with the number of steps, and with whether
            they have to be others than before at that number.
        eval_every: Steps between evaluations.
        log: Called with the number of steps and metrics.
        log_every: Steps between logs.
        save: Saves a checkpoint; called with whether the policy is the best so far.
        save_every: Steps between checkpoints, beside one at every evaluation.
        show: Called with the number of steps after every iteration; has to be quick.
        interrupted: Says whether someone has asked the run to stop.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        evaluate: Callable[[int, bool], Collected] | None = None,
        eval_every: int = 10_000,
        log: Callable[[int, Mapping[str, Any]], None] | None = None,
        log_every: int = 2_000,
        save: Callable[[bool], None] | None = None,
        save_every: int = 10_000,
        show: Callable[[int], None] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.budget = budget
        self.progress = Progress()
        self.evaluation: Collected | None = None
        """The newest."""
        self.reason: str | None = None
        """Why the run has stopped."""
        self.best: float | None = None
        """The best mean return of an evaluation."""
        self._best_learned = -np.inf  # the return that a learned reward gave it
        self._evaluate, self._log, self._save = evaluate, log, save
        self._every = {"eval": eval_every, "log": log_every, "save": save_every}
        self._due = dict(self._every)
        self._show = show
        self._interrupted = interrupted
        self._returns: deque[float] = deque(maxlen=_RECENT)
        self._lengths: deque[int] = deque(maxlen=_RECENT)
        self._successes: deque[bool] = deque(maxlen=_RECENT)
        self._since = time.perf_counter()
        self._logged = (0, 0.0)
        self._evaluated_at = -1
        self._saved_at = -1
        self._newest: dict[str, Any] = {}  # metrics since the last log: some come but now and then

    # --- stopping

    @property
    def fraction(self) -> float:
        """The share of the steps that is done."""
        return self.progress.env_steps / self.budget.max_steps if self.budget.max_steps else 0.0

    def stop_reason(self) -> str | None:
        """Why the run has to stop now, or None."""
        budget, progress = self.budget, self.progress
        if self._interrupted():
            return "interrupted"
        if (
            self.evaluation is not None
            and budget.target_return is not None
            and np.mean(self.evaluation.returns) >= budget.target_return
        ):
            return "target_return"
        for name, used in (
            ("max_steps", progress.env_steps),
            ("max_updates", progress.updates),
            ("max_seconds", progress.seconds),
        ):
            limit = getattr(budget, name)
            if limit is not None and used >= limit:
                return name
        return None

    # --- after an iteration

    def iteration(self, collected: Collected, updates: int, metrics: Mapping[str, Any]) -> None:
        """Counts an iteration, and does what is due.

        Args:
            collected: What it collected.
            updates: How often the policy was updated in it.
            metrics: What can be said about it; the newest of each name is logged.
        """
        progress = self.progress
        progress.env_steps += collected.n_step
        progress.episodes += collected.n_episode
        progress.updates += updates
        now = time.perf_counter()
        progress.seconds += now - self._since
        self._since = now
        self._newest |= metrics
        self._returns.extend(collected.returns)
        self._lengths.extend(collected.lengths)
        self._successes.extend(collected.successes)
        due = [name for name, step in self._due.items() if progress.env_steps >= step]
        reason = self.stop_reason()
        if reason == "interrupted":
            due = ["log", "save"]  # somebody waits, and may not wait for an evaluation
        elif reason is not None:
            due = ["eval", "log", "save"]  # in one go: whoever is killed now repeats all or none
        if due:
            self._do(due)
        if self._show is not None:
            self._show(progress.env_steps)

    def _do(self, due: list[str]) -> None:
        steps = self.progress.env_steps
        self._check_finite()
        for name in due:
            self._due[name] = (steps // self._every[name] + 1) * self._every[name]
        lines = {}
        if "log" in due:
            lines, self._newest = {**self._rollout_metrics(), **self._newest}, {}
        improved = False
        if "eval" in due and self._evaluate is not None:
            evaluation, improved = self._evaluated()
            lines |= evaluation
        if lines and self._log is not None:
            self._log(steps, lines)
        if "save" in due or ("eval" in due and self._evaluate):
            self._saved(improved)
        self._since = time.perf_counter()

    def _check_finite(self) -> None:
        """Raises before a policy that has become nonsense takes the place of a good one."""
        causes = {name: _NO_REWARD for name in self._newest if name == "reward/mean"}
        causes |= {name: _TOO_FAST for name in self._newest if re.match(r"train/.*loss", name)}
        for name, cause in causes.items():
            if not np.isfinite(float(self._newest[name])):
                raise RuntimeError(
                    f"{name} is not finite at step {self.progress.env_steps:,}: {cause}; what was "
                    "saved before is untouched"
                )

    def finish(self) -> None:
        """Evaluates and saves the final policy, if that was not just done.

        A run that its own evaluation has stopped is evaluated once more, on other episodes: the
        first were chosen for being good.
        """
        self.reason = self.stop_reason()
        steps, improved = self.progress.env_steps, False
        if self._evaluate is not None and self.reason != "interrupted":
            if steps != self._evaluated_at:
                metrics, improved = self._evaluated()
                if self._log is not None:
                    self._log(steps, metrics)
            elif self.reason == "target_return":
                self.evaluation = self._evaluate(steps, True)
        if steps != self._saved_at or improved:
            self._saved(improved)

    def _saved(self, improved: bool) -> None:
        self._saved_at = self.progress.env_steps
        if self._save is not None:
            self._save(improved)

    def _evaluated(self) -> tuple[dict[str, Any], bool]:
        """Evaluates; the metrics, and whether the policy is better than ever."""
        assert self._evaluate is not None
        self.evaluation = self._evaluate(self.progress.env_steps, False)
        self._evaluated_at = self.progress.env_steps
        metrics: dict[str, Any] = evaluation_metrics(self.evaluation)
        mean = metrics["eval/mean_reward"]
        learned = metrics.get("reward/eval_return", -np.inf)  # all there is where nothing is paid
        improved = _rank(mean, learned) > _rank(self.best, self._best_learned)
        if improved:
            self.best, self._best_learned = mean, learned
        if self.best is not None:
            metrics["eval/best_mean_reward"] = self.best
        return metrics, improved

    def _rollout_metrics(self) -> dict[str, Any]:
        progress = self.progress
        steps, seconds = self._logged
        self._logged = (progress.env_steps, progress.seconds)
        metrics: dict[str, Any] = {
            "time/fps": (progress.env_steps - steps) / max(progress.seconds - seconds, 1e-9),
            "time/time_elapsed": progress.seconds,
            "train/n_updates": progress.updates,
            "rollout/episodes": progress.episodes,
        }
        if self._returns:
            metrics["rollout/ep_rew_mean"] = float(np.mean(self._returns))
            metrics["rollout/ep_len_mean"] = float(np.mean(self._lengths))
        if self._successes:
            metrics["rollout/success_rate"] = float(np.mean(self._successes))
        return metrics

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on."""
        return {
            "progress": asdict(self.progress),
            "best": self.best,
            "best_learned": float(self._best_learned),
            "evaluation": self.evaluation and _lists(self.evaluation),
            "evaluated_at": self._evaluated_at,
            "saved_at": self._saved_at,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "successes": list(self._successes),
            "logged": list(self._logged),
            "newest": {name: float(value) for name, value in self._newest.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken."""
        self.progress = Progress(**state["progress"])
        self.best, self._best_learned = state["best"], state["best_learned"]
        evaluation = state["evaluation"]
        self.evaluation = evaluation and _collected(**evaluation)
        self._evaluated_at = state["evaluated_at"]
        self._saved_at = state["saved_at"]
        self._returns = deque(state["returns"], _RECENT)
        self._lengths = deque(state["lengths"], _RECENT)
        self._successes = deque(state["successes"], _RECENT)
        self._logged = tuple(state["logged"])
        self._newest = dict(state["newest"])
        steps = self.progress.env_steps
        self._due = {name: (steps // every + 1) * every for name, every in self._every.items()}
        every = self._every["eval"]
        if steps // every > max(self._evaluated_at, 0) // every:  # who was interrupted missed one
            self._due["eval"] = steps
        self._since = time.perf_counter()


def _rank(mean: float | None, learned: float) -> tuple[float, float]:
    """The larger, the better; what is none, or not a number, is worse than anything."""
    first, second = (-np.inf if x is None or np.isnan(x) else x for x in (mean, learned))
    return float(first), float(second)


def _lists(collected: Collected) -> dict[str, Any]:
    names = ("returns", "lengths", "successes", "learned")
    lists = {name: getattr(collected, name) for name in names}
    return lists | {"audit": asdict(collected.audit) if collected.audit else None}


def _collected(audit: dict[str, Any] | None, **lists: Any) -> Collected:
    return Collected(**lists, audit=audit and Audit(**audit))

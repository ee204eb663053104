"""Progress of the training loop: limits, logging, evaluation, checkpoints."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from guerdon.collect import Collected
from guerdon.data.leaves import check_like
from guerdon.training.evaluation import Evaluator

_RECENT = 100  # episodes that means are over
_MEANS = {
    "returns": "rollout/ep_rew_mean",
    "lengths": "rollout/ep_len_mean",
    "successes": "rollout/success_rate",
}
_CAUSES = {
    r"reward/mean$": "the reward is not a finite number",
    r"train/.*loss": "a smaller 'policy.learning_rate' or 'policy.max_grad_norm' may help",
}
_LARGE = 1e9  # rewards or returns from which a loss may well overflow


@dataclass
class Progress:
    """Progress of a run."""

    env_steps: int = 0
    """Transitions collected."""
    episodes: int = 0
    """Episodes that ended."""
    updates: int = 0
    """Calls of `Policy.update`."""
    seconds: float = 0.0
    """Wall-clock time without evaluations and saving, over all starts of the run."""


@dataclass
class Budget:
    """Limits of a run; None is no limit."""

    max_steps: int | None = None
    max_updates: int | None = None
    max_seconds: float | None = None
    target_return: float | None = None
    """Mean return of an evaluation, in the reward that the evaluator selects by."""


class Monitor:
    """Counts iterations, and logs, evaluates and saves at intervals.

    Args:
        budget: When to stop.
        evaluator: Evaluates the policy; None for no evaluations.
        eval_every: Steps between evaluations.
        log: Called with the number of steps and metrics.
        log_every: Steps between logs.
        save: Saves a checkpoint; called with whether it is a scheduled one.
        save_every: Steps between checkpoints.
        show: Called with the number of steps after every iteration; has to be quick.
        interrupted: Returns whether the user has asked the run to stop.
        event: Called with the name of an event and its arguments; see `Callback`.
        offline: Whether the steps of the run are updates, since it takes no environment steps.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        evaluator: Evaluator | None = None,
        eval_every: int = 10_000,
        log: Callable[[int, Mapping[str, Any]], Any] = lambda *_: None,
        log_every: int = 2_000,
        save: Callable[[bool], None] = lambda _: None,
        save_every: int = 10_000,
        show: Callable[[int], None] = lambda _: None,
        interrupted: Callable[[], bool] = lambda: False,
        event: Callable[..., None] = lambda *_: None,
        offline: bool = False,
    ) -> None:
        self.budget = budget
        self.progress = Progress()
        self.reason: str | None = None
        """Why the run has stopped."""
        self._evaluator = evaluator
        self._log, self._save, self._show, self._interrupted = log, save, show, interrupted
        self.event = event
        self._offline = offline
        self._every = {"eval": eval_every, "log": log_every, "save": save_every}
        self._due = dict(self._every)
        self._recent = {name: deque[float](maxlen=_RECENT) for name in _MEANS}
        self._since = time.perf_counter()
        self._logged = (0, 0.0)
        self._evaluated_at = -1
        self._confirmed_at = -1
        self._saved_at = -1
        self._stopped = False
        self._newest: dict[str, Any] = {}  # metrics since the last log: some come now and then

    @property
    def step(self) -> int:
        """Number of steps, which limits and intervals refer to."""
        return self.progress.updates if self._offline else self.progress.env_steps

    @property
    def fraction(self) -> float:
        """Completed fraction of the run."""
        return self.step / self.budget.max_steps if self.budget.max_steps else 0.0

    def stop_reason(self) -> str | None:
        """Return the reason to stop now, or None."""
        if self._interrupted():
            return "interrupted"
        return "callback" if self._stopped else next(self._reached(), None)

    def stop(self) -> None:
        """Stop the run after the current iteration."""
        self._stopped = True

    def _reached(self) -> Iterator[str]:
        """Yield the limits that are reached."""
        values = {
            "target_return": self._evaluator and self._evaluator.score,
            "max_steps": self.step,
            "max_updates": self.progress.updates,
            "max_seconds": self.progress.seconds,
        }
        for name, value in values.items():
            limit = getattr(self.budget, name)
            if limit is not None and value is not None and value >= limit:
                yield name

    def iteration(self, collected: Collected, updates: int, metrics: Mapping[str, Any]) -> None:
        """Count an iteration; log, evaluate and save if due.

        Args:
            collected: What it collected.
            updates: Number of policy updates in it.
            metrics: Its metrics; the newest of each name is logged.
        """
        progress = self.progress
        progress.env_steps += collected.n_step
        progress.episodes += collected.n_episode
        progress.updates += updates
        now = time.perf_counter()
        progress.seconds += now - self._since
        self._since = now
        self._newest |= {**collected.metrics, **metrics}
        for name, recent in self._recent.items():
            recent.extend(getattr(collected, name))
        due = {name for name, step in self._due.items() if self.step >= step}
        scheduled = "save" in due
        reason = self.stop_reason()
        if reason == "interrupted":  # without an evaluation, which would delay the stop
            evaluates = "eval" in due or any(self._reached())
            scheduled = scheduled and not evaluates
            due = due if scheduled else {"log", "save"}
        elif reason is not None:
            due = {"eval", "log", "save"}  # together: a resumed run repeats all of it or nothing
        if due:
            self._do(due, scheduled)
        self._show(self.step)

    def finish(self) -> None:
        """Evaluate and save the final policy, if that was not just done."""
        self.reason = self.stop_reason()
        steps = self.step
        if self.reason == "interrupted" and steps == self._evaluated_at:
            self.reason = next(self._reached(), self.reason)  # the signal came too late
        due = {"save"} if steps != self._saved_at else set()
        if self.reason != "interrupted" and steps != self._evaluated_at:
            due = {"eval", "save"}  # a run that is resumed here does not evaluate again
        self._do(due, scheduled=False)

    def _do(self, due: set[str], scheduled: bool) -> None:
        steps = self.step
        self._check_finite()
        for name in due:
            self._due[name] = (steps // self._every[name] + 1) * self._every[name]
        line = {}
        if "log" in due:
            line, self._newest = {**self._rollout_metrics(), **self._newest}, {}
        if "eval" in due:
            self._evaluated_at = steps
            line |= self._evaluation(steps)
        if line:
            self._log(steps, line)
        if self._evaluated_at > self._confirmed_at and "target_return" in self._reached():
            assert self._evaluator is not None
            self._confirmed_at = steps  # on other episodes, since the first ones triggered the stop
            self._log(steps, self._evaluator.confirm(steps))
        if "save" in due:
            self._saved_at = steps
            self._save(scheduled)
        self._since = time.perf_counter()

    def _evaluation(self, steps: int) -> dict[str, Any]:
        if self._evaluator is None:
            return {}
        self.event("evaluation")
        metrics = self._evaluator.evaluate(steps)
        if self._evaluator.best.get("step") == steps:
            self.event("best")
        return metrics

    def _check_finite(self) -> None:
        """Raise an error before weights that are not finite are saved."""
        for name, value in self._newest.items():
            for pattern, cause in _CAUSES.items():
                if re.match(pattern, name) and not np.isfinite(float(value)):
                    raise RuntimeError(
                        f"{name} is not finite at step {self.step:,}: "
                        f"{self._overflow() or cause}; what was saved before is untouched"
                    )

    def _overflow(self) -> str | None:
        """Return how large rewards are, if that is why a number is not finite."""
        mean = self._newest.get("reward/mean")  # not of the environment's reward
        sizes = self._recent["returns"] if mean is None else [float(mean)]
        size = max(map(abs, sizes), default=0.0)
        what = "returns of episodes" if mean is None else "rewards"
        if not _LARGE < size < np.inf:
            return None
        return (
            f"{what} of {size:.2g} overflow float32: make 'reward.scale' smaller, or set "
            "reward.normalize=true"
        )

    def _rollout_metrics(self) -> dict[str, Any]:
        progress = self.progress
        steps, seconds = self._logged
        self._logged = (self.step, progress.seconds)
        return {
            "time/fps": (self.step - steps) / max(progress.seconds - seconds, 1e-9),
            "time/time_elapsed": progress.seconds,
            "train/n_updates": progress.updates,
            "rollout/episodes": progress.episodes,
            **{_MEANS[name]: float(np.mean(each)) for name, each in self._recent.items() if each},
        }

    # --- state

    def training_state(self) -> dict[str, Any]:
        """Everything that is needed to resume."""
        return {
            "progress": asdict(self.progress),
            "evaluated_at": self._evaluated_at,
            "confirmed_at": self._confirmed_at,
            "saved_at": self._saved_at,
            **{name: list(recent) for name, recent in self._recent.items()},
            "logged": list(self._logged),
            "newest": {name: float(value) for name, value in self._newest.items()},
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`."""
        check_like(state, self.training_state(), "monitor")
        self.progress = Progress(**state["progress"])
        self._evaluated_at, self._saved_at = state["evaluated_at"], state["saved_at"]
        self._confirmed_at = state.get("confirmed_at", -1)
        self._recent = {name: deque(state[name], _RECENT) for name in _MEANS}
        steps, seconds = self._logged = tuple(state["logged"])
        self._newest = dict(state["newest"])
        numbers = (
            *state["progress"].values(),
            *self._newest.values(),
            *chain(*self._recent.values()),
        )
        sum((*numbers, steps, seconds, self._confirmed_at, self._saved_at))  # an error for others
        steps = self.step
        self._due = {name: (steps // every + 1) * every for name, every in self._every.items()}
        every = self._every["eval"]
        if steps // every > max(self._evaluated_at, 0) // every:  # an interrupt skipped one
            self._due["eval"] = steps
        self._since = time.perf_counter()

"""Tianshou's trainers: functions with epochs, tests and callbacks, over guerdon's loops."""

import inspect
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from guerdon import collect
from guerdon.compat.tianshou.policy import BasePolicy
from guerdon.training import trainers
from guerdon.training.monitor import Budget, Monitor


@dataclass(kw_only=True)
class Functions:
    """Functions that a trainer calls, and what it shows."""

    train_fn: Callable[..., Any] | None = None
    """Called with the epoch and the environment step before collecting."""
    test_fn: Callable[..., Any] | None = None
    """Called with the same before a test."""
    stop_fn: Callable[[float], bool] | None = None
    """Called with the mean return of a test; training stops if it returns True."""
    save_fn: Callable[[Any], Any] | None = None
    """Called with the policy after the best test so far."""
    writer: Any = None
    """TensorBoard writer."""
    log_interval: int = 1
    """Updates between entries of the writer."""
    verbose: bool = True
    """Whether to print a line after each test."""
    test_in_train: bool = True
    """Whether to test at once if `stop_fn` accepts a return of training."""


def offpolicy_trainer(
    policy: Any,
    train_collector: Any,
    test_collector: Any,
    max_epoch: int,
    step_per_epoch: int,
    collect_per_step: int,
    episode_per_test: int,
    batch_size: int,
    update_per_step: int = 1,
    reward: Any = None,
    **functions: Any,
) -> dict[str, Any]:
    """Train off-policy.

    Args:
        policy: Policy to train.
        train_collector: Collector with a replay buffer.
        test_collector: Collector of tests.
        max_epoch: Maximum number of epochs.
        step_per_epoch: Number of policy updates of an epoch; each ends with a test.
        collect_per_step: Number of transitions to collect before updates.
        episode_per_test: Number of episodes of a test.
        batch_size: Transitions of a sample.
        update_per_step: Number of updates after collecting.
        reward: Reward; defaults to the environment reward.
        **functions: See `Functions`.

    Returns:
        Counts of steps and episodes, ``best_reward``, ``best_result`` and ``duration``.
    """
    test = test_collector, episode_per_test
    epochs = _Epochs(policy, test, max_epoch, step_per_epoch, Functions(**functions))
    trainers.offpolicy_trainer(
        policy, train_collector, reward=reward, n_step=collect_per_step, batch_size=batch_size,
        updates_per_collect=update_per_step, monitor=epochs,
    )  # fmt: skip
    return epochs.result()


def onpolicy_trainer(
    policy: Any,
    train_collector: Any,
    test_collector: Any,
    max_epoch: int,
    step_per_epoch: int,
    collect_per_step: int,
    repeat_per_collect: int,
    episode_per_test: int,
    batch_size: int,
    reward: Any = None,
    **functions: Any,
) -> dict[str, Any]:
    """Train on-policy: see `offpolicy_trainer`, but `collect_per_step` counts episodes.

    `step_per_epoch` counts minibatches, and `repeat_per_collect` passes over what was collected.
    """
    if isinstance(policy, BasePolicy):
        policy.on_policy = True  # type: ignore[misc]
    test = test_collector, episode_per_test
    epochs = _Epochs(policy, test, max_epoch, step_per_epoch, Functions(**functions))
    epochs.minibatches = lambda rows: repeat_per_collect * math.ceil(rows / batch_size)
    trainers.onpolicy_trainer(
        policy, train_collector, reward=reward, n_episode=collect_per_step, batch_size=batch_size,
        repeat=repeat_per_collect, monitor=epochs,
    )  # fmt: skip
    return epochs.result()


class _Epochs(Monitor):
    """Counts epochs, tests the policy after each, and calls the functions of the user."""

    def __init__(
        self, policy: Any, test: tuple[Any, int], max_epoch: int, steps: int, functions: Functions
    ) -> None:
        super().__init__(Budget(max_updates=max_epoch * steps))
        self.policy, (self.test_collector, self.episodes), self.steps = policy, test, steps
        self.functions = functions
        self.minibatches: Callable[[int], int] | None = None
        self.best, self.tested = [-math.inf], collect.Collected()
        self.started = time.perf_counter()
        policy.train()
        self._call(functions.train_fn, 1)

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 1."""
        return self.progress.updates // self.steps + 1

    def _call(self, function: Callable[..., Any] | None, epoch: int) -> None:
        """Call a function with the epoch and, unless it takes one argument, the step."""
        if function is not None:
            given = (epoch, self.progress.env_steps)
            function(*given[: len(inspect.signature(function).parameters)])

    def _stops(self, mean_return: float) -> bool:
        stop = self.functions.stop_fn
        return stop is not None and bool(stop(mean_return))

    def iteration(
        self, collected: collect.Collected, updates: int, metrics: Mapping[str, Any]
    ) -> None:
        """Count an iteration, and do what is due after it."""
        functions, before, done = self.functions, self.progress.updates, self.epoch
        if updates and self.minibatches is not None:
            updates = self.minibatches(collected.n_step)
        super().iteration(collected, updates, metrics)
        returns = {"train/rew": float(np.mean(collected.returns))} if collected.returns else {}
        every = functions.log_interval
        if before // every < self.progress.updates // every:
            self._write({**metrics, **returns})
        good = functions.test_in_train and any(map(self._stops, returns.values()))
        if self.epoch > done or good:
            self._test(done)
        self._call(functions.train_fn, self.epoch)

    def _test(self, epoch: int) -> None:
        self._call(self.functions.test_fn, epoch)
        with self.policy.testing():
            found = self.test_collector.collect(n_episode=self.episodes)
        self.tested.n_step += found.n_step
        self.tested.returns += found.returns
        mean = float(np.mean(found.returns))
        self._write({"test/rew": mean, "test/len": np.mean(found.lengths)})
        if mean > np.mean(self.best):
            self.best = found.returns
            if self.functions.save_fn is not None:
                self.functions.save_fn(self.policy)
        if self.functions.verbose:
            best = self.result()["best_result"]
            sys.stdout.write(f"Epoch #{epoch}: test_reward: {mean:.6f}, best: {best}\n")
        if self._stops(mean):
            self.stop()

    def _write(self, values: Mapping[str, Any]) -> None:
        for tag, value in values.items() if self.functions.writer is not None else ():
            self.functions.writer.add_scalar(tag, float(value), global_step=self.progress.env_steps)

    def result(self) -> dict[str, Any]:
        """Return the result of a trainer."""
        return {
            "train_step": self.progress.env_steps,
            "train_episode": self.progress.episodes,
            "test_step": self.tested.n_step,
            "test_episode": self.tested.n_episode,
            "best_reward": float(np.mean(self.best)),
            "best_result": f"{np.mean(self.best):.2f} ± {np.std(self.best):.2f}",
            "duration": f"{time.perf_counter() - self.started:.2f}s",
        }

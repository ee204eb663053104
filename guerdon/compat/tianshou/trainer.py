"""Tianshou's trainers: functions with epochs, tests and callbacks, over guerdon's loops."""

import inspect
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from guerdon import collect
from guerdon.compat.tianshou.policy import BasePolicy
from guerdon.policy import Policy
from guerdon.training import trainers
from guerdon.training.monitor import Budget, Monitor


def offpolicy_trainer(
    policy: Policy,
    train_collector: Any,
    test_collector: Any,
    max_epoch: int,
    step_per_epoch: int,
    collect_per_step: int,
    episode_per_test: int,
    batch_size: int,
    update_per_step: int = 1,
    **callbacks: Any,
) -> dict[str, Any]:
    """Train off-policy.

    Args:
        policy: Policy to train.
        train_collector: Collector with a replay buffer.
        test_collector: Collector of tests.
        max_epoch: Maximum number of epochs.
        step_per_epoch: Number of policy updates of an epoch, each followed by a test.
        collect_per_step: Number of transitions to collect before updates.
        episode_per_test: Number of episodes of a test.
        batch_size: Transitions of a sample.
        update_per_step: Number of updates after collecting.
        **callbacks: ``train_fn(epoch, env_step)``, called before collecting; ``test_fn(epoch,
            env_step)``, before a test; ``stop_fn(mean_return)``, which stops the training if it
            returns True for a test; ``save_fn(policy)``, called after the best test so far;
            ``writer``, a TensorBoard writer; ``log_interval``, updates between two entries there;
            ``test_in_train``, whether returns in training that `stop_fn` accepts are tested at
            once; ``reward``, see `guerdon.training.trainers.offpolicy_trainer`; and ``verbose``.

    Returns:
        Counts of steps and episodes, ``best_reward``, ``best_result`` and ``duration``.
    """
    reward = callbacks.pop("reward", None)
    epochs = _Epochs(
        policy, test_collector, max_epoch, step_per_epoch, episode_per_test, **callbacks
    )
    trainers.offpolicy_trainer(
        policy, train_collector, reward=reward, n_step=collect_per_step, batch_size=batch_size,
        updates_per_collect=update_per_step, monitor=epochs,
    )  # fmt: skip
    return epochs.result()


def onpolicy_trainer(
    policy: Policy,
    train_collector: Any,
    test_collector: Any,
    max_epoch: int,
    step_per_epoch: int,
    collect_per_step: int,
    repeat_per_collect: int,
    episode_per_test: int,
    batch_size: int,
    **callbacks: Any,
) -> dict[str, Any]:
    """Train on-policy; arguments as for `offpolicy_trainer`.

    Args:
        policy: Policy to train.
        train_collector: Collector with a buffer, which is emptied after every update.
        test_collector: Collector of tests.
        max_epoch: Maximum number of epochs.
        step_per_epoch: Number of minibatches of an epoch.
        collect_per_step: Number of episodes to collect before an update.
        repeat_per_collect: Passes over what was collected.
        episode_per_test: Number of episodes of a test.
        batch_size: Transitions of a minibatch.
        **callbacks: See `offpolicy_trainer`.
    """
    if isinstance(policy, BasePolicy):
        policy.on_policy = True  # type: ignore[misc]
    reward = callbacks.pop("reward", None)
    epochs = _Epochs(
        policy, test_collector, max_epoch, step_per_epoch, episode_per_test,
        minibatches=lambda rows: repeat_per_collect * math.ceil(rows / batch_size), **callbacks,
    )  # fmt: skip
    trainers.onpolicy_trainer(
        policy, train_collector, reward=reward, n_episode=collect_per_step, batch_size=batch_size,
        repeat=repeat_per_collect, monitor=epochs,
    )  # fmt: skip
    return epochs.result()


class _Epochs(Monitor):
    """Counts epochs, tests the policy after each, and calls the functions of the user."""

    def __init__(
        self,
        policy: Policy,
        test_collector: Any,
        max_epoch: int,
        step_per_epoch: int,
        episode_per_test: int,
        train_fn: Callable[..., Any] | None = None,
        test_fn: Callable[..., Any] | None = None,
        stop_fn: Callable[[float], bool] | None = None,
        save_fn: Callable[[Policy], Any] | None = None,
        writer: Any = None,
        log_interval: int = 1,
        verbose: bool = True,
        test_in_train: bool = True,
        minibatches: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(Budget(max_updates=max_epoch * step_per_epoch))
        self.policy, self.test_collector = policy, test_collector
        self.step_per_epoch, self.episode_per_test = step_per_epoch, episode_per_test
        self.train_fn, self.test_fn, self.stop_fn, self.save_fn = (
            train_fn,
            test_fn,
            stop_fn,
            save_fn,
        )
        self.writer, self.log_interval = writer, log_interval
        self.verbose, self.test_in_train, self.minibatches = verbose, test_in_train, minibatches
        self.best = [-math.inf]
        """Returns of the best test."""
        self.tested = collect.Collected()
        self.started = time.perf_counter()
        policy.train()
        self._call(train_fn, 1)

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 1."""
        return self.progress.updates // self.step_per_epoch + 1

    def _call(self, function: Callable[..., Any] | None, epoch: int) -> None:
        """Call a function with the epoch and, unless it takes one argument, the step."""
        if function is not None:
            given = (epoch, self.progress.env_steps)
            function(*given[: len(inspect.signature(function).parameters)])

    def iteration(
        self, collected: collect.Collected, updates: int, metrics: Mapping[str, Any]
    ) -> None:
        """Count an iteration, and do what is due after it."""
        before, done = self.progress.updates, self.epoch
        if updates and self.minibatches is not None:
            updates = self.minibatches(collected.n_step)
        super().iteration(collected, updates, metrics)
        returns = {"train/rew": float(np.mean(collected.returns))} if collected.returns else {}
        if before // self.log_interval < self.progress.updates // self.log_interval:
            self._write({**metrics, **returns})
        promising = self.test_in_train and any(map(self._stops, returns.values()))
        if self.epoch > done or promising:
            self._test(done)
        self._call(self.train_fn, self.epoch)

    def _test(self, epoch: int) -> None:
        self._call(self.test_fn, epoch)
        with self.policy.testing():
            found = self.test_collector.collect(n_episode=self.episode_per_test)
        self.tested.n_step += found.n_step
        self.tested.returns += found.returns
        mean = float(np.mean(found.returns))
        self._write({"test/rew": mean, "test/len": np.mean(found.lengths)})
        if mean > np.mean(self.best):
            self.best = found.returns
            if self.save_fn is not None:
                self.save_fn(self.policy)
        if self.verbose:
            sys.stdout.write(f"Epoch #{epoch}: test_reward: {mean:.6f}, best: {self._result}\n")
        self._refused |= self._stops(mean)

    def _stops(self, mean_return: float) -> bool:
        return self.stop_fn is not None and bool(self.stop_fn(mean_return))

    def _write(self, values: Mapping[str, Any]) -> None:
        for tag, value in values.items() if self.writer is not None else ():
            self.writer.add_scalar(tag, float(value), global_step=self.progress.env_steps)

    @property
    def _result(self) -> str:
        return f"{np.mean(self.best):.2f} ± {np.std(self.best):.2f}"

    def result(self) -> dict[str, Any]:
        """Return the result of a trainer."""
        return {
            "train_step": self.progress.env_steps,
            "train_episode": self.progress.episodes,
            "test_step": self.tested.n_step,
            "test_episode": self.tested.n_episode,
            "best_reward": float(np.mean(self.best)),
            "best_result": self._result,
            "duration": f"{time.perf_counter() - self.started:.2f}s",
        }

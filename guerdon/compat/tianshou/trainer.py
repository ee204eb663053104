"""Tianshou's trainers: functions with epochs, tests and callbacks, over guerdon's loops."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from guerdon import collect
from guerdon.compat.tianshou.policy import BasePolicy
from guerdon.training import trainers
from guerdon.training.monitor import Budget, Monitor


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
    """Train off-policy; return numbers of steps and episodes, and the return of the best test.

    An epoch is `step_per_epoch` updates, `update_per_step` of them after each `collect_per_step`
    transitions, and a test. Functions are ``train_fn`` and ``test_fn``, called with the epoch and
    the environment step (or the epoch alone) before collecting and before a test; ``stop_fn``,
    which gets the mean return of a test, and stops if it returns True; and ``save_fn``, which gets
    the policy after the best test so far. ``writer`` is a TensorBoard writer.
    """
    epochs = _Epochs(
        policy, test_collector, episode_per_test, max_epoch, step_per_epoch, **functions
    )
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
    epochs = _Epochs(
        policy, test_collector, episode_per_test, max_epoch, step_per_epoch, **functions
    )
    epochs.minibatches = lambda rows: repeat_per_collect * math.ceil(rows / batch_size)
    trainers.onpolicy_trainer(
        policy, train_collector, reward=reward, n_episode=collect_per_step, batch_size=batch_size,
        repeat=repeat_per_collect, monitor=epochs,
    )  # fmt: skip
    return epochs.result()


class _Epochs(Monitor):
    """Counts epochs, tests the policy after each, and calls the functions of the user."""

    def __init__(
        self,
        policy: Any,
        test_collector: Any,
        episodes: int,
        max_epoch: int,
        steps: int,
        *,
        train_fn: Callable[..., Any] | None = None,
        test_fn: Callable[..., Any] | None = None,
        stop_fn: Callable[[float], bool] | None = None,
        save_fn: Callable[[Any], Any] | None = None,
        writer: Any = None,
    ) -> None:
        super().__init__(Budget(max_updates=max_epoch * steps))
        self.policy, self.test_collector = policy, test_collector
        self.episodes, self.steps, self.writer = episodes, steps, writer
        self.train_fn, self.test_fn = train_fn, test_fn
        self.stop_fn, self.save_fn = stop_fn, save_fn
        self.minibatches: Callable[[int], int] | None = None
        self.best = [-math.inf]
        policy.train()
        self._call(train_fn, 1)

    def _call(self, function: Callable[..., Any] | None, epoch: int) -> None:
        """Call a function with the epoch and, unless it takes one argument, the step."""
        if function is not None:
            given = (epoch, self.progress.env_steps)
            function(*given[: len(inspect.signature(function).parameters)])

    def iteration(
        self, collected: collect.Collected, updates: int, metrics: Mapping[str, Any]
    ) -> None:
        """Count an iteration, and do what is due after it."""
        before = self.progress.updates // self.steps
        if updates and self.minibatches is not None:
            updates = self.minibatches(collected.n_step)
        super().iteration(collected, updates, metrics)
        returns = {"train/rew": float(np.mean(collected.returns))} if collected.returns else {}
        self._write({**metrics, **returns})
        epoch = self.progress.updates // self.steps
        if epoch > before:
            self._test(before + 1)
        self._call(self.train_fn, epoch + 1)

    def _test(self, epoch: int) -> None:
        self._call(self.test_fn, epoch)
        with self.policy.testing():
            found = self.test_collector.collect(n_episode=self.episodes)
        mean = float(np.mean(found.returns))
        self._write({"test/rew": mean, "test/len": np.mean(found.lengths)})
        if mean > np.mean(self.best):
            self.best = found.returns
            if self.save_fn is not None:
                self.save_fn(self.policy)
        if self.stop_fn is not None and self.stop_fn(mean):
            self.stop()

    def _write(self, values: Mapping[str, Any]) -> None:
        for tag, value in values.items() if self.writer is not None else ():
            self.writer.add_scalar(tag, float(value), global_step=self.progress.env_steps)

    def result(self) -> dict[str, Any]:
        """Return the result of a trainer."""
        return {
            "train_step": self.progress.env_steps,
            "train_episode": self.progress.episodes,
            "best_reward": float(np.mean(self.best)),
            "best_result": f"{np.mean(self.best):.2f} ± {np.std(self.best):.2f}",
        }

"""The training loops, one function each."""

from collections.abc import Callable
from typing import Any

from guerdon.collect import Collected, Collector
from guerdon.config import GuerdonConfig
from guerdon.data import PrioritizedReplayBuffer
from guerdon.policy import Policy
from guerdon.reward import Reward
from guerdon.training.monitor import Budget, Monitor
from guerdon.training.parts import Parts
from guerdon.training.process import keep_freed_memory


def onpolicy_trainer(
    policy: Policy,
    collector: Collector,
    *,
    reward: Reward | None = None,
    n_step: int | None = None,
    n_episode: int | None = None,
    batch_size: int = 64,
    repeat: int = 1,
    max_steps: int | None = None,
    monitor: Monitor | None = None,
) -> Monitor:
    """Train on-policy: collect a rollout, learn from it, discard it.

    Args:
        policy: Policy to train.
        collector: Collector with a rollout.
        reward: Reward; defaults to the environment reward.
        n_step: Transitions per iteration.
        n_episode: Episodes per iteration, instead of `n_step`.
        batch_size: Transitions per minibatch.
        repeat: Epochs per rollout.
        max_steps: Transitions after which to stop, without a monitor.
        monitor: Stops the run, logs, evaluates and saves.

    Returns:
        The monitor, with the progress of the run.
    """
    monitor, buffer = _checked(policy, onpolicy_trainer, collector, max_steps, monitor)
    while monitor.stop_reason() is None:
        monitor.event("iteration")
        for part in (policy, collector):
            part.advance(monitor.progress.env_steps, monitor.fraction)
        collected = collector.collect(n_step=n_step, n_episode=n_episode)
        metrics = train_reward(reward, collector, monitor.progress.updates)
        updates = int(len(buffer) > 0)  # all rows may be after a success
        if updates:
            metrics |= _updated(policy, monitor, batch_size, buffer, reward, repeat=repeat)
        metrics |= reward.reward_stats() if reward is not None else {}
        buffer.reset()
        monitor.iteration(collected, updates, metrics)
    monitor.finish()
    return monitor


def offpolicy_trainer(
    policy: Policy,
    collector: Collector,
    *,
    reward: Reward | None = None,
    n_step: int | None = None,
    n_episode: int | None = None,
    batch_size: int = 64,
    updates_per_collect: int = 1,
    warmup_steps: int = 0,
    max_steps: int | None = None,
    monitor: Monitor | None = None,
) -> Monitor:
    """Train off-policy: collect into a replay buffer, learn from samples of it.

    Args:
        policy: Policy to train.
        collector: Collector with a replay buffer.
        reward: Reward; defaults to the environment reward.
        n_step: Transitions per iteration.
        n_episode: Episodes per iteration, instead of `n_step`.
        batch_size: Transitions per sample.
        updates_per_collect: Gradient steps per iteration.
        warmup_steps: Transitions with random actions before learning starts.
        max_steps: Transitions after which to stop, without a monitor.
        monitor: Stops the run, logs, evaluates and saves.

    Returns:
        The monitor, with the progress of the run.
    """
    monitor, buffer = _checked(policy, offpolicy_trainer, collector, max_steps, monitor)
    while monitor.stop_reason() is None:
        warming_up = monitor.progress.env_steps < warmup_steps
        monitor.event("iteration")
        for part in (policy, collector):
            part.advance(monitor.progress.env_steps, monitor.fraction)
        collected = collector.collect(n_step=n_step, n_episode=n_episode, random=warming_up)
        if reward is not None and monitor.progress.env_steps == 0:
            prefill(reward, collector)
        metrics = train_reward(reward, collector, monitor.progress.updates)
        replay = buffer if reward is None else reward.replay(buffer)
        updates = 0 if warming_up else updates_per_collect
        for _ in range(updates):
            metrics |= _updated(policy, monitor, batch_size, replay, reward)
        metrics |= reward.reward_stats() if reward is not None else {}
        metrics |= {
            "buffer/size": len(buffer),
            "buffer/added": int(buffer.written.sum()),
            "buffer/sampled": policy.updates * batch_size,
        }
        monitor.iteration(collected, updates, metrics)
    monitor.finish()
    return monitor


def offline_trainer(
    policy: Policy,
    *,
    batch_size: int = 64,
    updates: int = 100,
    max_steps: int | None = None,
    monitor: Monitor | None = None,
) -> Monitor:
    """Train offline: learn from demonstrations, without environment steps.

    Args:
        policy: Policy to train, which has its demonstrations.
        batch_size: Transitions per sample.
        updates: Gradient steps per iteration.
        max_steps: Updates after which to stop, without a monitor.
        monitor: Stops the run, logs, evaluates and saves; its steps are updates.

    Returns:
        The monitor, with the progress of the run.
    """
    monitor, _ = _checked(policy, offline_trainer, None, max_steps, monitor)
    while monitor.stop_reason() is None:
        monitor.event("iteration")
        policy.advance(0, monitor.fraction)
        metrics: dict[str, Any] = {}
        for _ in range(updates):
            metrics |= _updated(policy, monitor, batch_size, None)
        monitor.iteration(Collected(), updates, metrics | policy.validate())
    monitor.finish()
    return monitor


def trainer_of(policy: Policy) -> Callable[..., Monitor]:
    """Return the loop of a policy."""
    if policy.offline:
        return offline_trainer
    return onpolicy_trainer if policy.on_policy else offpolicy_trainer


def run_trainer(parts: Parts, config: GuerdonConfig, monitor: Monitor) -> None:
    """Train the policy of a run with its loop."""
    keep_freed_memory()
    collect, learn = config.collect, config.learn
    train = trainer_of(parts.policy)
    options: dict[str, Any] = {"batch_size": learn.batch_size, "monitor": monitor}
    if train is offline_trainer:
        train(parts.policy, updates=learn.updates_per_collect, **options)
        return
    options |= {"n_step": collect.n_step, "n_episode": collect.n_episode, "reward": parts.reward}
    if train is onpolicy_trainer:
        options["repeat"] = learn.repeat
    else:
        options["updates_per_collect"] = learn.updates_per_collect
        options["warmup_steps"] = collect.warmup_steps
    train(parts.policy, parts.collector, **options)


def prefill(reward: Reward, collector: Collector) -> None:
    """Add the demonstrations that the reward names to a replay buffer with its first transitions.

    Open episodes are cut, as at a clean point.
    """
    episodes = [episode for model in reward.models for episode in model.prefill()]
    if episodes:
        collector.break_off()
        reward.add_episodes(collector.buffer, episodes)


def train_reward(reward: Reward | None, collector: Collector, updates: int) -> dict[str, Any]:
    """Give the reward fresh transitions, train it, and return its metrics.

    Models drop old data by the number of policy `updates` so far.
    """
    if reward is None:
        return {}
    if reward.collects:
        fresh = collector.annotated or collector.fresh(reward.collects)
        reward.collect_data(*fresh, collector.buffer)
    metrics = reward.train()
    reward.clear_data(updates)
    if metrics and isinstance(collector.buffer, PrioritizedReplayBuffer):
        collector.buffer.reset_priorities()  # they are errors with the old reward
    return metrics


def _updated(policy: Policy, monitor: Monitor, *args: Any, **options: Any) -> dict[str, Any]:
    """Update the policy, and return the metrics."""
    monitor.event("update_start")
    metrics = policy.update(*args, **options)
    monitor.event("update_end", metrics)
    return metrics


def _checked(
    policy: Policy,
    trainer: Callable[..., Monitor],
    collector: Collector | None,
    max_steps: int | None,
    monitor: Monitor | None,
) -> tuple[Monitor, Any]:
    """Check the arguments of a trainer; return a monitor and the collector's buffer."""
    buffer = None if collector is None else collector.buffer
    if collector is not None and buffer is None:
        raise ValueError("this collector has no buffer, so there is nothing to learn from")
    if trainer is not (right := trainer_of(policy)):
        raise ValueError(f"{type(policy).__name__} is not for this trainer: use {right.__name__}")
    if monitor is None and max_steps is None:
        raise ValueError("training would not end: give 'max_steps', or a 'monitor' with a budget")
    return monitor or Monitor(Budget(max_steps=max_steps), offline=policy.offline), buffer

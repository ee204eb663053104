"""How good a policy is, in the environment's own reward."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from guerdon.collect import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from guerdon.collect import Collected
    from guerdon.envs import VectorEnv
    from guerdon.policy import Policy


def evaluate(
    policy: Policy, env: VectorEnv, episodes: int, *, seed: int = 0, deterministic: bool = True
) -> Collected:
    """Plays whole episodes; the same policy and seed give the same ones, and nothing else changes.

    Args:
        policy: Who plays.
        env: Where.
        episodes: How many.
        seed: Of the environments, and of the policy's draws.
        deterministic: Whether it plays as in testing, or explores as in collecting.
    """
    with in_testing_state(policy, seed, deterministic):
        return Collector(policy, env, seed=seed).collect(n_episode=episodes)


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
    return metrics

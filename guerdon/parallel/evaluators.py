"""Evaluation in processes of its own: `Evaluators`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import ray

from guerdon.collect import Collected
from guerdon.collect.shards import Weights, load_weights, shares, weights_of
from guerdon.envs import VectorEnv
from guerdon.parallel.workers import Worker, call_all, start_all
from guerdon.policy import Policy
from guerdon.reward import Reward
from guerdon.training.evaluation import evaluate
from guerdon.training.parts import Seeds, ShardMaker, make_env, prepare_reward


class Evaluation:
    """Environments, and copies of the policy and the reward, in a worker.

    Args:
        policy: The copy of the policy.
        env: Some of the environments for evaluation.
        reward: The copy of the reward.
    """

    def __init__(self, policy: Policy, env: VectorEnv, reward: Reward) -> None:
        self._policy, self._env, self._reward = policy, env, reward

    def play(
        self,
        weights: Weights,
        reward: dict[str, Any] | None,
        episodes: int,
        options: dict[str, Any],
    ) -> Collected:
        """Evaluate; see `guerdon.training.evaluation.evaluate`.

        Args:
            weights: Weights of the policy.
            reward: State of the reward, if it is learned.
            episodes: Number of episodes.
            options: Options of `evaluate`.
        """
        load_weights(self._policy, weights)
        if reward is not None:
            self._reward.load_training_state(reward)
        return evaluate(self._policy, self._env, episodes, reward=self._reward, **options)


@dataclass(frozen=True)
class EvaluationMaker:
    """Makes the evaluation of each of several workers."""

    make: ShardMaker
    total: int

    def __call__(self, number: int, start: int) -> Evaluation:  # noqa: ARG002 - has no state
        """Make the evaluation of a worker."""
        config, seeds = self.make.config, Seeds.of(self.make.config.seed)
        sizes = shares(config.eval.n_envs, self.total)
        first, size = sum(filter(None, sizes[:number])), sizes[number]
        assert size is not None
        section = config.env.for_evaluation(config.eval.n_envs)
        make, _, given = self.make.env_setting or (None, None, None)
        settings: Sequence[Any] = section.settings if given is None else given
        numbers = range(first, first + size)
        mine = [settings[i % len(settings)] for i in numbers] if settings else None
        env = make_env(section, make, n_envs=size, settings=mine)
        policy = self.make.policy(env)
        return Evaluation(policy, env, prepare_reward(config, policy, env, seeds.reward))


class Evaluators:
    """Workers that evaluate together; called as `guerdon.training.evaluation.evaluate` is.

    With one worker the result is that of a serial run; with several, each has episodes of its own.

    Args:
        workers: The workers.
        timeout: Seconds after which a worker that does not answer is restarted.
    """

    def __init__(self, workers: Sequence[Worker], timeout: float) -> None:
        self._workers, self._timeout = list(workers), timeout
        start_all(workers)

    def __call__(
        self,
        policy: Policy,
        env: VectorEnv,  # noqa: ARG002 - workers have their own
        episodes: int,
        *,
        seed: int,
        deterministic: bool,
        reward: Reward,
    ) -> Collected:
        """Evaluate the policy."""
        number = len(self._workers)
        weights = ray.put(weights_of(policy))
        state = None if reward.is_env else reward.portable_state()
        seeds = [seed]
        if number > 1:
            seeds = np.random.SeedSequence(seed).generate_state(number).tolist()
        args = [
            (weights, state, share, {"seed": each, "deterministic": deterministic})
            for share, each in zip(shares(episodes, number), seeds, strict=True)
        ]
        found, *others = call_all(self._workers, "play", args, self._timeout)
        for each in others:
            found.merge(each)
        return cast("Collected", found)

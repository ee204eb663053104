"""`RayRuntime`: the workers of a run, from its start to its end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from guerdon.collect import Shards
from guerdon.config import GuerdonConfig
from guerdon.envs import VectorEnv
from guerdon.parallel.cluster import connected, nodes, reserved
from guerdon.parallel.collectors import AsyncShards, RayShards
from guerdon.parallel.evaluators import EvaluationMaker, Evaluators
from guerdon.parallel.logs import RoleLogs, files
from guerdon.parallel.rewards import RemoteReward, RewardMaker
from guerdon.parallel.workers import Restarts, Worker, process_options
from guerdon.policy import POLICIES
from guerdon.reward import Reward
from guerdon.training.parts import ShardMaker
from guerdon.training.run import Run


class RayRuntime:
    """Resources and workers of a run.

    Args:
        config: Config of the run.
    """

    def __init__(self, config: GuerdonConfig) -> None:
        self._config, section = config, config.runtime
        self._bundles = [{"CPU": section.cpus_per_collector}] * section.num_collectors
        self._bundles += [{"CPU": 1.0}] * (section.num_reward_workers + section.num_evaluators)
        self._restarts = Restarts(section.max_restarts)
        self._workers: dict[str, list[Worker]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        section = self._config.runtime
        with ExitStack() as stack:
            stack.enter_context(connected(section, self._bundles))
            self._group = stack.enter_context(reserved(self._bundles, section.wait_seconds))
            stack.callback(self._stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _stop(self) -> None:
        for workers in self._workers.values():
            for worker in workers:
                worker.stop()

    def _made(self, role: str, make: Callable[..., Any], number: int) -> list[Worker]:
        """Return workers of a role, which are not started; they take the next bundles."""
        first = sum(map(len, self._workers.values()))
        workers = [
            Worker(
                role, i, make, self._config.imports,
                process_options(self._bundles[first + i], self._group, first + i), self._restarts,
            )
            for i in range(number)
        ]  # fmt: skip
        self._workers[role] = workers
        return workers

    def shards(self, make: ShardMaker) -> Shards:
        """Start the collectors."""
        self._make, section = make, self._config.runtime
        workers = self._made("collector", make, section.num_collectors)
        if section.mode == "sync":
            return RayShards(workers, section.timeout)
        kind: Any = make.policy_fn or POLICIES.get(self._config.policy["type"])
        limit = section.max_staleness if getattr(kind, "on_policy", False) else None
        return AsyncShards(workers, section.timeout, limit)

    def reward(self, reward: Reward, env: VectorEnv) -> Reward:
        """Start the workers of the reward, after the collectors, if there are some."""
        section = self._config.runtime
        if not section.num_reward_workers:
            return reward
        maker = RewardMaker(self._make, env.observation_space, env.action_space, env.n_envs)
        workers = self._made("reward", maker, section.num_reward_workers)
        return RemoteReward(reward, workers, section.timeout, waits=section.mode == "sync")

    def evaluate(self) -> Evaluators | None:
        """Start the evaluators, after the workers of the reward; None if there are none."""
        section = self._config.runtime
        if not section.num_evaluators:
            return None
        maker = EvaluationMaker(self._make, section.num_evaluators)
        workers = self._made("evaluator", maker, section.num_evaluators)
        return Evaluators(workers, section.timeout)

    @contextmanager
    def recording(self, run: Run) -> Iterator[None]:
        """Write what workers do to ``log/<role>/`` of a run folder."""
        numbers = {role: len(workers) for role, workers in self._workers.items()}
        with files(run.path, numbers):
            run.callbacks.append(RoleLogs())
            text = ", ".join(f"{number} {role}s" for role, number in numbers.items())
            run.say(f"{text} on {nodes()}")
            for workers in self._workers.values():
                for worker in workers:
                    worker.log.info("running in process %d", worker.pid())
            yield

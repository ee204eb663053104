"""`RayRuntime`: the workers of a run, from its start to its end."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import ray
from ray.util.placement_group import PlacementGroup

from guerdon.collect.shards import ShardInfo, Shards
from guerdon.config import GuerdonConfig
from guerdon.config.files import Files, named_files, with_copies
from guerdon.envs import VectorEnv
from guerdon.parallel.cluster import connected, nodes, reserved
from guerdon.parallel.collectors import AsyncShards, RayShards
from guerdon.parallel.evaluators import EvaluationMaker, Evaluators
from guerdon.parallel.logs import RoleLogs, files, worker_logger
from guerdon.parallel.platforms import resources
from guerdon.parallel.ranks import LeadingRanks, Rank
from guerdon.parallel.rewards import RemoteReward, RewardMaker
from guerdon.parallel.workers import Restarts, Worker, process_options, start_all
from guerdon.policy import POLICIES
from guerdon.policy.ranks import LOOPBACK
from guerdon.reward import Reward
from guerdon.training.callback import Callback
from guerdon.training.parts import ShardMaker
from guerdon.training.run import Run


class RayRuntime:
    """Resources and workers of a run.

    Args:
        config: Config of the run.
        group: Resources of all workers, if this is in one of them; else they are reserved.
        files: Files that were shipped to workers, if this is in one of them.
        start: Called when the run starts, if this is in a worker.
    """

    def __init__(
        self,
        config: GuerdonConfig,
        group: PlacementGroup | None = None,
        files: Files | None = None,
        start: Callback | None = None,
    ) -> None:
        self._config, self._group, self._start = config, group, start
        self._files = files or {}
        self._bundles = {
            f"{role} {i}": bundle
            for role, (number, bundle) in resources(config).items()
            for i in range(number)
        }
        self.restarts = Restarts(config.runtime.max_restarts, config.runtime.wait_seconds)
        self._workers: dict[str, list[Worker]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        section = self._config.runtime
        with ExitStack() as stack:
            if self._group is None:
                files = named_files(self._config)
                self._files = stack.enter_context(connected(section, self._bundles, files))
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

    def _made(self, role: str, make: Callable[..., Any], numbers: Iterable[int]) -> list[Worker]:
        """Return workers of a role, which are not started."""
        names = list(self._bundles)
        assert self._group is not None
        workers = []
        for i in numbers:
            name = f"{role} {i}"
            options = process_options(self._bundles[name], self._group, names.index(name))
            imports = with_copies(self._config.imports, self._files)
            workers.append(Worker(role, i, make, imports, options, self.restarts))
        self._workers[role] = workers
        return workers

    def learner(self, make: Callable[[PlacementGroup, Files, str], Any]) -> Worker:
        """Start the worker that the loop of the run is in."""
        assert self._group is not None
        group, files, folder = self._group, self._files, str(Path.cwd())
        (worker,) = self._made("learner", lambda *_: make(group, files, folder), [0])
        worker.options["max_concurrency"] = 2
        worker.imports = self._config.imports  # the run folder and these are where they are here
        start_all([worker])
        return worker

    def shards(self, make: ShardMaker) -> Shards:
        """Start the collectors."""
        make = replace(make, config=with_copies(make.config, self._files))
        self._make, section = make, self._config.runtime
        workers = self._made("collector", make, range(section.num_collectors))
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
        workers = self._made("reward", maker, range(section.num_reward_workers))
        return RemoteReward(reward, workers, section.timeout, waits=section.mode == "sync")

    def evaluate(self) -> Evaluators | None:
        """Start the evaluators, after the workers of the reward; None if there are none."""
        section = self._config.runtime
        if not section.num_evaluators:
            return None
        maker = EvaluationMaker(self._make, section.num_evaluators)
        workers = self._made("evaluator", maker, range(section.num_evaluators))
        return Evaluators(workers, section.timeout)

    @contextmanager
    def recording(self, run: Run) -> Iterator[None]:
        """Write what workers do to ``log/<role>/`` of a run folder."""
        section, others = self._config.runtime, self._other_learners(run)
        every = [each for workers in self._workers.values() for each in workers]
        with files(run.path, every):
            run.callbacks += [RoleLogs(), *([] if self._start is None else [self._start])]
            worker_logger("learner").info("running in process %d", os.getpid())
            numbers = Counter(name.partition(" ")[0] for name in self._bundles)
            text = ", ".join(
                f"{number} {role}{'s' * (number > 1)}" for role, number in numbers.items()
            )
            run.say(f"{text} on {nodes()}")
            run.recorder.watch(lambda: [each.row() for each in every])
            self.restarts.changed = lambda: run.recorder.progress(run.monitor.step)
            for worker in every:
                worker.log.info("running in process %d", worker.pid())
            if others:
                alone = self._config.runtime.address is None
                host = LOOPBACK if alone else ray.util.get_node_ip_address()
                run.callbacks.append(LeadingRanks(run.policy, others, host, section.timeout))
            yield

    def _other_learners(self, run: Run) -> list[Worker]:
        """Start the learners other than this one."""
        size, make, spaces = self._config.runtime.num_learners, self._make, ShardInfo(run.parts.env)
        device = run.policy.device.type
        others = self._made(
            "learner", lambda number, _: Rank(make.policy(spaces, device), number, size),
            range(1, size),
        )  # fmt: skip
        start_all(others)
        return others

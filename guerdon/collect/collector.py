"""`Collector`: steps environments with a policy, and stores the transitions."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from guerdon.data import ReplayBuffer
from guerdon.data.batch import Batch, from_leaves
from guerdon.data.rollout import Rollout
from guerdon.envs import Step, VectorEnv
from guerdon.envs.checks import InvalidStepError, check_observations, in_range
from guerdon.envs.rows import reported_success
from guerdon.policy import Policy
from guerdon.reward import Reward

Watch = Callable[[dict[str, Any], Step, np.ndarray | None], None]

_NONE = np.zeros(0, np.int64)


@dataclass
class Collected:
    """Result of `Collector.collect`."""

    n_step: int = 0
    """Number of transitions."""
    returns: list[float] = field(default_factory=list)
    """Returns of the finished episodes, in the environment reward."""
    lengths: list[int] = field(default_factory=list)
    """Lengths of these episodes."""
    successes: list[bool] = field(default_factory=list)
    """Success of these episodes, if the environment reports it."""
    learned: list[float] = field(default_factory=list)
    """Returns of these episodes in the learned reward, if `evaluate` has one."""
    audit: Any = None
    """Predicted and true success of these episodes, if `evaluate` has a success model."""
    familiarity: dict[str, Any] = field(default_factory=dict)
    """Distance of their transitions to the data of each reward term, if `evaluate` has one."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Further metrics of collecting."""

    def merge(self, other: "Collected") -> None:
        """Add the episodes of another one."""
        self.n_step += other.n_step
        for name in ("returns", "lengths", "successes", "learned"):
            getattr(self, name).extend(getattr(other, name))
        if other.audit is not None:
            self.audit.merge(other.audit)
        for name, each in other.familiarity.items():
            self.familiarity[name].merge(each)

    @property
    def n_episode(self) -> int:
        """Number of finished episodes."""
        return len(self.returns)

    @property
    def success_rate(self) -> float | None:
        """Fraction of successful episodes, if the environment reports success."""
        return float(np.mean(self.successes)) if self.successes else None


class Collector:
    """Steps environments with a policy, and stores the transitions.

    Handles episode boundaries, autoreset, broken environments and episode returns.

    Args:
        policy: Policy; None for random actions.
        env: Vector environment.
        buffer: A `Rollout` or `ReplayBuffer` for the transitions; None keeps only returns and
            lengths, as for an evaluation.
        reward: Annotates new transitions, and may end episodes at a predicted success.
        seed: Random seed of the resets.
        store_info: Whether to store ``info`` with transitions.
        watch: Called after every step with the rows as they are stored, the step, and which rows
            are not transitions (None if all are).
    """

    def __init__(
        self,
        policy: Policy | None,
        env: VectorEnv,
        buffer: ReplayBuffer | Rollout | None = None,
        *,
        reward: Reward | None = None,
        seed: int | np.random.SeedSequence = 0,
        store_info: bool = False,
        watch: Watch | None = None,
    ) -> None:
        if not hasattr(env, "n_envs"):
            raise TypeError(
                f"a collector needs a vector environment, not a single {type(env).__name__}: "
                "make it with guerdon.envs.make_vec"
            )
        if buffer is not None and buffer.n_envs != env.n_envs:
            raise ValueError(
                f"the buffer is for {buffer.n_envs} environments, but there are {env.n_envs}: "
                f"make it with n_envs={env.n_envs}"
            )
        self.policy: Any = policy
        self.env = env
        self.buffer = buffer
        self.reward = reward
        self.store_info = store_info
        self.watch = watch
        self.annotated: tuple[Batch, np.ndarray] | None = None
        """Annotated transitions of the last `collect`; see `fresh`."""
        self._generator = np.random.default_rng(seed)
        self._everyone = np.arange(env.n_envs)
        self._returns = np.zeros(env.n_envs)
        self._lengths = np.zeros(env.n_envs, np.int64)
        self._obs: Any = None
        self._env_ids: np.ndarray | None = None
        self._state: Any = None
        self._sent = Batch()
        self._since: np.ndarray | None = None  # rows written before the last `collect`
        self._lengths_before = self._lengths  # lengths of the episodes then
        self._memory = reward.new_memory(env.n_envs) if reward is not None else {}

    def advance(self, env_steps: int, progress: float) -> None:
        """Note the progress of the run, for copies of the policy; see `Policy.advance`."""

    def reset(self) -> None:
        """Reset every environment with a new seed; open episodes are cut."""
        self.break_off()
        obs = self.env.reset(int(self._generator.integers(2**31)))
        self._check_observations(obs, self._everyone, "reset")
        self._obs = obs

    def break_off(self) -> None:
        """Cut open episodes; the next `collect` starts with a reset."""
        self._obs = None
        self._env_ids = None
        self._state = None
        self._returns[:] = 0.0
        self._lengths[:] = 0
        if self.buffer is not None:
            self.buffer.cut()
        if self.reward is not None:
            self._memory = self.reward.new_memory(self.env.n_envs)

    def collect(
        self, n_step: int | None = None, n_episode: int | None = None, random: bool = False
    ) -> Collected:
        """Collect at least `n_step` transitions, or exactly `n_episode` episodes.

        Episodes are divided among the environments beforehand: taking the first ones to end would
        favour short ones. All environments are reset, and an environment that has finished its
        share is ignored.

        Args:
            n_step: Number of transitions, over all environments.
            n_episode: Number of episodes, over all environments.
            random: Whether to sample actions from the action space instead of the policy.
        """
        if (n_step is None) == (n_episode is None):
            raise ValueError("collect() needs either n_step or n_episode")
        for name, amount in (("n_step", n_step), ("n_episode", n_episode)):
            if amount is not None and amount < 1:
                raise ValueError(f"{name} is {amount}, but has to be 1 or more")
        try:
            collected = self._collect(n_step or 0, n_episode, random)
        except InvalidStepError as error:
            error.locate(self.env.spec_id, self._lengths)
            raise
        except Exception:
            self._check_rollout()  # an observation may be the reason
            raise
        self._check_rollout()
        self._annotate()
        if n_episode is not None:
            self._obs = None
        return collected

    def _collect(self, n_step: int, n_episode: int | None, random: bool) -> Collected:
        if self._obs is None or n_episode is not None:
            self.reset()
        if self.buffer is not None:
            self._since = self.buffer.written
        self._lengths_before = self._lengths.copy()
        quota = self._shares(n_episode) if n_episode is not None else None
        collected = Collected()
        with torch.inference_mode():
            while quota.any() if quota is not None else collected.n_step < n_step:
                self._step(collected, quota, random)
        return collected

    def _check_rollout(self) -> None:
        """Check the observations of a new rollout, all at once."""
        buffer, space = self.buffer, self.env.observation_space
        if not isinstance(buffer, Rollout) or not buffer.cursors.any():
            return
        if all(in_range(space, buffer.field(name)) for name in ("obs", "obs_next")):
            return
        batch, _ = buffer.rollout(("obs", "obs_next", "terminated", "truncated"), self._since)
        lengths = self._lengths_before
        for row in batch.to_numpy():
            try:
                self._check_observations(row.obs, self._everyone, "reset")
                self._check_observations(row.obs_next, self._everyone, "step")
            except InvalidStepError as error:
                error.locate(self.env.spec_id, lengths)
                raise
            lengths = np.where(row.terminated | row.truncated, 0, lengths + row.mask)

    def _check_observations(self, obs: Any, ids: np.ndarray, method: str) -> None:
        space = self.env.observation_space
        if not in_range(space, obs):
            obs = obs.to_dict() if isinstance(obs, Batch) else obs
            check_observations(space, obs, ids, method)

    def _annotate(self) -> None:
        """Store the annotations of new transitions; drop transitions after a success."""
        if self.reward is None or self.buffer is None or not self._memory:
            return
        if not isinstance(self.buffer, Rollout):
            new = self.buffer.written - self._since
            if (new > self.buffer.capacity).any():
                raise ValueError(
                    f"the buffer has {self.buffer.capacity} steps per environment, fewer than the "
                    f"{new.max()} collected at once, so the reward cannot annotate whole episodes: "
                    "increase 'collect.buffer_size'"
                )
        fresh, rows = self.fresh(self.reward.collects)
        batch, self._memory = self.reward.annotate(fresh, self._memory)
        self.buffer.annotate(rows[fresh.mask], batch.annotations[fresh.mask].to_dict())
        after_success = fresh.mask & ~batch.mask
        if after_success.any():
            self.buffer.discard(rows[after_success])
        self.annotated = batch, rows

    def fresh(self, fields: tuple[str, ...]) -> tuple[Batch, np.ndarray]:
        """Return the transitions of the last `collect` as arrays [T, n_envs, ...] in time order.

        Args:
            fields: Fields to read, in addition to ``rew``, ``terminated`` and ``truncated``.

        Returns:
            The batch, with ``mask`` and ``first``, and the indices [T, n_envs].
        """
        if self.buffer is None:
            raise ValueError("this collector has no buffer, so there is nothing to read")
        names = tuple(dict.fromkeys(("rew", "terminated", "truncated", *fields)))
        batch, rows = self.buffer.rollout(names, since=self._since)
        return (batch if isinstance(batch.mask, np.ndarray) else batch.to_numpy()), rows

    def _shares(self, n_episode: int) -> np.ndarray:
        return n_episode // self.env.n_envs + (self._everyone < n_episode % self.env.n_envs)

    def _step(self, collected: Collected, quota: np.ndarray | None, random: bool) -> None:
        """Step every environment that is ready for an action."""
        batch = {"obs": self._obs}
        if self._env_ids is not None:
            batch["env_ids"] = self._env_ids
        given, state = from_leaves(batch), self._state_of(self._env_ids)
        if not random:
            output = self.policy(given, state)
        elif self.policy is None:
            output = Batch(act=self._random_actions())
        else:
            output = self.policy.random_output(given, self._random_actions(), state)
        rows = {"obs": self._obs, "act": output.act}
        if "policy" in output:
            rows["policy"] = output.policy
        if not self.env.synchronous:
            self._remember(rows)
        step = self.env.step(output.act, self._env_ids)
        if not self.env.synchronous:
            rows = self._recall(step.env_ids)
        if not isinstance(self.buffer, Rollout):  # see `_check_rollout`
            ids = self._everyone if step.env_ids is None else step.env_ids
            self._check_observations(step.obs_next, ids, "step")
            if step.obs is not step.obs_next:
                self._check_observations(step.obs, ids, "reset")
        ended = self._predicted_ends(step, quota)
        if len(ended):
            truncated = step.truncated.copy()
            truncated[ended] = True
            step = step._replace(truncated=truncated)
        self._record(step, rows, collected, quota)
        self._keep_state(output.get("state"), step)
        self._obs, self._env_ids = step.obs, step.env_ids
        if len(ended):
            self._obs = self.env.begin(ended, step.obs)

    def _random_actions(self) -> np.ndarray:
        number = self.env.n_envs if self._env_ids is None else len(self._env_ids)
        space = self.env.action_space
        return np.stack([np.asarray(space.sample()) for _ in range(number)])

    def _record(
        self, step: Step, rows: dict[str, Any], collected: Collected, quota: np.ndarray | None
    ) -> None:
        """Count and store the rows of a step that are transitions."""
        ids = self._everyone if step.env_ids is None else step.env_ids
        dummy, n_rows, rew = step.dummy, len(ids), step.rew
        done = step.terminated | step.truncated
        if step.broken is not None:
            self._drop_episodes(step.broken)
        if quota is not None:
            idle = quota[ids] <= 0
            dummy = idle if dummy is None else dummy | idle
        if dummy is not None:
            n_rows -= int(dummy.sum())
            rew, done = np.where(dummy, 0.0, rew), done & ~dummy
        collected.n_step += n_rows
        rows |= {
            "rew": step.rew,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "obs_next": step.obs_next,
        }
        if self.watch is not None:
            self.watch(rows, step, dummy)
        if step.env_ids is None and dummy is None:  # the usual case
            self._returns += rew
            self._lengths += 1
        else:
            self._returns[ids] += rew
            self._lengths[ids] += 1 if dummy is None else ~dummy
        if self.buffer is not None and n_rows:
            if self.store_info:
                rows["info"] = step.info
            # `ReplayBuffer.add` expects an environment axis only with env_ids.
            one_axis = step.env_ids is None and self.env.n_envs == 1
            self.buffer.add(
                rows, ids if one_axis else step.env_ids, None if dummy is None else ~dummy
            )
        if np.count_nonzero(done):  # much cheaper than any()
            self._finish(ids[done], done, step.info, collected)
            if quota is not None:
                quota[ids[done]] -= 1

    def _predicted_ends(self, step: Step, quota: np.ndarray | None) -> np.ndarray:
        """Return running environments whose episodes end at a predicted success."""
        if self.reward is None or not self.reward.ends_online:
            return _NONE
        done = step.terminated | step.truncated
        real = np.ones(self.env.n_envs, bool) if quota is None else quota > 0
        if step.dummy is not None:
            real = real & ~step.dummy
        ended = self.reward.ends(step.obs_next, done, real, self._memory)
        return np.flatnonzero(ended & real & ~done)

    def _finish(
        self, ended: np.ndarray, done: np.ndarray, info: dict[str, Any], collected: Collected
    ) -> None:
        collected.returns.extend(self._returns[ended].tolist())
        collected.lengths.extend(self._lengths[ended].tolist())
        self._returns[ended] = 0.0
        self._lengths[ended] = 0
        success = reported_success(info, len(done))[done]
        collected.successes.extend((success[~np.isnan(success)] != 0).tolist())

    def _drop_episodes(self, env_ids: np.ndarray) -> None:
        """Drop the open episodes of environments that were restarted."""
        lengths = self._lengths[env_ids]
        self._returns[env_ids] = 0.0
        self._lengths[env_ids] = 0
        if self.buffer is None:
            return
        for env, length in zip(env_ids, lengths, strict=True):
            if length:
                self.buffer.discard(self.buffer.newest_rows(int(env), int(length)))
        self.buffer.cut(env_ids)

    # --- asynchronous environments: inputs of a step are stored until its result arrives

    def _remember(self, rows: dict[str, Any]) -> None:
        sent = Batch(**rows)
        if self._env_ids is None:
            self._sent = copy.deepcopy(sent)
        else:
            self._sent[self._env_ids] = sent

    def _recall(self, env_ids: np.ndarray | None) -> dict[str, Any]:
        return dict((self._sent if env_ids is None else self._sent[env_ids]).items())

    # --- recurrent state: one row per environment, zero at the start of an episode

    def _state_of(self, env_ids: np.ndarray | None) -> Any:
        return self._state if env_ids is None or self._state is None else self._state[env_ids]

    def _keep_state(self, state: Any, step: Step) -> None:
        if state is not None:
            if self._state is None:
                self._state = state.new_zeros((self.env.n_envs, *state.shape[1:]))
            self._state[self._everyone if self._env_ids is None else self._env_ids] = state
        if self._state is None:
            return
        answered = self._everyone if step.env_ids is None else step.env_ids
        ends = step.terminated | step.truncated
        if step.dummy is not None:
            ends |= step.dummy
        self._state[answered[ends]] = 0

    # --- files

    def training_state(self) -> dict[str, Any]:
        """Return everything needed to resume after `break_off`."""
        return {"generator": self._generator.bit_generator.state}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Restore `training_state`."""
        self._generator.bit_generator.state = state["generator"]
        self.break_off()

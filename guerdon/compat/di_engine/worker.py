"""The loop of DI-engine's guide by hand: collect, sample, estimate, train.

policy, collector, replay_buffer, learner = create_workers((main_config, create_config), seed=0)
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from guerdon import config as configuration
from guerdon.compat.di_engine import items
from guerdon.compat.layouts import Source, sections, translated
from guerdon.data import Batch, ReplayBuffer
from guerdon.reward.transitions import from_items
from guerdon.training.parts import Parts, make_parts

Items = list[dict[str, Any]]
_FIELDS = ("obs", "act", "rew", "obs_next", "terminated")


class Workers(NamedTuple):
    """Result of `create_workers`."""

    policy: "PolicyModes"
    collector: "SerialCollector"
    replay_buffer: "SerialBuffer"
    learner: "SerialLearner"


def create_workers(source: Source, seed: int = 0, tb_logger: Any = None) -> Workers:
    """Make the parts of a loop from a config, whose reward is left to the loop.

    Args:
        source: See `serial_pipeline`; not a preset.
        seed: Random seed.
        tb_logger: TensorBoard writer of the learner.
    """
    values, changes = translated(sections(source))
    values.pop("reward", None)
    config = configuration.compose(values, [*changes, f"seed={seed}"])
    parts = make_parts(config)
    if parts.policy.segment_length > 1 or config.policy.get("prioritized"):
        parts.close()
        raise ValueError(
            "a loop by hand learns from single transitions, drawn uniformly: set 'nstep' to 1 and "
            "'priority' to false, or use serial_pipeline_reward_model_offpolicy"
        )
    modes = PolicyModes(parts.policy, config.learn.batch_size)
    learner = SerialLearner(modes, parts.buffer, config.learn.repeat, tb_logger)
    return Workers(modes, SerialCollector(parts, config), SerialBuffer(parts.buffer), learner)


class PolicyModes:
    """A policy with the three modes of DI-engine, which share their attributes."""

    def __init__(self, policy: Any, batch_size: int) -> None:
        self.policy = policy
        self.learn_mode = self.collect_mode = self.eval_mode = self
        cuda = policy.device.type == "cuda"
        self._attributes = {"device": str(policy.device), "cuda": cuda, "batch_size": batch_size}

    def get_attribute(self, name: str) -> Any:
        """Return ``device``, ``cuda`` or ``batch_size``."""
        return self._attributes[name]


class SerialCollector:
    """Collects lists of transitions, environment by environment; counts them as `envstep`."""

    def __init__(self, parts: Parts, config: configuration.GuerdonConfig) -> None:
        self._parts, self._amounts = parts, config.collect
        self._max_steps = config.run.max_steps
        self.envstep = 0

    def collect(
        self,
        n_sample: int | None = None,
        train_iter: int = 0,  # noqa: ARG002 - part of the interface
        policy_kwargs: Mapping[str, Any] | None = None,
    ) -> Items:
        """Collect transitions; they are in the replay buffer, too.

        Args:
            n_sample: Number of transitions; the config's by default.
            train_iter: Number of updates so far.
            policy_kwargs: ``eps``: probability of a random action, instead of the schedule's.
        """
        policy: Any = self._parts.policy
        if policy.on_policy:
            self._parts.buffer.reset()
        policy.advance(self.envstep, self.envstep / self._max_steps)
        policy.epsilon = (policy_kwargs or {}).get("eps", getattr(policy, "epsilon", 0.0))
        n_episode = self._amounts.n_episode if n_sample is None else None
        n_step = None if n_episode is not None else n_sample or self._amounts.n_step
        self.envstep += self._parts.collector.collect(n_step, n_episode).n_step
        rows, indices = self._parts.collector.fresh(_FIELDS)
        by_env = np.ascontiguousarray(rows.mask.T)
        return _items(rows.apply(lambda leaf: leaf.swapaxes(0, 1))[by_env], indices.T[by_env])

    def close(self) -> None:
        """Close the environments."""
        self._parts.close()


class SerialBuffer:
    """Samples lists of transitions from the collector's replay buffer."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def push(self, data: Items, cur_collector_envstep: int = -1) -> None:
        """Do nothing: the collector has stored its transitions."""

    def sample(self, batch_size: int, train_iter: int = 0) -> Items | None:  # noqa: ARG002
        """Return copies of transitions; None if there are fewer."""
        if not isinstance(self._buffer, ReplayBuffer):
            raise TypeError("an on-policy policy has no replay buffer: learn from collected data")
        enough = len(self._buffer) >= batch_size
        return _items(*self._buffer.sample(batch_size, fields=_FIELDS)) if enough else None

    def count(self) -> int:
        """Return the number of transitions."""
        return len(self._buffer)


class SerialLearner:
    """Learns from lists of transitions, with the rewards that they have."""

    def __init__(self, policy: PolicyModes, buffer: Any, repeat: int, tb_logger: Any) -> None:
        self.policy, self.train_iter = policy, 0
        self._buffer, self._repeat, self._tb_logger = buffer, repeat, tb_logger

    def train(self, data: Items, envstep: int = -1) -> dict[str, float]:
        """Update the policy, and return metrics.

        Args:
            data: Transitions of the replay buffer; or all of the last `collect`, on-policy.
            envstep: Number of transitions so far, for the log.
        """
        policy = self.policy.policy
        source = _Given(from_items(data), np.array([row["index"] for row in data]), self._buffer)
        if policy.on_policy:
            size = self.policy.get_attribute("batch_size")
            found = policy.update(size, source, repeat=self._repeat)
        else:
            found = policy.update(len(data), source)
        self.train_iter += 1
        metrics = {name: float(value) for name, value in found.items()}
        for name, value in metrics.items() if self._tb_logger is not None else ():
            self._tb_logger.add_scalar(f"learner_iter/{name}", value, self.train_iter)
            self._tb_logger.add_scalar(f"learner_step/{name}", value, envstep)
        return metrics


class _Given:
    """Given transitions in the place of a buffer that a policy reads."""

    def __init__(self, rows: Batch, indices: np.ndarray, buffer: Any) -> None:
        self._rows, self._indices, self._buffer = rows, indices, buffer

    def sample(self, *_: Any, **__: Any) -> tuple[Batch, np.ndarray]:
        return self._rows, self._indices

    def rollout(self, fields: Any = None) -> tuple[Batch, np.ndarray]:
        """Return the rollout that was collected, with the rewards of the transitions."""
        batch, rows = self._buffer.rollout(fields)
        rew = batch.rew.copy()
        rew.reshape(-1)[self._indices] = self._rows.rew
        return batch.replace(rew=rew), rows


def _items(rows: Batch, indices: np.ndarray) -> Items:
    """Return transitions as dictionaries, with their place in the buffer."""
    found = zip(items.from_batch(rows), indices.tolist(), strict=True)
    return [{**item, "index": index} for item, index in found]

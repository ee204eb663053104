"""The loop of DI-engine's guide by hand: collect, sample, estimate, train.

policy, collector, replay_buffer, learner = create_workers((main_config, create_config), seed=0)
"""

from typing import Any, NamedTuple

import numpy as np

from guerdon import config as configuration
from guerdon.compat.di_engine import items
from guerdon.compat.layouts import Source, sections, translated
from guerdon.config import sources
from guerdon.config.trust import code_of
from guerdon.data import Batch
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


def create_workers(source: Source, seed: int = 0) -> Workers:
    """Make the parts of a loop from a config (not a preset), whose reward is left to the loop."""
    with code_of(sources.run_dir_of(source)):
        values, changes = translated(sections(source))
        values.pop("reward", None)
        config = configuration.compose(values, [*changes, f"seed={seed}"])
        parts = make_parts(config)
    single = parts.policy.segment_length == 1 and not config.policy.get("prioritized")
    if parts.policy.on_policy or not single:
        parts.close()
        raise ValueError(
            "a loop by hand learns from single transitions, drawn uniformly: choose an off-policy "
            "policy, and set 'nstep' to 1 and 'priority' to false; or use serial_pipeline_reward_"
            "model_offpolicy or _onpolicy"
        )
    modes = PolicyModes(parts.policy, config.learn.batch_size)
    collector = SerialCollector(parts, config)
    return Workers(modes, collector, SerialBuffer(parts.buffer), SerialLearner(modes))


class PolicyModes:
    """A policy with the three modes of DI-engine, which share their attributes."""

    def __init__(self, policy: Any, batch_size: int) -> None:
        self.policy = policy
        self.learn_mode = self.collect_mode = self.eval_mode = self
        self._attributes = {"device": str(policy.device), "batch_size": batch_size}

    def get_attribute(self, name: str) -> Any:
        """Return ``device`` or ``batch_size``."""
        return self._attributes[name]


class SerialCollector:
    """Collects lists of transitions, environment by environment; counts them as `envstep`."""

    def __init__(self, parts: Parts, config: configuration.GuerdonConfig) -> None:
        self._parts, self._config, self.envstep = parts, config, 0

    def collect(self, train_iter: int = 0, policy_kwargs: Any = None) -> Items:  # noqa: ARG002
        """Collect as many transitions as the config says; they are in the replay buffer, too.

        ``policy_kwargs["eps"]`` is the probability of a random action, instead of the schedule's.
        """
        policy: Any = self._parts.policy
        policy.advance(self.envstep, self.envstep / self._config.run.max_steps)
        policy.epsilon = (policy_kwargs or {}).get("eps", getattr(policy, "epsilon", 0.0))
        amounts = self._config.collect
        self.envstep += self._parts.collector.collect(amounts.n_step, amounts.n_episode).n_step
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

    def sample(self, batch_size: int, train_iter: int = 0) -> Items | None:  # noqa: ARG002
        """Return copies of transitions; None if there are fewer."""
        enough = len(self._buffer) >= batch_size
        return _items(*self._buffer.sample(batch_size, fields=_FIELDS)) if enough else None


class SerialLearner:
    """Learns from lists of transitions, with the rewards that they have."""

    def __init__(self, policy: PolicyModes) -> None:
        self.policy, self.train_iter = policy, 0

    def train(self, data: Items, envstep: int = -1) -> dict[str, float]:  # noqa: ARG002
        """Update the policy with transitions of the replay buffer, and return metrics."""
        given = _Given(from_items(data), np.array([row["index"] for row in data]))
        self.train_iter += 1
        found = self.policy.policy.update(len(data), given)
        return {name: float(value) for name, value in found.items()}


class _Given(NamedTuple):
    """Given transitions in the place of a buffer that a policy samples."""

    rows: Batch
    indices: np.ndarray

    def sample(self, *_: Any, **__: Any) -> tuple[Batch, np.ndarray]:
        return self.rows, self.indices


def _items(rows: Batch, indices: np.ndarray) -> Items:
    """Return transitions as dictionaries, with their place in the buffer."""
    found = zip(items.from_batch(rows), indices.tolist(), strict=True)
    return [{**item, "index": index} for item, index in found]

"""`ngu`, never give up: https://arxiv.org/abs/2002.06038."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from guerdon.nn.optimizer import Optimizer
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.curiosity import Curiosity, CuriosityConfig, InverseModel, Moments
from guerdon.reward.history import in_columns, over
from guerdon.reward.inputs import tensors
from guerdon.reward.neighbors import EpisodicMemory
from guerdon.reward.rnd import Distillation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.data.batch import Batch

_WINDOW = 10_000
"""Transitions over which running means fade: errors fall and features drift as it learns."""


class NGUConfig(CuriosityConfig):
    """Options of `ngu`."""

    embedding_size: int = Field(default=32, ge=1)
    """Features of an observation, in which neighbours are found; and numbers that the lifelong
    part predicts. 16 to 128."""
    neighbors: int = Field(default=10, ge=1)
    """How many of the nearest points of the episode count; 5 to 20."""
    memory_size: int = Field(default=1000, ge=1)
    """Steps of an episode that it remembers at most, for each environment."""
    kernel_epsilon: float = Field(default=1e-3, gt=0)
    """How fast similarity falls with distance, the slower the larger; 1e-4 to 1e-2."""
    cluster_distance: float = Field(default=0.008, ge=0)
    """Points nearer than this are the same, in terms of the mean squared distance of neighbours."""
    constant: float = Field(default=0.001, gt=0)
    """Added to similarities, so that novelty is at most its inverse."""
    max_similarity: float = Field(default=8.0, gt=0)
    """What is more similar than this is not novel at all."""
    max_lifelong: float = Field(default=5.0, ge=1)
    """The largest factor that novelty over all episodes can have (L)."""


class Novelty(nn.Module):
    """Features in which neighbours are found, and a memory of all that was ever seen.

    Args:
        setting: Knows the spaces.
        config: Its options.
    """

    def __init__(self, setting: Setting, config: NGUConfig) -> None:
        super().__init__()
        self.inverse = InverseModel(setting, config.hidden, config.embedding_size)
        self.lifelong = Distillation(setting, config.hidden, config.embedding_size)
        normalizers = self.inverse.features.input.normalizers  # one set of statistics
        self.lifelong.target.input.normalizers = normalizers
        self.lifelong.predictor.input.normalizers = normalizers

    def learn(self, data: Any) -> tuple[Tensor, Metrics]:
        """The loss of both, which share nothing; and what can be said about it."""
        before, after = (self.inverse.encode(data[name]) for name in ("obs", "obs_next"))
        inverse, metrics = self.inverse.learn(before, after, data["act"])
        lifelong = self.lifelong(data).mean()
        loss = inverse + lifelong
        return loss, {"loss": loss.detach(), "lifelong_loss": lifelong.detach(), **metrics}


@register_reward_model("ngu")
class NGU(Curiosity):
    """A bonus for what is new in the episode, more of it for what is new in all episodes.

    `scan` says how new a step is in its episode; what was ever seen multiplies that on read, by 1
    to ``max_lifelong``.
    """

    Config = NGUConfig
    fields = ("obs", "act", "obs_next")
    episodic = True
    network: Novelty

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        self.episodes = EpisodicMemory(self.config.memory_size)
        self.errors = Moments(_WINDOW)
        """Of the lifelong part."""
        self.distances = Moments(_WINDOW * self.config.neighbors)
        """Squared, of neighbours."""
        # Distances and novelty that `scan` found, for `collect_data`, which comes after it.
        self._scanned: tuple[np.ndarray, np.ndarray] | None = None

    def build(self, setting: Setting) -> None:
        """Makes the networks."""
        config = self.config
        self.network = Novelty(setting, config).to(self.device)
        self.optimizers["network"] = Optimizer(
            self.network.parameters(), config.learning_rate, alone=True
        )

    # --- novelty

    def scan(self, data: Batch) -> np.ndarray:
        """How new each step is in its episode."""
        self.prepare(data)
        distances = self._nearest(data, self.episodes, np.asarray(data.mask), over(data))
        self._scanned = distances, self._novelty(distances)
        return self._scanned[1]

    @torch.no_grad()
    def _nearest(
        self, data: Batch, memory: EpisodicMemory, mask: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        rows = self.tensors(data)
        encode = self.network.inverse.encode
        points = (encode(rows[name]).numpy(force=True) for name in ("obs", "obs_next"))
        before, after = (x.reshape(*mask.shape, -1) for x in points)
        return memory.scan(before, after, mask, ends, self.config.neighbors)

    def _novelty(self, distances: np.ndarray) -> np.ndarray:
        """Of squared distances [..., k] to neighbours.

        What they are compared with stays the same through a rollout, so that no environment
        depends on another.
        """
        known = self.distances
        if not known.count:
            known = Moments(1)
            known.collect(_finite(distances))
        return episodic_novelty(distances, known.mean, self.config)

    def _alone(self, data: Batch) -> tuple[np.ndarray, np.ndarray]:
        """As `scan`, of transitions [T, ...] that nobody scanned, the first of which begin."""
        rollout = in_columns(data, self.fields)
        memory = EpisodicMemory(self.config.memory_size)
        distances = self._nearest(rollout, memory, rollout.mask, over(rollout))
        return distances, self._novelty(distances)

    def lifelong(self, rows: dict[str, Any]) -> Tensor:
        """The factor [...], 1 to ``max_lifelong``, for how new transitions are in all episodes."""
        return self._factor(self.network.lifelong(rows))

    def _factor(self, error: Tensor) -> Tensor:
        factor = 1 + (error - self.errors.mean) / self.errors.std
        return factor.clamp(1.0, self.config.max_lifelong)

    # --- the contract

    @torch.no_grad()
    def score(self, data: Batch) -> Any:
        """Both kinds of novelty, multiplied."""
        self.prepare(data)
        if not self.warm:
            return 0.0
        novelty = data.scanned if "scanned" in data else self._alone(data)[1]
        factor = self.lifelong(self.tensors(data)) * self.scale
        return tensors(novelty, factor.device).reshape(factor.shape) * factor

    def collect_data(self, data: Any) -> None:
        """See `Curiosity`."""
        super().collect_data(data)
        self._scanned = None

    def observe(self, rows: dict[str, Any]) -> None:
        """See `Curiosity`."""
        self.network.inverse.update(rows)

    def fresh(self, data: Batch, rows: dict[str, Any], mask: np.ndarray) -> np.ndarray:
        """See `Curiosity`; takes errors and distances into their running means, too."""
        distances, novelty = self._alone(data) if self._scanned is None else self._scanned
        self.distances.collect(_finite(distances[mask]))
        error = self.network.lifelong(rows)
        self.errors.collect(error.numpy(force=True))
        bonus: np.ndarray = novelty[mask] * self._factor(error).numpy(force=True)
        return bonus

    def step(self) -> Metrics:
        """One step of both parts."""
        loss, metrics = self.network.learn(self.sample(self.rows))
        self.optimizers["network"].step(loss)
        return metrics

    def break_off(self, env_ids: np.ndarray | None = None) -> None:
        """See `RewardModel`."""
        self.episodes.clear(env_ids)

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """See `RewardModel`."""
        state = super().state_dict()
        return state and state | {
            "episodes": self.episodes.state_dict(),
            "errors": self.errors.state_dict(),
            "distances": self.distances.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        super().load_state_dict(state)
        if state:
            self.episodes.load_state_dict(state["episodes"])
            self.errors.load_state_dict(state["errors"])
            self.distances.load_state_dict(state["distances"])


def episodic_novelty(distances: np.ndarray, mean: float, config: NGUConfig) -> np.ndarray:
    """Novelty [...] from squared distances [..., k] to neighbours: algorithm 1 of the paper.

    Args:
        distances: Infinite where there is no neighbour.
        mean: What they are on average.
        config: The options.
    """
    apart = np.maximum(distances / max(mean, 1e-12) - config.cluster_distance, 0.0)
    kernel = config.kernel_epsilon / (apart + config.kernel_epsilon)
    similarity = np.sqrt(kernel.sum(-1)) + config.constant
    novelty: np.ndarray = np.where(similarity > config.max_similarity, 0.0, 1.0 / similarity)
    return novelty.astype(np.float32)


def _finite(values: np.ndarray) -> np.ndarray:
    finite: np.ndarray = values[np.isfinite(values)]
    return finite

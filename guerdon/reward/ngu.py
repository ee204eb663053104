"""`ngu`, never give up: https://arxiv.org/abs/2002.06038."""

import math
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from guerdon.data.batch import Batch
from guerdon.data.leaves import to_device
from guerdon.extras import compiled
from guerdon.reward.base import EpisodeRewardModel, Metrics, Setting, register_reward_model
from guerdon.reward.icm import InverseModel
from guerdon.reward.novelty import NoveltyConfig, NoveltyNetwork, NoveltyReward
from guerdon.reward.rnd import Distillation
from guerdon.reward.scaling import RunningMoments

WINDOW = 10_000  # window of the running moments: errors and features change
EpisodePoints = tuple[np.ndarray, np.ndarray]
"""Points of running episodes and their number; see `nearest`."""


class NGUConfig(NoveltyConfig):
    """Options of `ngu`."""

    embedding_size: int = Field(default=32, ge=1)
    """Number of features of an observation, and size of the embedding for lifelong novelty; usually
    16 to 128."""
    neighbors: int = Field(default=10, ge=1)
    """Number of nearest neighbours in the episode; usually 5 to 20."""
    memory_size: int = Field(default=1000, ge=1)
    """Maximum number of steps of an episode that are stored per environment."""
    kernel_epsilon: float = Field(default=1e-3, gt=0)
    """Kernel constant: if larger, similarity falls more slowly with distance; usually 1e-4 to
    1e-2."""
    cluster_distance: float = Field(default=0.008, ge=0)
    """Distance below which points count as equal, relative to the mean squared distance of
    neighbours."""
    constant: float = Field(default=0.001, gt=0)
    """Added to similarities; limits novelty to its inverse."""
    max_similarity: float = Field(default=8.0, gt=0)
    """Similarity above which novelty is 0."""
    max_lifelong: float = Field(default=5.0, ge=1)
    """Maximum factor of the lifelong novelty (L)."""


class NGUNetwork(NoveltyNetwork):
    """Features for distances within an episode, and a lifelong prediction error."""

    def __init__(self, setting: Setting, config: NGUConfig) -> None:
        super().__init__()
        self.inverse = InverseModel(setting, config.hidden, config.embedding_size)
        self.lifelong = Distillation(setting, config)
        for features in (self.lifelong.target, self.lifelong.predictor):  # shared statistics
            features.input.normalizers = self.inverse.features.input.normalizers

    def forward(self, rows: Any) -> Tensor:
        """Return the lifelong prediction errors [...]."""
        return self.lifelong(rows)

    def loss(self, rows: Batch) -> tuple[Tensor, Metrics]:
        """See `NoveltyNetwork`."""
        before, after = self.inverse(rows["obs"]), self.inverse(rows["obs_next"])
        inverse, metrics = self.inverse.loss(before, after, rows["act"])
        lifelong = self.lifelong(rows).mean()
        return inverse + lifelong, {"lifelong_loss": lifelong.detach(), **metrics}


@register_reward_model("ngu")
class NGU(NoveltyReward, EpisodeRewardModel):
    """Bonus for steps that are new in their episode, times their lifelong novelty.

    The first is the annotation ``novelty``; `score` computes the second.

    Attributes:
        errors: Moments of the lifelong prediction errors.
        distances: Moments of the squared distances of neighbours.
    """

    Config = NGUConfig
    fields = ("obs_next",)
    reads = collects = ("obs", "act", "obs_next")
    annotations = ("novelty",)
    Network = NGUNetwork
    network: NGUNetwork
    saved = (*NoveltyReward.saved, "errors", "distances")

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        self.errors = RunningMoments()
        self.distances = RunningMoments()

    def new_memory(self, n_envs: int) -> EpisodePoints:
        """See `EpisodeRewardModel`."""
        shape = n_envs, self.config.memory_size, self.config.embedding_size
        return np.zeros(shape, np.float32), np.zeros(n_envs, np.int64)

    @torch.no_grad()
    def annotate(
        self, batch: Batch, memory: EpisodePoints
    ) -> tuple[dict[str, np.ndarray], EpisodePoints]:
        """Return the episodic novelty of steps, and the distances for it."""
        read = Batch(obs=batch.obs, obs_next=batch.obs_next).to_device(self.device)
        before = self.network.inverse(read.obs).numpy(force=True)
        after = self.network.inverse(read.obs_next).numpy(force=True)
        # Another memory layout would trigger a new compilation.
        mask, first = np.ascontiguousarray(batch.mask), np.ascontiguousarray(batch.first)
        points, count = memory
        if not (before.shape[:2] == mask.shape == first.shape) or not (
            (*points.shape[::2], *count.shape) == (*before.shape[1:], before.shape[1])
        ):  # a compiled loop relies on it
            raise ValueError("the memory of ngu is of other environments or another embedding")
        distances = nearest(before, after, mask, first, *memory, self.config.neighbors)
        known = self.distances if self.distances.count else RunningMoments()
        if not known.count:
            known.update(distances[np.isfinite(distances)], WINDOW)
        novelty = episodic_novelty(distances, known.mean, self.config)
        return {"novelty": novelty, "distances": distances}, memory

    def bonus(self, error: Tensor, batch: Batch, scale: float = 1.0) -> Tensor:
        """See `NoveltyReward`; episodic times lifelong novelty."""
        novelty: Tensor = to_device(batch.novelty, error.device)
        moments = self.errors
        std = max(math.sqrt(moments.variance), 1e-6 * abs(moments.mean), 1e-12)
        lifelong = 1 + (error - moments.mean) / std
        return novelty * (lifelong.clamp(1.0, self.config.max_lifelong) * scale)

    def update_statistics(self, error: Tensor, batch: Batch) -> None:
        """See `NoveltyReward`."""
        distances = batch.distances[np.isfinite(batch.distances)]
        self.distances.update(distances, WINDOW * self.config.neighbors)
        self.errors.update(error.numpy(force=True), WINDOW)


def episodic_novelty(distances: np.ndarray, mean: float, config: NGUConfig) -> np.ndarray:
    """Novelty [...] from squared distances [..., k] to neighbours: algorithm 1 of the paper."""
    apart = np.maximum(distances / max(mean, 1e-12) - config.cluster_distance, 0.0)
    kernel = config.kernel_epsilon / (apart + config.kernel_epsilon)
    similarity = np.sqrt(kernel.sum(-1)) + config.constant
    novelty: np.ndarray = np.where(similarity > config.max_similarity, 0.0, 1.0 / similarity)
    return novelty.astype(np.float32)


# Reassociation allows vectorised sums; infinities are kept.
@compiled(fastmath={"reassoc", "contract"})
def nearest(
    before: np.ndarray,
    after: np.ndarray,
    mask: np.ndarray,
    first: np.ndarray,
    points: np.ndarray,
    count: np.ndarray,
    k: int,
) -> np.ndarray:
    """Compare the end of each step with the starts of it and earlier steps of its episode.

    Args:
        before: Points where steps start [T, n_envs, n_features].
        after: Points where steps end.
        mask: Which rows are transitions [T, n_envs].
        first: Which rows begin an episode [T, n_envs].
        points: Newest points of the running episodes [n_envs, size, n_features]; changed.
        count: Number of points since the episodes began [n_envs]; changed.
        k: Number of neighbours.

    Returns:
        Squared distances [T, n_envs, k] to the nearest points, ascending; infinite if missing.
    """
    n_steps, n_envs, n_features = after.shape
    size = points.shape[1]
    found = np.full((n_steps, n_envs, k), np.inf, np.float32)
    for env in range(n_envs):
        for step in range(n_steps):
            if first[step, env]:
                count[env] = 0
            if not mask[step, env]:
                continue
            points[env, count[env] % size] = before[step, env]
            count[env] += 1
            neighbors = found[step, env]
            for index in range(min(count[env], size)):
                distance = np.float32(0.0)
                for feature in range(n_features):
                    gap = after[step, env, feature] - points[env, index, feature]
                    distance += gap * gap
                place = k
                while place > 0 and distance < neighbors[place - 1]:
                    place -= 1
                    if place + 1 < k:
                        neighbors[place + 1] = neighbors[place]
                if place < k:
                    neighbors[place] = distance
    return found

"""Primal Wasserstein imitation learning (PWIL): https://arxiv.org/abs/2006.04678."""

import itertools
import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from pydantic import Field

from guerdon.data.batch import Batch
from guerdon.extras import compiled
from guerdon.reward.base import (
    EpisodeRewardModel,
    Setting,
    check_requirements,
    register_reward_model,
)
from guerdon.reward.inputs import TransitionInput
from guerdon.reward.ood import Reference
from guerdon.reward.trained import ExpertConfig, ExpertReward, draw_rows

CHUNK = 2**20  # maximum number of distances in memory
_EPISODES = 10  # demonstrated ones whose rewards are computed


class PWILConfig(ExpertConfig):
    """Options of `pwil`."""

    subsample: int = Field(default=10, ge=1)
    """Use every n-th transition of a demonstrated episode, from a random start that is the same in
    every run; usually 1 to 20."""
    sample_size: int | None = Field(default=None, ge=1)
    """Number of transitions drawn from these; null for all."""
    alpha: float = Field(default=5.0, gt=0)
    """Reward of a step that equals a demonstrated one; usually 5."""
    beta: float = Field(default=5.0, gt=0)
    """Decay of the reward with the distance; usually 1 to 10."""
    prefill: int = Field(default=0, ge=0)
    """Demonstrated transitions that the replay buffer of an off-policy policy starts with, with
    their own rewards; 50,000 in the paper, where they are repeated."""
    horizon: int | None = Field(default=None, ge=1)
    """Maximum length of an episode; by default the environment's limit."""


@register_reward_model("pwil")
class PWIL(ExpertReward, EpisodeRewardModel):
    """Rewards an episode by its greedy coupling with the demonstrations.

    The demonstrations are atoms of total weight 1, and so are the `horizon` steps of an episode.
    Each step uses up its weight from the nearest remaining atoms, and its reward decreases with
    their distance. When no atom remains, the rest of the episode has reward 0.

    Attributes:
        atoms: Demonstrated (obs, act) [N, size], in standard deviations of the demonstrations.
        horizon: Maximum length of an episode.
        mean: Mean of the demonstrations [size].
        spread: Their standard deviation [size].
    """

    Config = PWILConfig
    requires = frozenset({"demonstrations", "vectors", "horizon"})
    reads = ("obs", "act")
    annotations = ("coupling",)
    saved = ("atoms", "mean", "spread", "reference")

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        check_requirements(self.name, ["horizon"], self.setting, self.config)
        self.horizon: Any = self.config.horizon or self.setting.horizon
        self._episodes: list[Batch] = []
        self._input = TransitionInput(self.setting, self.reads, clip=math.inf)
        self.reference = Reference()
        self.atoms = np.zeros((0, self._input.size))
        self.mean, self.spread = np.zeros(self._input.size), np.ones(self._input.size)

    @classmethod
    def requirements(cls, config: Any) -> frozenset[str]:
        """See `RewardModel`."""
        return cls.requires | ({"replay"} if config.prefill else set())

    def load_expert_data(self, demonstrations: Any = None) -> None:
        """See `ExpertReward`; whole episodes are for `prefill`, and for the rewards of experts."""
        super().load_expert_data(demonstrations)
        whole = self.demonstrations
        if whole is None or self.config.subsample > 1:
            whole = self.config.model_copy(update={"subsample": 1}).load(demonstrations)
        self._episodes = whole.episodes if self.config.prefill else []
        if len(self.reference):
            rewards = [
                np.zeros(1),
                *map(self._rewards, whole.episodes[:_EPISODES]),
            ]  # 0 is the lowest
            self.reference.rewards = torch.from_numpy(np.concatenate(rewards)).float().sort()[0]

    def _rewards(self, episode: Batch) -> np.ndarray:
        """Return the rewards [T] of an episode."""
        time = np.arange(len(episode))[:, None]
        steps = Batch({name: episode[name] for name in self.reads})[:, None]
        steps = steps.replace(mask=time >= 0, first=time == 0)
        return self.annotate(steps, self.new_memory(1))[0]["coupling"][:, 0]

    def prefill(self) -> list[Batch]:
        """Return whole demonstrated episodes, repeated."""
        found, missing = [], self.config.prefill
        for episode in itertools.cycle(self._episodes):
            if missing <= 0:
                break
            found.append(episode)
            missing -= len(episode)
        return found

    @property
    def fitted(self) -> bool:
        """See `RewardModel`."""
        return len(self.atoms) > 0

    def take_demonstrations(self, rows: Batch) -> None:
        """See `ExpertReward`."""
        vectors = self._vectors(rows)
        self.mean, self.spread = vectors.mean(0), vectors.std(0)
        # The scale of a constant number is unknown.
        self.spread[self.spread <= 1e-6 * np.maximum(1.0, np.abs(vectors).max(0))] = 1.0
        generator = np.random.default_rng(self.setting.seed)
        kept = draw_rows(np.arange(len(vectors)), self.config.sample_size, generator)
        self.atoms = self._scaled(vectors[kept])

    def score(self, batch: Batch) -> torch.Tensor:
        """Return the rewards of `annotate`."""
        return cast("torch.Tensor", batch.coupling)

    def new_memory(self, n_envs: int) -> np.ndarray:
        """Return the remaining units of each atom [n_envs, N]: `horizon` at first, N per step."""
        return np.full((n_envs, len(self.atoms)), self.horizon, np.int64)

    def annotate(
        self, batch: Batch, memory: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Couple the steps of a rollout with the remaining atoms."""
        if not self.fitted:
            raise ValueError("pwil has no demonstrations yet: call load_expert_data() first")
        mask, first = np.asarray(batch.mask), np.asarray(batch.first)
        vectors, left = self._scaled(self._vectors(batch)), memory.copy()
        if left.shape != (mask.shape[1], len(self.atoms)) or not (
            first.shape == mask.shape == vectors.shape[:2]
        ):  # a compiled loop relies on it
            raise ValueError("the memory of pwil is of other environments or demonstrations")
        cost = np.full(mask.shape, math.inf)
        n_steps = max(1, CHUNK // max(1, left.size))
        for start in range(0, len(mask), n_steps):
            now = slice(start, start + n_steps)
            squares = vectors[now] @ (-2.0 * self.atoms.T)
            squares += np.square(vectors[now]).sum(-1)[..., None]
            squares += np.square(self.atoms).sum(-1)
            take_nearest(squares, mask[now], first[now], left, self.horizon, cost[now])
        decay = self.config.beta * self.horizon / math.sqrt(self._input.size)
        rewards = self.config.alpha * np.exp(-decay * cost)
        return {"coupling": rewards.astype(np.float32)}, left

    def _vectors(self, batch: Batch) -> np.ndarray:
        """Return (obs, act) as vectors [..., size], categories one-hot."""
        rows = Batch({name: batch[name] for name in self.reads}).to_device(torch.device("cpu"))
        return self._input(rows).double().numpy()

    def _scaled(self, vectors: np.ndarray) -> np.ndarray:
        return np.asarray((vectors - self.mean) / self.spread)

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        size = state["atoms"].shape[1]
        if size != self._input.size:
            raise ValueError(
                f"size mismatch of pwil: a step of the saved demonstrations has {size} numbers, "
                f"but a step of this environment has {self._input.size}"
            )
        super().load_training_state(state)


@compiled()
def take_nearest(
    squares: np.ndarray,
    mask: np.ndarray,
    first: np.ndarray,
    left: np.ndarray,
    horizon: int,
    cost: np.ndarray,
) -> None:
    """Couple each step with the nearest remaining atoms.

    Args:
        squares: Squared distances [T, B, N].
        mask: Which steps [T, B] are transitions.
        first: Which steps [T, B] begin an episode.
        left: Remaining units of each atom [B, N]; changed.
        horizon: Units of an atom; a step uses N.
        cost: Weight times distance of each step's atoms [T, B]; written if enough units remain.
    """
    n_steps, n_envs, n_atoms = squares.shape
    for env in range(n_envs):
        for step in range(n_steps):
            if first[step, env]:
                left[env] = horizon
            if not mask[step, env]:
                continue
            need, total = n_atoms, 0.0
            while need > 0:
                nearest, square = -1, np.inf
                for atom in range(n_atoms):
                    if left[env, atom] > 0 and squares[step, env, atom] < square:
                        nearest, square = atom, squares[step, env, atom]
                if nearest < 0:
                    break
                taken = min(need, left[env, nearest])
                left[env, nearest] -= taken
                need -= taken
                total += taken * math.sqrt(max(square, 0.0))
            if need == 0:
                cost[step, env] = total / (n_atoms * horizon)

"""PWIL: the steps of an episode are matched with demonstrated ones, the nearest that are left.

https://arxiv.org/abs/2006.04678.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from pydantic import Field

from guerdon.reward.base import RewardModel, Setting, register_reward_model
from guerdon.reward.experts import ExpertConfig, check_experts, draw_rows, read_experts
from guerdon.reward.history import in_columns, over
from guerdon.reward.inputs import TransitionInput, refuse_images, tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.data.batch import Batch
    from guerdon.data.demonstrations import Demonstrations

CHUNK = 2**20
"""Distances that are held at a time."""


class PWILConfig(ExpertConfig):
    """Options of `pwil`."""

    subsample: int = Field(default=10, ge=1)
    """Of each demonstrated episode every so many-th transition is taken, from a random one on;
    1 to 20."""
    sample_size: int | None = Field(default=None, ge=1)
    """Transitions that are then drawn from these; None takes all."""
    alpha: float = Field(default=5.0, gt=0)
    """What a step is worth that meets the demonstrations exactly."""
    beta: float = Field(default=5.0, gt=0)
    """How fast that falls with the distance; 1 to 10."""
    horizon: int | None = Field(default=None, ge=1)
    """Steps of an episode; the environment's limit, where left out."""


@register_reward_model("pwil")
class PWIL(RewardModel):
    """Rewards an episode for how cheaply it can be moved onto the demonstrations.

    The demonstrations are atoms that weigh 1 together, and so do the `horizon` steps of an
    episode. Each step takes its weight from the nearest atoms that are left, and is worth less the
    farther away they were. When nothing is left, the rest of the episode is worth 0.

    Attributes:
        atoms: Demonstrated states and actions [N, size], in units of the experts' spread.
    """

    Config = PWILConfig
    fields = ("obs", "act")
    imitates = True
    episodic = True
    setting: Setting | None = None
    demonstrations: Demonstrations | None = None

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        self.atoms = np.zeros((0, 0))
        self._mean, self._spread = np.zeros(0), np.ones(0)
        # What is left of each atom, by environment. An atom has `horizon` units and a step takes
        # N, so that the weights 1 / N and 1 / horizon are whole numbers and nothing is rounded.
        self._left = np.zeros((0, 0), np.int64)

    def setup(self, setting: Setting) -> None:
        """See `RewardModel`."""
        refuse_images("pwil", setting)
        horizon = self.config.horizon or setting.horizon
        if horizon is None:
            raise ValueError(
                "pwil needs to know how long an episode can be: set 'horizon' in the reward's "
                "options, or 'env.max_episode_steps'"
            )
        self.setting = setting
        self.horizon = int(horizon)
        self._input = TransitionInput(setting, self.fields, clip=math.inf)

    def load_expert_data(self, data: Any = None) -> None:
        """Takes demonstrations.

        Args:
            data: The demonstrations, or what `guerdon.data.load_demonstrations` reads; what
                ``expert_data_path`` names by default.
        """
        self.demonstrations = read_experts(self, data)
        rows = self.demonstrations.transitions()
        if self.setting is None:
            self.setup(Setting.of(rows, self.demonstrations))
        assert self.setting is not None
        rows = check_experts(self.setting, rows)
        vectors = self._vectors(rows)
        self._mean, self._spread = vectors.mean(0), _spread(vectors)
        self.atoms = self._scaled(vectors[self._chosen(self.demonstrations.lengths)])
        self._left = self._untouched(0)

    def _chosen(self, lengths: np.ndarray) -> np.ndarray:
        """The demonstrated rows that become atoms."""
        assert self.setting is not None
        generator = np.random.default_rng(self.setting.seed)
        step, size = self.config.subsample, self.config.sample_size
        first = generator.integers(np.minimum(step, lengths))
        starts = np.cumsum(lengths) - lengths
        parts = zip(starts + first, starts + lengths, strict=True)
        rows = np.concatenate([np.arange(start, stop, step) for start, stop in parts])
        return draw_rows(rows, size, generator)

    # --- what transitions are worth

    def score(self, data: Batch) -> Any:
        """What `scan` said; without it, the rows [T, ...] are taken for episodes from the start."""
        if "scanned" in data:
            return data.scanned
        rollout = in_columns(data, self.fields)
        vectors, mask = self._vectors(rollout), rollout.mask
        found = self._match(vectors, mask, over(rollout), self._untouched(mask.shape[1]))
        return found.reshape(data.rew.shape)

    def scan(self, data: Batch) -> np.ndarray:
        """Matches the steps of a fresh rollout with what earlier ones have left."""
        mask = np.asarray(data.mask)
        if len(self._left) != mask.shape[1]:
            self._left = self._untouched(mask.shape[1])
        return self._match(self._vectors(data), mask, over(data), self._left)

    def _match(
        self, vectors: np.ndarray, mask: np.ndarray, ends: np.ndarray, left: np.ndarray
    ) -> np.ndarray:
        """What steps [T, B, size] are worth; they take from `left`."""
        if not len(self.atoms):
            raise ValueError("pwil has no demonstrations yet: call load_expert_data() first")
        size = self.atoms.shape[1]
        cost = np.full(mask.shape, math.inf)
        n_steps = max(1, CHUNK // max(1, left.size))
        for start in range(0, len(mask), n_steps):
            now = slice(start, start + n_steps)
            squares = _squares(self._scaled(vectors[now]), self.atoms)
            take_nearest(squares, mask[now], ends[now], left, self.horizon, cost[now])
        worth = np.exp(-self.config.beta * self.horizon / math.sqrt(size) * cost)
        rewards: np.ndarray = self.config.alpha * worth
        return rewards.astype(np.float32)

    def break_off(self, env_ids: np.ndarray | None = None) -> None:
        """The next steps of some environments (None: all) begin episodes."""
        if len(self._left):
            self._left[slice(None) if env_ids is None else env_ids] = self.horizon

    def _untouched(self, n_envs: int) -> np.ndarray:
        return np.full((n_envs, len(self.atoms)), self.horizon, np.int64)

    def _vectors(self, data: Batch) -> np.ndarray:
        """States and actions [..., size] as they are, categories one-hot."""
        if self.setting is None:
            raise ValueError("pwil has no demonstrations yet: call load_expert_data() first")
        parts = {name: tensors(data[name], "cpu") for name in self.fields}
        vectors: np.ndarray = self._input(parts).double().numpy()
        return vectors

    def _scaled(self, vectors: np.ndarray) -> np.ndarray:
        scaled: np.ndarray = (vectors - self._mean) / self._spread
        return scaled

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """See `RewardModel`."""
        if not len(self.atoms):
            return {}
        return {
            "atoms": self.atoms.copy(),
            "mean": self._mean.copy(),
            "spread": self._spread.copy(),
            "left": self._left.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        if not state:
            return
        atoms = np.array(state["atoms"])
        if self.setting is not None and atoms.shape[1] != self._input.size:
            raise ValueError(
                f"size mismatch of pwil: the saved demonstrations have {atoms.shape[1]} numbers a "
                f"step, and a step of this environment has {self._input.size}"
            )
        self.atoms = atoms
        self._mean, self._spread = np.array(state["mean"]), np.array(state["spread"])
        self._left = np.array(state["left"])


def _spread(vectors: np.ndarray) -> np.ndarray:
    """Standard deviations; 1 where a number is always the same, which says nothing of its scale."""
    spread = vectors.std(0)
    constant = spread <= 1e-6 * np.maximum(1.0, np.abs(vectors).max(0))
    return np.where(constant, 1.0, spread)


def _squares(vectors: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    """Squared distances [T, B, N] of vectors [T, B, size] and atoms [N, size]."""
    squares: np.ndarray = vectors @ (-2.0 * atoms.T)
    squares += np.square(vectors).sum(-1)[..., None]
    squares += np.square(atoms).sum(-1)
    return squares


@njit(cache=True)
def take_nearest(
    squares: np.ndarray,
    mask: np.ndarray,
    ends: np.ndarray,
    left: np.ndarray,
    horizon: int,
    cost: np.ndarray,
) -> None:
    """Lets each step take its weight from the nearest atoms.

    Args:
        squares: Squared distances [T, B, N].
        mask: Which steps [T, B] are real.
        ends: Where episodes end [T, B].
        left: Units of each atom that are left [B, N]; changed.
        horizon: Units of an atom; a step takes N.
        cost: Weight times distance of what each step took [T, B]; written where a step is real and
            enough is left.
    """
    n_steps, n_envs, n_atoms = squares.shape
    for env in range(n_envs):
        for step in range(n_steps):
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
            if ends[step, env]:
                left[env] = horizon

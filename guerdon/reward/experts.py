"""What reward models that learn from demonstrations have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guerdon.data.demonstrations import Demonstrations
from guerdon.data.loading import load_demonstrations
from guerdon.data.spaces import as_rows, check_rows
from guerdon.reward.base import RewardConfig, RewardModel, Setting

if TYPE_CHECKING:
    import numpy as np

    from guerdon.data.batch import Batch


class ExpertConfig(RewardConfig):
    """What every reward model that learns from demonstrations can be told."""

    expert_data_path: str | None = None
    """Demonstrations: a folder that `guerdon collect` wrote, ``minari:<dataset id>``, a ``.pkl``
    file, ``zoo:<name>`` for those that come with guerdon, or ``expert:<preset>``, optionally with
    ``?episodes=10&return=475``, for those of a policy that is trained once and kept."""


def read_experts(model: RewardModel, data: Any = None) -> Demonstrations:
    """The demonstrations of a model.

    Args:
        model: Has ``expert_data_path`` among its options.
        data: Demonstrations to take instead, or what `guerdon.data.load_demonstrations` reads.
    """
    source = model.config.expert_data_path if data is None else data
    if source is None:
        raise ValueError(
            f"{model.config.type or type(model).__name__} learns from demonstrations: name them in "
            "'expert_data_path'"
        )
    return source if isinstance(source, Demonstrations) else load_demonstrations(source)


def check_experts(setting: Setting, rows: Batch) -> Batch:
    """Holds demonstrated transitions against the spaces of a run.

    Returns:
        The transitions in the dtypes of these spaces.
    """
    spaces = {
        "obs": setting.observation_space,
        "obs_next": setting.observation_space,
        "act": setting.action_space,
    }
    for name, space in spaces.items():
        check_rows(space, rows[name], f"{name} of the demonstrations", "same_kind")
    return rows.replace(**{name: as_rows(space, rows[name]) for name, space in spaces.items()})


def draw_rows(rows: np.ndarray, size: int | None, generator: np.random.Generator) -> np.ndarray:
    """So many of some rows, each at most once; all of them if that is None, or more than all."""
    if size is None or size >= len(rows):
        return rows
    drawn: np.ndarray = generator.choice(rows, size, replace=False)
    return drawn

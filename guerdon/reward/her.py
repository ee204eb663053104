"""Hindsight experience replay (HER): https://arxiv.org/abs/1707.01495."""

from collections.abc import Callable  # needed at run time by pydantic
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field

from guerdon.data import Batch, ReplayBuffer
from guerdon.data.leaves import to_numpy
from guerdon.reward.base import (
    ReplayTransform,
    RewardConfig,
    RewardModel,
    Setting,
    register_reward_model,
)
from guerdon.reward.controls import load_function

GoalFunction = Callable[[np.ndarray, np.ndarray, Any], Any]


class HERConfig(RewardConfig):
    """Options of `her`."""

    strategy: Literal["future", "final", "episode"] = "future"
    """New goals: achieved after the transition, at the end of its episode, or anywhere in it."""
    ratio: float = Field(default=0.8, ge=0, le=1)
    """Fraction of transitions that are relabelled; 0.8 in the paper."""
    reward_function: str | GoalFunction | None = None
    """Function, or ``package.module:name``, from arrays of achieved goals, desired goals and an
    info to rewards; the environment's ``compute_reward`` by default."""


@register_reward_model("her")
class HER(RewardModel, ReplayTransform):
    """Environment reward; relabelled transitions get the reward of the new goal.

    Observations have ``achieved_goal`` and ``desired_goal``, as in Gymnasium-Robotics, and the
    environment ``compute_reward`` and optionally ``compute_terminated``. A segment has one goal.
    """

    Config = HERConfig
    fields = ("obs", "obs_next", "terminated")
    requires = frozenset({"replay", "goals"})

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        self.generator = np.random.default_rng(self.setting.seed)
        env = self.setting.example() if self.setting.example else None
        self._terminated = _method(env, "compute_terminated")
        reward = self.config.reward_function or _method(env, "compute_reward")
        if reward is None:
            raise ValueError(
                "her needs the reward of other goals, but the environment has no "
                "compute_reward(achieved_goal, desired_goal, info): set a function as "
                "'reward_function'"
            )
        self._reward: GoalFunction = load_function(reward, "reward.reward_function")

    def score(self, batch: Batch) -> Any:
        """Return the reward of the transitions' goals."""
        return batch.get("goal_reward", batch.rew)

    def apply(self, batch: Batch, buffer: ReplayBuffer, indices: np.ndarray) -> Batch:
        """Relabel a fraction of the transitions; adds ``goal_reward``."""
        chosen = self.generator.random(indices.shape[-1:]) < self.config.ratio
        if not chosen.any():
            return batch
        first = indices[0] if indices.ndim == 2 else indices
        goal = to_numpy(buffer.get(self._draw(first[chosen], buffer), "obs_next").achieved_goal)
        at = (slice(None),) * (indices.ndim - 1) + (chosen,)
        achieved = to_numpy(batch.obs_next.achieved_goal[at])
        changed: dict[str, Any] = {
            key: batch[key].replace(desired_goal=_put(batch[key].desired_goal, at, goal))
            for key in ("obs", "obs_next")
        }
        changed["goal_reward"] = _put(batch.rew, at, _call(self._reward, achieved, goal))
        if self._terminated is not None:
            ended = _call(self._terminated, achieved, goal).astype(bool)
            changed["terminated"] = _put(batch.terminated, at, ended)
            if "done" in batch:
                changed["done"] = changed["terminated"] | buffer.get(indices, "truncated")
            if "mask" in batch:  # rows after an end are not transitions
                after = np.cumsum(ended, 0) > ended
                changed["mask"] = _put(batch.mask, at, to_numpy(batch.mask[at]) & ~after)
        return batch.replace(**changed)

    def _draw(self, rows: np.ndarray, buffer: ReplayBuffer) -> np.ndarray:
        """Draw a row of the same episode for each row."""
        last = np.asarray(buffer.episode_last(rows))
        if self.config.strategy == "final":
            return last
        first = rows if self.config.strategy == "future" else buffer.episode_first(rows)
        capacity = buffer.capacity  # an index is env * capacity + slot, with slots in a ring
        steps = self.generator.random(len(rows)) * ((last - first) % capacity + 1)
        slots = (first + steps.astype(np.int64)) % capacity
        return np.asarray(first - first % capacity + slots)


def _method(env: Any, name: str) -> GoalFunction | None:
    """Return a method of an environment, or of a wrapper around it; None if there is none."""
    read = getattr(env, "get_wrapper_attr", partial(getattr, env))
    try:
        return cast("GoalFunction", read(name))
    except AttributeError:
        return None


def _call(function: GoalFunction, achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Return results for achieved goals [..., n, *shape] and desired goals [n, *shape]."""
    shape = goal.shape[1:]
    desired = np.broadcast_to(goal, achieved.shape).reshape(-1, *shape)
    lead, achieved = achieved.shape[: achieved.ndim - len(shape)], achieved.reshape(-1, *shape)
    results = np.asarray(function(achieved, desired, {}))
    if results.shape != (len(desired),):  # the function accepts only single goals
        pairs = zip(achieved, desired, strict=True)
        results = np.array([function(one, other, {}) for one, other in pairs])
    return results.reshape(lead)


def _put(leaf: Any, at: tuple[Any, ...], values: Any) -> Any:
    """Return a copy with some rows changed."""
    if isinstance(leaf, torch.Tensor):
        leaf, values = leaf.clone(), torch.from_numpy(values).to(leaf)
    else:
        leaf = np.array(leaf)
    leaf[at] = values
    return leaf

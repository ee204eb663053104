"""Hindsight experience replay: https://arxiv.org/abs/1707.01495."""

from __future__ import annotations

from collections.abc import Callable  # where pydantic finds it
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field

from guerdon.data.leaves import to_numpy
from guerdon.reward.base import RewardConfig, RewardModel, Setting, register_reward_model
from guerdon.reward.controls import load_function

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guerdon.data import Batch, ReplayBuffer

Judge = Callable[[np.ndarray, np.ndarray, Any], Any]
"""Says of achieved goals, desired ones and an info (an empty one) what that is worth."""


class HERConfig(RewardConfig):
    """Options of `her`."""

    strategy: Literal["future", "final", "episode"] = "future"
    """Where other goals are taken from: what was achieved at or after the transition, at the end
    of its episode, or anywhere in it."""
    ratio: float = Field(default=0.8, ge=0, le=1)
    """The share of transitions that get another goal; 0.8 is the paper's four for each that keeps
    its own."""
    reward_function: str | Judge | None = None
    """What achieving one goal is worth where another is desired: ``package.module:name`` or the
    function itself, called with arrays of both and an info; the environment's own
    ``compute_reward`` by default."""


@register_reward_model("her")
class HER(RewardModel):
    """The environment's reward, for many transitions as if what came about had been wanted.

    Observations have ``achieved_goal`` and ``desired_goal``, as in Gymnasium-Robotics, and the
    environment ``compute_reward`` and maybe ``compute_terminated``. A segment has one goal.

    Attributes:
        generator: What goals are drawn with.
    """

    Config = HERConfig
    fields: tuple[str, ...] = ("obs", "obs_next", "terminated")
    off_policy = True
    _reward: Judge
    _terminated: Judge | None = None

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        self.generator = np.random.default_rng(0)

    def setup(self, setting: Setting) -> None:
        """See `RewardModel`."""
        _check_goals(setting.observation_space)
        self.generator = np.random.default_rng(setting.seed)
        env = setting.example() if setting.example is not None else None
        self._terminated = _ability(env, "compute_terminated")
        given = self.config.reward_function
        reward: Any = load_function(given) if isinstance(given, str) else given
        reward = reward or _ability(env, "compute_reward")
        if reward is None:
            raise ValueError(
                "her has to know what other goals would have paid, but the environment has no "
                "compute_reward(achieved_goal, desired_goal, info): name a function in "
                "'reward_function'"
            )
        self._reward = reward

    def score(self, data: Batch) -> Any:
        """What was paid; for relabelled transitions, what would have been."""
        return data.rew

    def relabel(self, data: Batch, rows: np.ndarray, buffer: ReplayBuffer) -> Batch:
        """Other goals for a share of the transitions, and reward and end to go with them.

        Args:
            data: What was read [B, ...], or segments of one episode each [T, B, ...].
            rows: The row numbers.
            buffer: Where goals are looked for.
        """
        chosen = self.generator.random(rows.shape[-1:]) < self.config.ratio
        if not chosen.any():
            return data
        first = rows[0] if rows.ndim == 2 else rows
        goal = to_numpy(buffer.get(self._draw(first[chosen], buffer), "obs_next").achieved_goal)
        at = (slice(None),) * (rows.ndim - 1) + (chosen,)
        achieved = to_numpy(data.obs_next.achieved_goal[at])
        changed: dict[str, Any] = {
            key: data[key].replace(desired_goal=_put(data[key].desired_goal, at, goal))
            for key in ("obs", "obs_next")
        }
        changed["rew"] = _put(data.rew, at, _judged(self._reward, achieved, goal))
        if self._terminated is not None:
            ended = _judged(self._terminated, achieved, goal).astype(bool)
            changed["terminated"] = _put(data.terminated, at, ended)
            if "done" in data:
                changed["done"] = changed["terminated"] | buffer.get(rows, "truncated")
            if "mask" in data:  # what comes after an end is no data
                after = np.cumsum(ended, 0) > ended
                changed["mask"] = _put(data.mask, at, to_numpy(data.mask[at]) & ~after)
        return data.replace(**changed)

    def _draw(self, rows: np.ndarray, buffer: ReplayBuffer) -> np.ndarray:
        """A row for each, where its goal was achieved."""
        last = buffer.episode_last(rows)
        if self.config.strategy == "final":
            return np.asarray(last)
        first = rows if self.config.strategy == "future" else buffer.episode_first(rows)
        # An environment's rows lie `n_envs` apart, in a ring.
        number = (last - first) % buffer.size // buffer.n_envs + 1
        steps = (self.generator.random(len(rows)) * number).astype(np.int64)
        return np.asarray((first + steps * buffer.n_envs) % buffer.size)

    def state_dict(self) -> dict[str, Any]:
        """See `RewardModel`."""
        return {"generator": self.generator.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        self.generator.bit_generator.state = state["generator"]


def _check_goals(space: Any) -> None:
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    achieved, desired = parts.get("achieved_goal"), parts.get("desired_goal")
    if achieved is None or desired is None or achieved.shape != desired.shape:
        raise ValueError(
            "her needs observations with 'achieved_goal' and 'desired_goal' of one shape, as "
            f"Gymnasium-Robotics has them, but these are {space}: use another reward, or an "
            "environment with goals"
        )


def _ability(env: Any, name: str) -> Judge | None:
    """A method of an environment, or of a wrapper around it; None if there is none."""
    if hasattr(env, "has_wrapper_attr"):
        found: Judge | None = env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
        return found
    return getattr(env, name, None)


def _judged(judge: Judge, achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """An answer for each achieved goal [..., n, *shape], where others [n, *shape] are desired."""
    shape = goal.shape[1:]
    desired = np.broadcast_to(goal, achieved.shape).reshape(-1, *shape)
    lead, achieved = achieved.shape[: achieved.ndim - len(shape)], achieved.reshape(-1, *shape)
    answers = np.asarray(judge(achieved, desired, {}))
    if answers.shape != (len(desired),):  # it knows single goals only
        pairs = zip(achieved, desired, strict=True)
        answers = np.array([judge(one, other, {}) for one, other in pairs])
    return answers.reshape(lead)


def _put(leaf: Any, at: tuple[Any, ...], values: Any) -> Any:
    """A copy with some rows changed."""
    if isinstance(leaf, torch.Tensor):
        leaf, values = leaf.clone(), torch.from_numpy(values).to(leaf)
    else:
        leaf = np.array(leaf)
    leaf[at] = values
    return leaf

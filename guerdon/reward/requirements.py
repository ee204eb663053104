"""What reward models require of a run, checked before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from guerdon.nn.spaces import is_image, part_spaces

if TYPE_CHECKING:
    from collections.abc import Iterable

    from guerdon.reward.base import Setting

REQUIREMENTS = {
    "demonstrations": "learns from demonstrations: name them in 'expert_data_path'",
    "density": (
        "needs the log-probability of actions, which this policy does not have: use ppo, a2c or sac"
    ),
    "replay": "needs a policy with a replay buffer: use dqn, ddpg, td3 or sac",
    "checkpoint": (
        "has to be fitted beforehand: run `guerdon reward fit`, and name its folder as "
        "'reward.checkpoint_path'"
    ),
    "horizon": (
        "needs the maximum length of an episode: set 'horizon' in the reward's options, or "
        "'env.max_episode_steps'"
    ),
    "goals": (
        "needs observations with 'achieved_goal' and 'desired_goal' of one shape, as "
        "Gymnasium-Robotics has them: use another reward, or an environment with goals"
    ),
    "vectors": (
        "compares numbers, but observations hold images: use gail or red, or an environment with "
        "vectors"
    ),
}


def check_requirements(
    name: str, requires: Iterable[str], setting: Setting, config: Any, cotrain: bool = True
) -> None:
    """Raise an error if a run does not offer what a reward model requires.

    Args:
        name: Name of the term.
        requires: Keys of `REQUIREMENTS`.
        setting: The run.
        config: The model's options.
        cotrain: Whether the model is trained beside the policy.
    """
    offers = {
        "demonstrations": True,  # `load_expert_data` checks its source
        "density": setting.log_prob is not None or not cotrain,
        "replay": not setting.on_policy,
        "checkpoint": setting.checkpoint_path is not None,
        "horizon": (getattr(config, "horizon", None) or setting.horizon) is not None,
        "goals": _has_goals(setting.observation_space),
        "vectors": not _has_images(setting.observation_space),
    }
    for requirement in sorted(requires):
        if not offers[requirement]:
            raise ValueError(f"the reward {name!r} {REQUIREMENTS[requirement]}")


def _has_goals(space: Any) -> bool:
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    achieved, desired = parts.get("achieved_goal"), parts.get("desired_goal")
    return achieved is not None and desired is not None and achieved.shape == desired.shape


def _has_images(space: Any) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(_has_images(part) for part in part_spaces(space).values())
    return space is not None and is_image(space)

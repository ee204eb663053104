"""Gymnasium's wrappers with the settings that are used here."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
from gymnasium import Space, spaces, wrappers

from guerdon.extras import require

ATARI_FRAME_SKIP = 4
ATARI_FRAME_STACK = 4

AnyEnv = gymnasium.Env[Any, Any]


def time_limit(env: AnyEnv, max_episode_steps: int) -> AnyEnv:
    """Truncates episodes after a number of steps."""
    return wrappers.TimeLimit(env, max_episode_steps)


def frame_stack(env: AnyEnv, n_frames: int) -> AnyEnv:
    """Observations become the last `n_frames`, along a new first axis; zeros before the first."""
    return wrappers.FrameStackObservation(env, n_frames, padding_type="zero")


def atari_frames(env: AnyEnv) -> AnyEnv:
    """Frames of 84 x 84 grey pixels, every fourth of them, after up to 30 no-ops.

    Rewards stay as they are, and a lost life ends nothing. The environment itself must not skip
    frames (``frameskip=1``). Unlike ale-py's vector environment, FIRE is not pressed to begin.
    """
    require("cv2", "atari")
    return wrappers.AtariPreprocessing(env, frame_skip=ATARI_FRAME_SKIP)


def named_parts(env: AnyEnv) -> AnyEnv:
    """Tuples in observations become dictionaries with the keys ``"0"``, ``"1"`` and so on.

    Without any, the environment stays as it is.
    """
    space = env.observation_space
    if not _has_tuple(space):
        return env
    return wrappers.TransformObservation(env, partial(_named, space), _named_space(space))


def _has_tuple(space: Space[Any]) -> bool:
    if isinstance(space, spaces.Dict):
        return any(map(_has_tuple, space.spaces.values()))
    return isinstance(space, spaces.Tuple)


def _named_space(space: Space[Any]) -> Space[Any]:
    if not _has_tuple(space):
        return space
    # A list of pairs, since Gymnasium sorts the keys of a dictionary.
    return spaces.Dict([(str(key), _named_space(part)) for key, part in _parts(space)])


def _named(space: Space[Any], observation: Any) -> Any:
    if not _has_tuple(space):
        return observation
    return {str(key): _named(part, observation[key]) for key, part in _parts(space)}


def _parts(space: Any) -> Any:
    parts = space.spaces
    return parts.items() if isinstance(space, spaces.Dict) else enumerate(parts)

"""Gymnasium's wrappers with the settings that are used here."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import wrappers

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

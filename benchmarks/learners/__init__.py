"""The learners that are measured, each behind the same few methods."""

from __future__ import annotations

import importlib

from learners.base import Learner, MissingError

MODULES = {
    "guerdon": "guerdon_",
    "sb3": "sb3_",
    "tianshou": "tianshou_",
    "skrl": "skrl_",
    "diengine": "diengine_",
    "imitation": "imitation_",
    "rllib": "rllib_",
    "cleanrl": "cleanrl_style",
    "bare": "bare_loop",
}
NAMES = tuple(MODULES)

__all__ = ["NAMES", "Learner", "MissingError", "load"]


def load(name: str) -> Learner:
    """The learner; an ImportError where its library is not installed."""
    learner: Learner = importlib.import_module(f"learners.{MODULES[name]}").LEARNER
    return learner

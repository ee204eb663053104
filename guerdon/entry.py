"""Training from Python, and the entry functions of nerveX and DI-engine.

Configs may have the layouts of nerveX, DI-engine and RLinf, see `guerdon.compat.layouts`.
"""

from collections.abc import Iterable
from functools import wraps
from typing import Any

from guerdon import config as configuration
from guerdon.compat.di_engine.entry import (
    serial_pipeline,
    serial_pipeline_reward_model_offpolicy,
    serial_pipeline_reward_model_onpolicy,
)
from guerdon.compat.layouts import Source, translated
from guerdon.policy import create_policy, register_policy
from guerdon.reward import create_reward_model, register_reward_model
from guerdon.training import run
from guerdon.training.replay import evaluate_run
from guerdon.training.run import Summary
from guerdon.training.trainers import offpolicy_trainer, onpolicy_trainer

__all__ = [
    "compose",
    "create_policy",
    "create_reward_model",
    "eval_pipeline",
    "offpolicy_trainer",
    "onpolicy_trainer",
    "register_policy",
    "register_reward_model",
    "serial_pipeline",
    "serial_pipeline_reward_model_offpolicy",
    "serial_pipeline_reward_model_onpolicy",
    "train",
]

eval_pipeline = evaluate_run


def compose(
    source: Source | None = None, overrides: Iterable[str] = ()
) -> configuration.GuerdonConfig:
    """`guerdon.config.compose`, for configs in other layouts, too.

    Args:
        source: A preset, the path of a file or of a run, sections, a config, or None.
        overrides: ``key=value``.
    """
    return configuration.compose(*translated(source, overrides))


@wraps(run.train)
def train(source: Source | None = None, *overrides: str, **options: Any) -> Summary:  # noqa: D103
    ours, changes = translated(source, overrides)
    return run.train(ours, *changes, **options)

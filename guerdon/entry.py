"""Training from Python, and the entry functions of nerveX and DI-engine.

Configs may have the layouts of nerveX, DI-engine and RLinf, see `guerdon.compat.layouts`.
"""

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from numbers import Number
from pathlib import Path
from typing import Any

import gymnasium

from guerdon import config as configuration
from guerdon.compat.di_engine.entry import (
    parallel_pipeline,
    serial_pipeline,
    serial_pipeline_reward_model_offpolicy,
    serial_pipeline_reward_model_onpolicy,
)
from guerdon.compat.keys import Report
from guerdon.compat.layouts import Source, translated
from guerdon.compat.rlinf.config import with_folders
from guerdon.config import sources
from guerdon.config.imports import name_of
from guerdon.config.trust import code_of
from guerdon.config.validation import keys_of, unknown_key
from guerdon.data.leaves import describe
from guerdon.policy import PolicyConfig, create_policy, register_policy
from guerdon.reward import create_reward_model, register_reward_model
from guerdon.training import run
from guerdon.training.replay import evaluate_run
from guerdon.training.run import Result
from guerdon.training.trainers import offpolicy_trainer, onpolicy_trainer

__all__ = [
    "compose",
    "create_policy",
    "create_reward_model",
    "eval_pipeline",
    "offpolicy_trainer",
    "onpolicy_trainer",
    "parallel_pipeline",
    "register_policy",
    "register_reward_model",
    "serial_pipeline",
    "serial_pipeline_reward_model_offpolicy",
    "serial_pipeline_reward_model_onpolicy",
    "train",
]

eval_pipeline = evaluate_run


def compose(
    source: Source | None = None,
    overrides: Iterable[str] = (),
    *,
    trust: bool = False,
    report: Report | None = None,
) -> configuration.GuerdonConfig:
    """`guerdon.config.compose`, for configs in other layouts, too.

    Args:
        source: A preset, the path of a file or of a run, sections, a config, or None.
        overrides: ``key=value``.
        trust: Whether to run the code that another user's run names.
        report: What becomes of the keys of another layout is added to this.
    """
    overrides = list(overrides)
    with code_of(
        sources.run_dir_of(source), trust=trust, own=configuration.override_values(overrides)
    ):
        return configuration.compose(*translated(source, overrides, report))


def train(
    source: Source | None = None,
    *overrides: str | Mapping[str, Any],
    env: str | Mapping[str, Any] | Callable[..., Any] | None = None,
    **options: Any,
) -> Result:
    """Train a policy, and write a run directory.

    Args:
        source: A preset, the path of a config file, sections as a dictionary, or a config.
        *overrides: Dotted keys with values, as on the command line: ``"policy.gamma=0.9"``; or
            nested dictionaries.
        env: The environment: an option of the config group, a Gymnasium id, a dictionary of
            options, or a class or function that makes one.
        **options: Further sections as dictionaries or names: ``policy="sac"``,
            ``run={"max_steps": 5_000}``; and options of `guerdon.training.run.train`.
    """
    names = configuration.GuerdonConfig.model_fields.keys() - {"seed"}
    _check_arguments(overrides, env, options)
    sections = {name: options.pop(name) for name in names & options.keys()}
    if callable(env):
        name = name_of(env)
        if name is None:
            options["env_setting"] = (env, None, None)
        sections["env"] = {"id": name or getattr(env, "__name__", type(env).__name__)}
    elif env is not None:
        sections["env"] = env
    changes = [
        change
        for each in (*overrides, sections)
        for change in ([each] if isinstance(each, str) else configuration.as_overrides(each))
    ]
    trust, own = options.get("trust", False), configuration.override_values(changes)
    with code_of(sources.run_dir_of(source), trust=trust, own=own):
        ours, changes = with_folders(*translated(source, changes))
        return run.train(ours, *changes, **options)


_HINTS = {
    "policy": "; policy={'init_from': RUN} starts with the weights of a run",
    "reward": (
        "; a function is {'type': 'function', 'target': FUNCTION}, and from_reward=RUN takes the "
        "reward of a run"
    ),
}


def _check_arguments(overrides: Iterable[Any], env: Any, options: Mapping[str, Any]) -> None:
    """Raise an error for arguments of `train` that cannot become a config."""
    known = keys_of(configuration.GuerdonConfig) | keys_of(PolicyConfig, "policy")
    names = [name for name in signature(run.train).parameters if name != "overrides"]
    known[""] = list(dict.fromkeys([*known[""], *names]))
    if unknown := [name for name in options if name not in known[""]]:
        raise TypeError(
            f"{unknown_key(unknown[0], known)} (the options of a section are a dictionary, such as "
            "run={'max_steps': 5_000})"
        )
    for override in overrides:
        if not isinstance(override, str | Mapping):
            raise TypeError(f"{describe(override)} is neither 'key=value' nor a dictionary")
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        name = env.spec.id if env.spec else "CartPole-v1"
        raise TypeError(
            f"env is an environment, {env!r:.80}, but a run makes several: give an id "
            f"(env={name!r}), a class, or a function that makes one"
        )
    for name in configuration.GuerdonConfig.model_fields.keys() & options.keys():
        value = options[name]
        if not isinstance(value, str | Mapping | type | list | tuple | Number | Path | None):
            hint = _HINTS.get(name, "")
            kind = type(value).__name__
            raise TypeError(f"{name} is a {kind}: give a name or a dictionary{hint}")

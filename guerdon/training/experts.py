"""Experts by name: ``expert:<preset>`` trains a policy once; it and its episodes are kept."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl

import numpy as np
from pydantic import ConfigDict, Field, field_validator

from guerdon.config import GuerdonConfig, compose, sources, to_yaml
from guerdon.config.errors import ConfigError
from guerdon.config.imports import announce, find_object
from guerdon.config.schema import Section
from guerdon.config.validation import validated
from guerdon.config.yaml_limits import interpolations
from guerdon.data.demonstrations import Demonstrations, save_demonstrations
from guerdon.training.display import Mode
from guerdon.training.parts import uses_demonstrations
from guerdon.training.replay import collect_run, load_policy

PREFIX = "expert:"


class Expert(Section):
    """Demonstrations by name: ``expert:<preset>``, and options after ``?``.

    ``expert:cartpole_ppo?episodes=10&return=475&noise=0,0.5&most=100&steps=50&seed=0`` has all.
    """

    model_config = ConfigDict(populate_by_name=True, allow_inf_nan=False)

    preset: str = Field(min_length=1)
    """Preset or config file to train."""
    episodes: int = Field(default=10, ge=1)
    """Episodes to play with the best policy, at each level of noise."""
    target_return: float | None = Field(default=None, alias="return")
    """Mean return of an evaluation at which the training stops, and which it has to reach."""
    noise: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()
    """Probabilities of a random action."""
    most: float | None = None
    """Maximum return of an episode; for rewards from ranked demonstrations, which have to
    extrapolate."""
    steps: int | None = Field(default=None, ge=1)
    """Maximum number of steps of an episode to keep."""
    seed: int = 0
    """Random seed of the training and the episodes."""

    @field_validator("noise", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return value.split(",") if isinstance(value, str) else value

    @classmethod
    def of(cls, name: str) -> "Expert":
        """Parse a name."""
        preset, _, query = name.removeprefix(PREFIX).partition("?")
        if preset and sources.run_dir_of(preset) is not None:
            raise ConfigError(f"{name!r} names a folder: give a preset or a config file")
        try:
            options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
            return validated(cls, {**options, "preset": preset})
        except ValueError as error:
            raise ConfigError(
                f"{name!r} does not name an expert, as in expert:PRESET?episodes=10&return=475: "
                f"{error}"
            ) from None

    def config(self) -> GuerdonConfig:
        """Return the config of its training, without a run directory."""
        path = Path(self.preset)
        if sources.is_file(self.preset) and any(interpolations(sources.read(path))):
            announce(str(path.resolve()))  # it may read environment variables, like code
        target = [] if self.target_return is None else [f"eval.target_return={self.target_return}"]
        return compose(self.preset, [f"seed={self.seed}", "run.dir=null", *target])


def expert_folder(name: str, display: Mode = "auto") -> Path:
    """Return the folder with the demonstrations of an expert; they are made if they are missing.

    Its folder ``run`` is the expert's run, with the best policy alone.
    """
    expert = Expert.of(name)
    config = expert.config()
    text = f"{to_yaml(config)}\n{expert.episodes} episodes, noise {expert.noise}, and its run\n"
    if expert.most is not None or expert.steps is not None:
        text += f"return up to {expert.most}, steps up to {expert.steps}\n"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = cache / "guerdon" / "demonstrations" / f"{Path(expert.preset).stem}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    from filelock import FileLock  # slow to import

    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not folder.exists():
            _make(expert, config, folder, display)
    return folder


def make_experts(config: GuerdonConfig, display: Mode = "auto") -> GuerdonConfig:
    """Make the demonstrations that a config names as ``expert:<preset>``, before a run is built.

    Returns:
        The config with folders instead of those names.
    """
    terms = {
        name: with_experts(options, display) if uses_demonstrations(config, name) else options
        for name, options in config.reward.terms.items()
    }
    reward = config.reward.model_copy(update={"terms": terms})
    policy = with_experts(config.policy, display)
    if str(config.policy.get("expert")).startswith(PREFIX):  # `dagger` asks the policy itself
        policy["expert"] = str(Path(policy["expert"]) / "run")
    return config.model_copy(update={"reward": reward, "policy": policy})


def find_expert(name: str) -> Callable[[Any], Any]:
    """Return a function from observations to an expert's actions.

    Args:
        name: ``module:function``, ``file.py:function``, or the directory of a run.
    """
    if ":" in name and not Path(name).exists():
        function: Callable[[Any], Any] = find_object(name, "policy.expert")
        return function
    return load_policy(name).predict


def with_experts(options: Any, display: Mode = "auto") -> Any:
    """Replace names of experts by folders, anywhere in dictionaries and lists."""
    if isinstance(options, dict):
        return {key: with_experts(value, display) for key, value in options.items()}
    if isinstance(options, list | tuple):
        return [with_experts(value, display) for value in options]
    if isinstance(options, str) and options.startswith(PREFIX):
        return str(expert_folder(options, display))
    return options


def _make(expert: Expert, config: GuerdonConfig, folder: Path, display: Mode) -> None:
    """Train and play; the folder gets its name when it is complete."""
    from guerdon.training.run import train  # which imports this file

    def say(text: str) -> None:
        if display != "none":
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    say(
        f"demonstrations are needed of an expert: training {expert.preset}, "
        f"{config.run.max_steps:,} steps at most; this is done once"
    )
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    try:
        run = config.run.model_copy(update={"dir": str(temporary / "run")})
        summary = train(config.model_copy(update={"run": run}), display=display)
        if summary["stop_reason"] == "interrupted":
            raise KeyboardInterrupt
        target, best = expert.target_return, summary["best_eval_return_mean"]
        if target is not None and best < target:
            raise RuntimeError(
                f"the expert {expert.preset} reached a mean return of {best:.1f} in "
                f"{summary['env_steps']:,} steps, and not {target:g}: ask for less, or for another "
                "seed"
            )
        played = collect_run(
            temporary / "run", expert.episodes, noise=expert.noise, seed=expert.seed
        )
        kept = _kept(played, expert)
        save_demonstrations(kept, temporary / "demonstrations")
        shutil.rmtree(temporary / "run" / "checkpoints")
        (temporary / "run").rename(temporary / "demonstrations" / "run")
        (temporary / "demonstrations").rename(folder)
        mean = float(np.mean(kept.returns))
        say(f"kept {len(kept)} episodes with a mean return of {mean:.1f} in {folder}")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _kept(played: Demonstrations, expert: Expert) -> Demonstrations:
    """Return the episodes with a return of `most` at most, and the first `steps` of each."""
    most, returns = np.inf if expert.most is None else expert.most, played.returns
    kept = np.flatnonzero(returns <= most)
    if not len(kept):
        raise RuntimeError(
            f"all demonstrations have a return above {most:g}, the least of them "
            f"{returns.min():.4g}: ask for a larger 'most', or for more noise"
        )
    episodes = [played.episodes[i][: expert.steps] for i in kept]
    return replace(played, episodes=episodes, seeds=[played.seeds[i] for i in kept])

"""Demonstrations of trained policies: of a run, or of an expert that is made when it is needed."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import numpy as np

from guerdon.collect import Collector
from guerdon.config import compose, to_yaml
from guerdon.config.errors import ConfigError, suggestion
from guerdon.data import Batch, Rollout
from guerdon.data.demonstrations import KEYS, Demonstrations, save_demonstrations
from guerdon.training.evaluation import in_testing_state
from guerdon.training.noise import Noisy
from guerdon.training.parts import make_env, uses_demonstrations
from guerdon.training.replay import Checkpoint, load_policy
from guerdon.training.threads import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from guerdon.config import GuerdonConfig
    from guerdon.envs import Step, VectorEnv
    from guerdon.policy import Policy
    from guerdon.training.display import Mode

    Progress = Callable[[int, int], None]

PREFIX = "expert:"
"""``expert:<preset>`` names demonstrations of an expert; see `Expert`."""


# --- playing


def collect_demonstrations(
    policy: Policy,
    env: VectorEnv,
    n_episodes: int,
    *,
    seed: int = 0,
    noise: float | None = None,
    deterministic: bool = True,
    progress: Progress | None = None,
) -> Demonstrations:
    """Lets a policy play, and keeps whole episodes; the same arguments give the same ones.

    Args:
        policy: Who plays.
        env: Where.
        n_episodes: How many.
        seed: Of the environments, and of everything that is drawn.
        noise: How likely each action is replaced by a random one, 0 to 1; it is stored with every
            transition as ``noise``. None is 0, and nothing is stored.
        deterministic: Whether it plays as in testing, or explores as in collecting.
        progress: Called with the number of episodes so far, and of all, whenever one ends.
    """
    if n_episodes < 1:
        raise ValueError(f"demonstrations need one episode or more, not {n_episodes}")
    if noise is not None and not 0 <= noise <= 1:
        raise ValueError(f"noise is a probability, 0 to 1, not {noise}")
    acting: Any = policy if not noise else Noisy(policy, env, noise, seed)
    with in_testing_state(policy, seed, deterministic):
        episodes = play_episodes(acting, env, n_episodes, seed, progress)
    if noise is not None:
        for episode in episodes:
            episode.noise = np.full(len(episode), noise, np.float32)
    return Demonstrations(episodes, env.spec_id, env.observation_space, env.action_space)


def play_episodes(
    acting: Any, env: VectorEnv, n_episodes: int, seed: int, progress: Progress | None = None
) -> list[Batch]:
    """Whole episodes of whoever acts: what a `Collector` calls with observations and a state.

    Args:
        acting: Who plays.
        env: Where.
        n_episodes: How many.
        seed: Of the environments.
        progress: See `collect_demonstrations`.
    """
    ended = 0

    def watch(_: Any, step: Step, dummy: np.ndarray | None) -> None:
        nonlocal ended
        done = step.terminated | step.truncated
        number = int((done if dummy is None else done & ~dummy).sum())
        if number and progress is not None:
            ended += number
            progress(ended, n_episodes)

    buffer = Rollout(256, env.n_envs)
    Collector(acting, env, buffer, seed=seed, watch=watch).collect(n_episode=n_episodes)
    rollout, _ = buffer.rollout(KEYS)
    return [
        episode
        for number in range(env.n_envs)
        for episode in _episodes(rollout[rollout.mask[:, number], number])
    ]


def _episodes(rows: Batch) -> Iterator[Batch]:
    """The episodes among the rows of one environment."""
    stops = np.flatnonzero(rows.terminated | rows.truncated) + 1
    for start, stop in zip([0, *stops], stops, strict=False):
        yield Batch({key: rows[key][start:stop] for key in KEYS})


def collect_run(
    run_dir: str | Path,
    n_episodes: int,
    *,
    checkpoint: Checkpoint | Sequence[Checkpoint] = "best",
    noise: Sequence[float] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Demonstrations:
    """Plays with the policy of a run, in its evaluation environments.

    Args:
        run_dir: The run's folder.
        n_episodes: How many; of each checkpoint and each level of noise, where there are several.
        checkpoint: The best one, the latest, or that of a step. Of several, the episodes come in
            the order of the checkpoints.
        noise: See `collect_demonstrations`.
        seed: Of the environments, and of everything that is drawn.
        progress: See `collect_demonstrations`.
    """
    several = [checkpoint] if isinstance(checkpoint, str | int) else checkpoint
    if not several:
        raise ValueError("demonstrations need one checkpoint or more")
    loaded = [load_policy(run_dir, each) for each in several]
    _, config = loaded[0]
    with threads(config.run.threads):
        return _play([policy for policy, _ in loaded], config, n_episodes, noise, seed, progress)


def _play(
    policies: Sequence[Policy],
    config: GuerdonConfig,
    n_episodes: int,
    noise: Sequence[float],
    seed: int,
    progress: Progress | None,
) -> Demonstrations:
    levels: Sequence[float | None] = noise or (None,)
    players = [(policy, level) for policy in policies for level in levels]
    played: list[Demonstrations] = []

    def tell(number: int, _: int) -> None:
        if progress is not None:
            progress(len(played) * n_episodes + number, len(players) * n_episodes)

    with make_env(config.env.for_evaluation(min(config.eval.n_envs, n_episodes))) as env:
        for number, (policy, level) in enumerate(players):
            played.append(
                collect_demonstrations(
                    policy,
                    env,
                    n_episodes,
                    seed=seed + number,
                    noise=level,
                    deterministic=config.eval.deterministic,
                    progress=tell,
                )
            )
        return Demonstrations(
            [episode for each in played for episode in each.episodes],
            config.env.id,
            env.observation_space,
            env.action_space,
        )


# --- experts that are made when they are needed


@dataclass(frozen=True)
class Expert:
    """Demonstrations by their name: ``expert:<preset>``, and options after ``?``.

    ``expert:cartpole_ppo?episodes=10&return=475&noise=0,0.5&most=100&steps=50&seed=0`` has all.
    """

    preset: str
    """What to train: a preset, or the path of a config file."""
    episodes: int = 10
    """How many to play with the best policy of the training."""
    target_return: float | None = None
    """``return``: mean return of an evaluation at which the training stops, and which it has to
    reach."""
    noise: tuple[float, ...] = ()
    """Shares of random actions: so many episodes are played with each."""
    most: float | None = None
    """The largest return of an episode that is kept: for rewards from ranked demonstrations, which
    shall teach more than they show."""
    steps: int | None = None
    """How long episodes are recorded, at most."""
    seed: int = 0
    """Of the training, and of the episodes."""

    @classmethod
    def of(cls, name: str) -> Expert:
        """The expert that a name means."""
        preset, _, query = name.removeprefix(PREFIX).partition("?")
        kinds: dict[str, tuple[str, Any]] = {
            "episodes": ("episodes", int),
            "return": ("target_return", float),
            "noise": ("noise", lambda text: tuple(float(part) for part in text.split(","))),
            "most": ("most", float),
            "steps": ("steps", int),
            "seed": ("seed", int),
        }
        given: dict[str, Any] = {}
        try:
            for key, value in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)):
                if key not in kinds:
                    raise ConfigError(f"{name!r} has {key!r}: {suggestion(key, kinds)}")
                option, kind = kinds[key]
                given[option] = kind(value)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(
                f"{name!r} is not understood ({error}): write expert:PRESET?episodes=10&return=475"
            ) from None
        expert = cls(preset, **given)
        there = {
            "preset": preset,
            "episodes": expert.episodes >= 1,
            "steps": expert.steps is None or expert.steps >= 1,
        }
        for what, is_there in there.items():
            if not is_there:
                raise ConfigError(f"{name!r} has no {what}: write expert:PRESET?episodes=10")
        for what, bound in (("return", expert.target_return), ("most", expert.most)):
            if bound is not None and math.isnan(bound):
                raise ConfigError(f"{name!r} has a {what!r} that is no number: write {what}=475")
        if not all(0 <= level <= 1 for level in expert.noise):
            raise ConfigError(f"{name!r} has noise that is no share: give 0 to 1")
        return expert

    def config(self) -> GuerdonConfig:
        """What its training is told; the run's folder is left open."""
        target = [] if self.target_return is None else [f"eval.target_return={self.target_return}"]
        return compose(self.preset, [f"seed={self.seed}", "run.dir=null", *target])


def expert_folder(name: str, display: Mode = "auto") -> Path:
    """The folder with the demonstrations of an expert, which are made if nobody has before.

    Args:
        name: ``expert:<preset>``, with options; see `Expert`.
        display: How the training is shown; ``none`` shows nothing at all.
    """
    expert = Expert.of(name)
    config = expert.config()
    text = f"{to_yaml(config)}\n{expert.episodes} episodes, noise {expert.noise}\n"
    if expert.most is not None or expert.steps is not None:
        text += f"return up to {expert.most}, steps up to {expert.steps}\n"
    title = Path(expert.preset).stem
    root = cache_folder() / "demonstrations"
    folder = root / f"{title}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if folder.exists():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root / f".{folder.name}.lock"):
        if not folder.exists():  # another process may have been at it
            _make(expert, config, folder, display)
    return folder


def make_experts(config: GuerdonConfig, display: Mode = "auto") -> GuerdonConfig:
    """Make the demonstrations that a config names as ``expert:<preset>``, before a run is built.

    Args:
        config: The config.
        display: See `expert_folder`.

    Returns:
        The config with folders instead of those names.
    """
    terms = {
        name: with_experts(options, display) if uses_demonstrations(config, name) else options
        for name, options in config.reward.terms.items()
    }
    return config.model_copy(update={"reward": config.reward.model_copy(update={"terms": terms})})


def with_experts(options: Any, display: Mode = "auto") -> Any:
    """Options of a reward in which the names of experts are folders with their demonstrations.

    Args:
        options: Dictionaries and lists of anything.
        display: See `expert_folder`.
    """
    if isinstance(options, dict):
        return {key: with_experts(value, display) for key, value in options.items()}
    if isinstance(options, list | tuple):
        return [with_experts(value, display) for value in options]
    if isinstance(options, str) and options.startswith(PREFIX):
        return str(expert_folder(options, display))
    return options


def cache_folder() -> Path:
    """Where guerdon keeps what it can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "guerdon"


def _make(expert: Expert, config: GuerdonConfig, folder: Path, display: Mode) -> None:
    """Trains and plays; the folder gets its name when all of it is there."""
    from guerdon.training.run import train  # which needs the parts, which need experts

    say = _line if display != "none" else lambda _: None
    say(
        f"demonstrations are needed of an expert: training {expert.preset}, "
        f"{config.run.max_steps:,} steps at most; this is done once"
    )
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    aside = tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent)
    try:
        run, played = Path(aside) / "run", Path(aside) / "demonstrations"
        made = config.model_copy(update={"run": config.run.model_copy(update={"dir": str(run)})})
        summary = train(made, display=display)
        _check(expert, summary)
        demonstrations = collect_run(run, expert.episodes, noise=expert.noise, seed=expert.seed)
        demonstrations = shortened(demonstrations, expert.most, expert.steps)
        save_demonstrations(demonstrations, played)
        try:
            played.rename(folder)
        except OSError:
            if not folder.exists():  # else somebody got ahead, and has made the same
                raise
        mean = float(np.mean(demonstrations.returns))
        say(f"kept {len(demonstrations)} episodes with a mean return of {mean:.1f} in {folder}")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def shortened(
    demonstrations: Demonstrations, most: float | None = None, steps: int | None = None
) -> Demonstrations:
    """Those with a return of `most` at most, and the first `steps` of each."""
    returns = demonstrations.returns
    kept = np.flatnonzero(returns <= (np.inf if most is None else most))
    if not len(kept):
        raise RuntimeError(
            f"all demonstrations have a return above {most:g}, the least of them "
            f"{returns.min():.4g}: ask for a larger 'most', or for more noise"
        )
    return replace(
        demonstrations,
        episodes=[demonstrations.episodes[i][:steps] for i in kept],
        seeds=[demonstrations.seeds[i] for i in kept],
    )


def _check(expert: Expert, summary: dict[str, Any]) -> None:
    if summary["stop_reason"] == "interrupted":
        raise KeyboardInterrupt
    target, best = expert.target_return, summary["best_eval_return_mean"]
    if target is not None and best < target:
        raise RuntimeError(
            f"the expert {expert.preset} reached a mean return of {best:.1f} in "
            f"{summary['env_steps']:,} steps, and not {target:g}: ask for less, or for another seed"
        )


def _line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits until no other process holds this file, where the system can tell."""
    with path.open("w") as file:
        if os.name == "posix":
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX)
        yield

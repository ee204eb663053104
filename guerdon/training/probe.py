"""A look at a reward before a policy learns from it: what it thinks of good and bad behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.batch import Batch
from guerdon.data.demonstrations import KEYS, Demonstrations
from guerdon.data.loading import load_demonstrations
from guerdon.training.experts import play_episodes, with_experts
from guerdon.training.parts import Parts, make_parts
from guerdon.training.reward_files import load_reward
from guerdon.training.trainers import train_reward

if TYPE_CHECKING:
    from guerdon.config import GuerdonConfig
    from guerdon.envs import VectorEnv
    from guerdon.reward import Reward
    from guerdon.training.display import Mode

DEMONSTRATIONS = "demonstrations"


@dataclass(frozen=True)
class Probed:
    """What a reward says of one kind of behaviour."""

    name: str
    """Which kind."""
    per_step: float
    """Mean reward of a step."""
    per_episode: float
    """Mean sum of an episode."""
    length: float
    """Mean steps of an episode."""
    true_return: float
    """Mean sum of an episode in the environment's own reward."""
    lowest: float
    """The least that a step is worth."""
    highest: float
    """The most that a step is worth."""


@dataclass(frozen=True)
class Probe:
    """What `probe` found."""

    rows: list[Probed]
    """Demonstrations first, where the reward learns from any."""
    verdict: str
    """Whether living or ending as such is a reward, in words."""
    ranking: str
    """Whether demonstrations are worth the most, in words."""


def probe(
    config: GuerdonConfig, *, episodes: int = 10, steps: int = 5_000, display: Mode = "auto"
) -> Probe:
    """Trains the reward of a config beside a policy that learns nothing, and asks it for its word.

    Args:
        config: What was asked for.
        episodes: How many to play with random and with constant actions.
        steps: Transitions that the reward is trained on, where it is trained at all.
        display: How the training of an expert is shown, where demonstrations are made by one.
    """
    parts = make_parts(config, display=display)
    try:
        needed = set(parts.reward.fields) - set(KEYS)
        if needed:
            raise ValueError(
                f"this reward cannot be probed: it reads {', '.join(sorted(needed))}, which no "
                f"demonstration holds"
            )
        _train(config, parts, steps)
        behaviours = _demonstrated(config, parts.seeds.reward, display)
        for number, kind in enumerate((_Random, _Constant)):
            acting = kind(parts.eval_env)
            seed = parts.seeds.evaluate + number
            behaviours[kind.name] = play_episodes(acting, parts.eval_env, episodes, seed)
        rows = [_probed(parts.reward, name, played) for name, played in behaviours.items()]
    finally:
        parts.close()
    lengths = {len(episode) for played in behaviours.values() for episode in played}
    ends = any(episode.terminated.any() for played in behaviours.values() for episode in played)
    absorbing = any(options.get("absorbing") for options in config.reward.terms.values())
    return Probe(rows, _verdict(rows, lengths, ends, absorbing), _ranking(rows))


def _train(config: GuerdonConfig, parts: Parts, steps: int) -> None:
    """The loop, without the policy's part of it."""
    reward, collector = parts.reward, parts.collector
    if config.reward.checkpoint_path is not None:
        load_reward(reward, config.reward)
    if config.reward.pretrain:
        reward.pretrain()
    done = 0
    while reward.learns and done < steps:
        collected = collector.collect(config.collect.n_step, config.collect.n_episode)
        done += collected.n_step
        train_reward(reward, collector, collected, updates=0)
        if parts.policy.on_policy:
            parts.buffer.reset()


def _demonstrated(config: GuerdonConfig, seed: int, display: Mode) -> dict[str, list[Batch]]:
    """The demonstrations that a reward learns from, and the same with their actions exchanged."""
    named = [options.get("expert_data_path") for options in config.reward.terms.values()]
    paths = [path for path in named if path is not None]
    if not paths:
        return {}
    real: Demonstrations = load_demonstrations(with_experts(paths[0], display))
    act = real.transitions().act
    order = np.random.default_rng(seed).permutation(len(act))
    exchanged = np.split(act[order], np.cumsum(real.lengths)[:-1])
    permuted = [
        episode.replace(act=act) for episode, act in zip(real.episodes, exchanged, strict=True)
    ]
    return {DEMONSTRATIONS: real.episodes, "permuted actions": permuted}


class _Random:
    """Draws every action."""

    name = "random actions"

    def __init__(self, env: VectorEnv) -> None:
        self._space = env.action_space

    def __call__(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002
        return Batch(act=self.draw(len(batch)))

    def draw(self, number: int) -> np.ndarray:
        return np.stack([np.asarray(self._space.sample()) for _ in range(number)])


class _Constant(_Random):
    """Draws one action for each environment, and repeats it."""

    name = "constant actions"
    _act: np.ndarray | None = None

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._n_envs = env.n_envs

    def __call__(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002
        if self._act is None:
            self._act = self.draw(self._n_envs)
        return Batch(act=self._act[batch.env_ids] if "env_ids" in batch else self._act)


def _probed(reward: Reward, name: str, episodes: list[Batch]) -> Probed:
    # One by one: what a transition is worth may depend on those before it.
    scored = [np.asarray(reward.score(episode), np.float64) for episode in episodes]
    everything = np.concatenate(scored)
    return Probed(
        name,
        per_step=float(everything.mean()),
        per_episode=float(np.mean([rew.sum() for rew in scored])),
        length=float(np.mean([len(rew) for rew in scored])),
        true_return=float(np.mean([np.asarray(episode.rew).sum() for episode in episodes])),
        lowest=float(everything.min()),
        highest=float(everything.max()),
    )


def _verdict(rows: list[Probed], lengths: set[int], ends: bool, absorbing: bool) -> str:
    lowest, highest = min(row.lowest for row in rows), max(row.highest for row in rows)
    if len(lengths) == 1 and not ends:
        return (
            f"Neither living nor ending is a reward by itself: every episode has {lengths.pop()} "
            f"steps."
        )
    if absorbing:
        return (
            "Neither living nor ending is a reward by itself: what comes after an end is judged, "
            "too (absorbing)."
        )
    if lowest >= 0 < highest:
        return (
            f"It rewards survival as such: no step is worth less than {lowest:.3g} and episodes "
            f"end early, so that living longer pays, whatever is done in the meantime."
        )
    if highest <= 0 > lowest:
        return (
            f"It rewards ending as such: no step is worth more than {highest:.3g} and episodes "
            f"end early, so that dying soon pays, whatever is done before."
        )
    return "Neither living nor ending is a reward by itself: not all steps are on one side of 0."


def _ranking(rows: list[Probed]) -> str:
    first, *others = rows
    if first.name != DEMONSTRATIONS:
        return "There are no demonstrations to compare with."
    better = [row.name for row in others if row.per_step >= first.per_step]
    if better:
        return f"A step of the demonstrations is worth no more than one of {' and '.join(better)}."
    return "A step of the demonstrations is worth more than any other."

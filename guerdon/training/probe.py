"""A look at a reward before a policy learns from it: what it thinks of good and bad behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.data.batch import Batch
from guerdon.data.demonstrations import KEYS, Demonstrations
from guerdon.data.loading import load_demonstrations
from guerdon.data.rollout import Rollout
from guerdon.training.experts import make_experts, play_episodes
from guerdon.training.parts import Parts, make_parts
from guerdon.training.reward_files import load_reward
from guerdon.training.trainers import train_reward

if TYPE_CHECKING:
    from collections.abc import Iterator

    from guerdon.config import GuerdonConfig
    from guerdon.envs import VectorEnv
    from guerdon.reward import Reward
    from guerdon.training.display import Mode

DEMONSTRATIONS = "demonstrations"
MARGIN = 2.0
"""Standard errors by which demonstrations have to score higher than other behaviour."""
MOST = 0.95
"""The share of steps (of those that differ) on one side that makes living or ending a reward."""


@dataclass(frozen=True)
class Probed:
    """What a reward says of one kind of behaviour."""

    name: str
    """Which kind."""
    per_step: float
    """Mean reward of a step, less what an end is worth beside."""
    error: float
    """Standard error of that mean, over episodes."""
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
    above: float
    """The share of steps that are worth more than one after an end."""
    below: float
    """The share of steps that are worth less."""


@dataclass(frozen=True)
class Probe:
    """What `probe` found."""

    rows: list[Probed]
    """Demonstrations first, where the reward learns from any."""
    after: float
    """What a step after an end is worth: 0, unless an end is paid for."""
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
    config = make_experts(config, display)
    parts = make_parts(config)
    try:
        needed = set(parts.reward.fields) - {*KEYS, "annotations"}
        if needed:
            raise ValueError(
                f"this reward cannot be probed: it reads {', '.join(sorted(needed))}, which no "
                f"demonstration holds"
            )
        _train(config, parts, steps)
        behaviours = _demonstrated(config, parts.seeds.reward)
        for number, kind in enumerate((_Random, _Constant)):
            acting = kind(parts.eval_env)
            seed = parts.seeds.evaluate + number
            behaviours[kind.name] = play_episodes(acting, parts.eval_env, episodes, seed)
        scored = {
            name: [_Scored.of(parts.reward, episode) for episode in played]
            for name, played in behaviours.items()
        }
    finally:
        parts.close()
    everything = [each for part in scored.values() for each in part]
    after = _after(everything, config.policy.get("gamma", 0.99))
    rows = [_probed(name, part, after) for name, part in scored.items()]
    played = [each.episode for each in everything]
    return Probe(rows, after, _verdict(rows, after, played), _ranking(rows))


def _train(config: GuerdonConfig, parts: Parts, steps: int) -> None:
    """The loop, without the policy's part of it."""
    reward, collector = parts.reward, parts.collector
    if config.reward.checkpoint_path is not None:
        load_reward(reward, config.reward)
    if config.reward.pretrain:
        reward.pretrain()
    done, updates = 0, 0
    per_iteration = 1 if parts.policy.on_policy else config.learn.updates_per_collect
    if not reward.collects:
        reward.train()
    while reward.collects and done < steps:
        collected = collector.collect(config.collect.n_step, config.collect.n_episode)
        done += collected.n_step
        train_reward(reward, collector, updates)
        updates += per_iteration  # there are none, but models forget by them
        if isinstance(parts.buffer, Rollout):
            parts.buffer.reset()


def _demonstrated(config: GuerdonConfig, seed: int) -> dict[str, list[Batch]]:
    """The demonstrations that a reward learns from, and the same with their actions exchanged."""
    path = next(_demonstration_paths(config.reward.terms), None)
    if path is None:
        return {}
    real: Demonstrations = load_demonstrations(path)
    act = real.transitions().act
    order = np.random.default_rng(seed).permutation(len(act))
    exchanged = np.split(act[order], np.cumsum(real.lengths)[:-1])
    permuted = [
        episode.replace(act=act) for episode, act in zip(real.episodes, exchanged, strict=True)
    ]
    return {DEMONSTRATIONS: real.episodes, "permuted actions": permuted}


def _demonstration_paths(options: Any) -> Iterator[str]:
    """What options name as demonstrations, those of an ensemble's members among them."""
    if not isinstance(options, dict):
        return
    if options.get("expert_data_path") is not None:
        yield options["expert_data_path"]
    for value in options.values():
        yield from _demonstration_paths(value)


class _Random:
    """Draws every action."""

    name = "random actions"

    def __init__(self, env: VectorEnv) -> None:
        self._space = env.action_space
        self._n_envs = env.n_envs

    def __call__(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002
        return Batch(act=self.draw(len(batch.get("env_ids", range(self._n_envs)))))

    def draw(self, number: int) -> np.ndarray:
        return np.stack([np.asarray(self._space.sample()) for _ in range(number)])


class _Constant(_Random):
    """Draws one action for each environment, and repeats it."""

    name = "constant actions"
    _act: np.ndarray | None = None

    def __call__(self, batch: Batch, state: Any = None) -> Batch:  # noqa: ARG002
        if self._act is None:
            self._act = self.draw(self._n_envs)
        return Batch(act=self._act[batch.env_ids] if "env_ids" in batch else self._act)


@dataclass(frozen=True)
class _Scored:
    """An episode, and what a reward says of it."""

    episode: Batch
    rew: np.ndarray
    going_on: np.ndarray
    """What it would say if the episode had not ended."""

    @classmethod
    def of(cls, reward: Reward, episode: Batch) -> _Scored:
        """Scores one episode alone: what a step is worth may depend on those before it."""
        rew = going_on = np.asarray(reward.score(episode), np.float64)
        if episode.terminated.any():
            endless = episode.replace(terminated=np.zeros_like(episode.terminated))
            going_on = np.asarray(reward.score(endless), np.float64)
        return cls(episode, rew, going_on)


def _after(scored: list[_Scored], gamma: float) -> float:
    """What each of the steps after an end would have to be worth to be worth what the end is."""
    ends = [(each.rew - each.going_on)[-1] for each in scored if each.episode.terminated[-1]]
    return float(np.mean(ends)) * (1 - gamma) / gamma if ends and gamma else 0.0


def _probed(name: str, scored: list[_Scored], after: float) -> Probed:
    steps = np.concatenate([each.going_on for each in scored])
    means = np.array([each.going_on.mean() for each in scored])
    return Probed(
        name,
        per_step=float(steps.mean()),
        error=float(means.std() / np.sqrt(max(len(means) - 1, 1))),
        per_episode=float(np.mean([each.rew.sum() for each in scored])),
        length=float(np.mean([len(each.rew) for each in scored])),
        true_return=float(np.mean([np.asarray(each.episode.rew).sum() for each in scored])),
        lowest=float(steps.min()),
        highest=float(steps.max()),
        above=float((steps > after).mean()),
        below=float((steps < after).mean()),
    )


def _verdict(rows: list[Probed], after: float, episodes: list[Batch]) -> str:
    lengths = {len(episode) for episode in episodes}
    if len(lengths) == 1 and not any(episode.terminated.any() for episode in episodes):
        return (
            f"Neither living nor ending is a reward by itself: every episode has {lengths.pop()} "
            f"steps."
        )
    above, below = (float(np.mean([getattr(row, n) for row in rows])) for n in ("above", "below"))
    measured = (
        f"{above:.0%} of steps are worth more than one after an end ({after:.3g}), {below:.0%} less"
    )
    if above > 0 and above >= MOST * (above + below):
        return f"It rewards survival as such, whatever is done in the meantime: {measured}."
    if below > 0 and below >= MOST * (above + below):
        return f"It rewards ending as such, whatever is done before: {measured}."
    return f"Neither living nor ending is a reward by itself: {measured}."


def _ranking(rows: list[Probed]) -> str:
    first, *others = rows
    if first.name != DEMONSTRATIONS:
        return "There are no demonstrations to compare with."
    unclear = []
    for row in others:
        margin = MARGIN * float(np.hypot(first.error, row.error))
        if first.per_step - row.per_step <= margin:
            unclear.append(f"{row.name} ({row.per_step:.3g}, margin {margin:.2g})")
    if unclear:
        return (
            f"A step of the demonstrations scores {first.per_step:.3g}, not clearly higher than "
            f"one of {' and '.join(unclear)}."
        )
    return "A step of the demonstrations scores higher than any other, by more than the margin."

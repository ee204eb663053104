"""`probe`: rewards of good and bad behaviour, before a policy is trained on them."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from guerdon.config import GuerdonConfig
from guerdon.data import Batch, Demonstrations, Rollout, load_demonstrations
from guerdon.data.demonstrations import KEYS
from guerdon.envs import VectorEnv
from guerdon.reward import Reward
from guerdon.training.display import Mode
from guerdon.training.experts import make_experts
from guerdon.training.parts import Parts, make_parts
from guerdon.training.replay import play_episodes
from guerdon.training.reward_files import restore_reward
from guerdon.training.trainers import train_reward

DEMONSTRATIONS = "demonstrations"
MARGIN = 2.0
"""Standard errors by which demonstrations have to have a higher reward than other behaviour."""
MOST = 0.95
"""Share of steps with a higher (or lower) reward than after an end, from which on survival (or
termination) counts as rewarded by itself."""


@dataclass(frozen=True)
class Probed:
    """Rewards of one kind of behaviour."""

    name: str
    per_step: float  # mean reward of a step, as if no episode ended
    error: float  # standard error of that mean, over episodes
    per_episode: float  # mean return
    length: float  # mean length of an episode
    true_return: float  # mean return in the environment's reward
    lowest: float  # minimum reward of a step
    highest: float  # maximum reward of a step
    above: float  # share of steps with a higher reward than one after an end
    below: float  # share of steps with a lower one


@dataclass(frozen=True)
class Probe:
    """Result of `probe`."""

    rows: list[Probed]  # demonstrations first, if the reward uses any
    after: (
        float  # equivalent reward of each step after an end; 0 unless absorbing states are scored
    )
    conclusion: str  # whether survival or termination is rewarded by itself, as a sentence
    ranking: str  # whether demonstrations have the highest reward, as a sentence


def probe(
    config: GuerdonConfig, *, episodes: int = 10, steps: int = 5_000, display: Mode = "auto"
) -> Probe:
    """Train the reward of a config on an untrained policy, and score several behaviours.

    Args:
        config: The config.
        episodes: Number of episodes with random and with constant actions.
        steps: Transitions to train the reward on, if it needs any.
        display: Display of the training of an expert, if demonstrations are made by one.
    """
    config = make_experts(config, display)
    with closing(make_parts(config)) as parts:
        needed = set(parts.reward.fields) - {*KEYS, "annotations"}
        if needed:
            raise ValueError(
                f"this reward cannot be probed: it reads {', '.join(sorted(needed))}, which is not "
                f"in demonstrations"
            )
        _train(config, parts, steps)
        behaviours = _demonstrated(config, parts.seeds.reward)
        for number, name in enumerate(("random actions", "constant actions")):
            acting = _drawn(parts.eval_env, constant=bool(number))
            seed = parts.seeds.evaluate + number
            behaviours[name] = play_episodes(acting, parts.eval_env, episodes, seed)
        scored = {
            name: [_score(parts.reward, episode) for episode in played]
            for name, played in behaviours.items()
        }
    everything = [each for part in scored.values() for each in part]
    # Constant reward per step after an end whose discounted sum equals the reward of the end.
    gamma = config.policy.get("gamma", 0.99)
    ends = [(each.scored - each.endless)[-1] for each in everything if each.terminated[-1]]
    after = float(np.mean(ends)) * (1 - gamma) / gamma if ends and gamma else 0.0
    rows = [_probed(name, part, after) for name, part in scored.items()]
    return Probe(rows, after, _conclusion(rows, after, everything), _ranking(rows))


def _train(config: GuerdonConfig, parts: Parts, steps: int) -> None:
    """Train the reward as in a run, with an untrained policy."""
    reward, collector = parts.reward, parts.collector
    if config.reward.checkpoint_path is not None:
        restore_reward(reward, config.reward)
    if config.reward.pretrain:
        reward.pretrain()
    done, updates = 0, 0
    per_iteration = 1 if parts.policy.on_policy else config.learn.updates_per_collect
    if not reward.collects:
        reward.train()
    while reward.collects and done < steps:
        done += collector.collect(config.collect.n_step, config.collect.n_episode).n_step
        train_reward(reward, collector, updates)
        updates += per_iteration  # as if the policy were updated; models drop data by this number
        if isinstance(parts.buffer, Rollout):
            parts.buffer.reset()


def _demonstrated(config: GuerdonConfig, seed: int) -> dict[str, list[Batch]]:
    """Return the reward's demonstrations, and the same with their actions permuted."""
    path = next(_demonstration_paths(config.reward.terms), None)
    if path is None:
        return {}
    real: Demonstrations = load_demonstrations(path)
    act = real.transitions().act
    order = np.random.default_rng(seed).permutation(len(act))
    permuted = np.split(act[order], np.cumsum(real.lengths)[:-1])
    episodes = zip(real.episodes, permuted, strict=True)
    return {
        DEMONSTRATIONS: real.episodes,
        "permuted actions": [episode.replace(act=act) for episode, act in episodes],
    }


def _demonstration_paths(options: Any) -> Iterator[str]:
    """Yield the paths of demonstrations in options, including those of an ensemble's members."""
    if isinstance(options, dict):
        if options.get("expert_data_path") is not None:
            yield options["expert_data_path"]
        for value in options.values():
            yield from _demonstration_paths(value)


def _drawn(env: VectorEnv, constant: bool) -> Callable[..., Batch]:
    """Return a policy of random actions, or of one constant action per environment."""
    all_ids = np.arange(env.n_envs)
    drawn: np.ndarray | None = None

    def act(batch: Batch, state: Any = None) -> Batch:  # noqa: ARG001
        nonlocal drawn
        env_ids = batch.get("env_ids", all_ids)
        if drawn is None or not constant:
            number = env.n_envs if constant else len(env_ids)
            drawn = np.stack([np.asarray(env.action_space.sample()) for _ in range(number)])
        return Batch(act=drawn[env_ids] if constant else drawn)

    return act


def _score(reward: Reward, episode: Batch) -> Batch:
    """Add the rewards of a whole episode, and those without its termination (``endless``)."""
    scored = endless = np.asarray(reward.score(episode), np.float64)
    if episode.terminated.any():
        continued = episode.replace(terminated=np.zeros_like(episode.terminated))
        endless = np.asarray(reward.score(continued), np.float64)
    return episode.replace(scored=scored, endless=endless)


def _probed(name: str, episodes: list[Batch], after: float) -> Probed:
    steps = np.concatenate([episode.endless for episode in episodes])
    means = np.array([episode.endless.mean() for episode in episodes])
    return Probed(
        name,
        per_step=float(steps.mean()),
        error=float(means.std() / np.sqrt(max(len(means) - 1, 1))),
        per_episode=float(np.mean([episode.scored.sum() for episode in episodes])),
        length=float(np.mean([len(episode) for episode in episodes])),
        true_return=float(np.mean([np.asarray(episode.rew).sum() for episode in episodes])),
        lowest=float(steps.min()),
        highest=float(steps.max()),
        above=float((steps > after).mean()),
        below=float((steps < after).mean()),
    )


def _conclusion(rows: list[Probed], after: float, episodes: list[Batch]) -> str:
    lengths = {len(episode) for episode in episodes}
    neither = "Neither survival nor termination is rewarded by itself:"
    if len(lengths) == 1 and not any(episode.terminated.any() for episode in episodes):
        return f"{neither} every episode has {lengths.pop()} steps."
    above, below = (float(np.mean([getattr(row, n) for row in rows])) for n in ("above", "below"))
    measured = (
        f"{above:.0%} of the steps have a higher reward than a step after the end of an episode "
        f"({after:.3g}), {below:.0%} a lower one"
    )
    if above > 0 and above >= MOST * (above + below):
        return f"Survival is rewarded by itself: {measured}."
    if below > 0 and below >= MOST * (above + below):
        return f"Termination is rewarded by itself: {measured}."
    return f"{neither} {measured}."


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
            f"Demonstrations have a mean reward of {first.per_step:.3g} per step, not "
            f"significantly higher than {' and '.join(unclear)}."
        )
    return "Demonstrations have the highest mean reward per step, by more than the margin."

"""Compare rewards on the same transitions: EPIC distance, and rank correlation of returns."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from guerdon import ops
from guerdon.config.errors import as_path, check_number
from guerdon.config.trust import code_of
from guerdon.data import Batch, Demonstrations, load_demonstrations
from guerdon.data.demonstrations import KEYS
from guerdon.data.files import atomic_file
from guerdon.extras import require
from guerdon.lab.curves import image
from guerdon.nn.init import seeded
from guerdon.policy import Policy
from guerdon.reward import Reward, RewardModel, Setting, make_reward
from guerdon.reward.base import EpisodeRewardModel
from guerdon.reward.inputs import TransitionNetwork
from guerdon.training.evaluation import rank_correlation
from guerdon.training.replay import collect_run, load_reward
from guerdon.training.run_folder import RunFolder

ENV = "env"
"""Name of the environment's reward."""
NOISE = (0.0, 0.5, 1.0)
"""Levels of noise at which the policy of a run is played."""
CHUNK = 65_536  # transitions scored at a time
FIT_STEPS = 2_000  # of the regression to the environment's reward
GOOD_FIT = 0.9  # share of its variance that the regression should explain

Matrix = list[list[float | None]]
Scores = Callable[[Batch], np.ndarray]


@dataclass(frozen=True)
class Comparison:
    """Result of `compare_rewards`; None where a value is not defined."""

    names: list[str]
    epic_distance: Matrix
    """0: equal but for positive scale and potential shaping; 0.71: unrelated; 1: opposite."""
    rank_correlation: Matrix
    """Spearman's correlation of the returns of episodes."""
    mean_return: list[float]
    transitions: int
    episodes: int
    gamma: float
    notes: list[str]
    """What to know about single rewards, as sentences."""


def compare_rewards(
    *rewards: str | Path | Reward | RewardModel | Callable[[Batch], Any],
    on: str | Path | Demonstrations | None = None,
    gamma: float = 0.99,
    episodes: int = 10,
    noise: Sequence[float] = NOISE,
    samples: int = 1_000,
    pairs: int = 256,
    seed: int = 0,
    out: str | Path | None = None,
    trust: bool = False,
) -> Comparison:
    """Compare rewards on the same transitions.

    EPIC distances (https://arxiv.org/abs/2006.13900) are of rewards without their potential
    shaping, which needs rewards of other combinations of observations and actions than the recorded
    ones. For those, a regression to the environment's rewards stands in for the environment.

    Args:
        *rewards: Run directories, folders of fitted classifiers, ``"env"`` for the recorded reward
            of the environment, rewards, reward models, or functions of a batch of transitions.
        on: Where the transitions are from: demonstrations, their folder or name, or a run; by
            default the first run among `rewards`.
        gamma: Discount factor of shaping.
        episodes: Episodes of a run's policy at each level of noise.
        noise: Probabilities of a random action at which a run's policy is played.
        samples: Maximum number of transitions for EPIC distances.
        pairs: Maximum number of pairs of action and next observation that a mean is over.
        seed: Random seed.
        out: Folder to write ``comparison.json`` and ``comparison.png`` to.
        trust: Whether to run the code that another user's runs name.
    """
    _check_arguments(rewards, gamma, noise, episodes=episodes, samples=samples, pairs=pairs)
    if out is not None:
        require("matplotlib", "lab")
    loaded = [_loaded(each, trust) for each in rewards]
    names = _unique([name for name, _ in loaded])
    data = _transitions(on, rewards, episodes, noise, seed, trust)
    scores: list[Scores] = []
    for name, (_, reward) in zip(names, loaded, strict=True):
        _check_fields(name, reward)
        scores.append(reward.score)
    returns = [[float(score(episode).sum()) for episode in data.episodes] for score in scores]
    rng = np.random.default_rng(seed)
    rows = _without_ends(data.transitions())
    chosen = rng.permutation(len(rows))[:samples]
    drawn = rng.integers(len(rows), size=(2, min(pairs, len(rows))))
    notes: list[str] = []
    canonical: list[torch.Tensor | None] = []
    for name, (_, reward), score in zip(names, loaded, scores, strict=True):
        function = None if _reads_episodes(reward) else score
        if function is None:
            notes.append(
                f"{name} depends on the episode so far, so that EPIC distance is not defined"
            )
        elif reward.is_env:
            function, note = _regression(data, seed)
            notes += [note] if note else []
        found = None
        if function is not None:
            known = score(rows[chosen])
            found = _canonical(known, function, rows, chosen, drawn, gamma)
            # Rounding errors of a constant are not a reward.
            if found.std() <= 1e-5 * max(float(np.abs(known).max()), 1e-9):
                notes.append(f"{name} is constant, but for potential shaping")
                found = None
        canonical.append(found)
    result = Comparison(
        names,
        _matrix(canonical, lambda a, b: float(ops.pearson_distance(a, b))),
        _matrix(returns, rank_correlation),
        [float(np.mean(each)) for each in returns],
        len(rows),
        len(data),
        gamma,
        notes,
    )
    if out is not None:
        write(result, Path(out))
    return result


def _check_arguments(
    rewards: Sequence[Any], gamma: float, noise: Sequence[float], **numbers: int
) -> None:
    if len(rewards) < 2:
        raise ValueError("give two rewards or more to compare, one argument each")
    if not isinstance(noise, Sequence) or not all(isinstance(each, int | float) for each in noise):
        raise ValueError(f"noise is {noise!r}: give a list of probabilities, such as [0.0, 0.5]")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma}: give a discount factor from 0 to 1")
    for name, value in numbers.items():
        check_number(value, name)


def write(result: Comparison, folder: Path) -> None:
    """Write ``comparison.json`` and ``comparison.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / "comparison.json") as file:
        file.write((json.dumps(asdict(result), indent=1) + "\n").encode())
    with atomic_file(folder / "comparison.png") as file:
        file.write(image(draw(result), dpi=150))


def draw(result: Comparison) -> Any:
    """Return a matplotlib figure with both matrices as heat maps."""
    size, names = len(result.names), result.names
    figure = require("matplotlib.figure", "lab").Figure(
        figsize=(4 + 1.4 * size, 2 + 0.6 * size), layout="constrained"
    )
    panels = (
        ("EPIC distance", result.epic_distance, "viridis_r", 0.0, 1.0),
        ("rank correlation of returns", result.rank_correlation, "RdBu", -1.0, 1.0),
    )
    for axes, (title, matrix, colours, low, high) in zip(
        figure.subplots(1, 2), panels, strict=True
    ):
        values = np.array(matrix, np.float64)  # None becomes nan, which is left blank
        axes.imshow(values, cmap=colours, vmin=low, vmax=high)
        axes.set_title(title, fontsize="medium")
        axes.set_xticks(range(size), names, rotation=30, ha="right", parse_math=False)
        axes.set_yticks(range(size), names, parse_math=False)
        for (i, j), value in np.ndenumerate(values):
            dark = abs(value - (low + high) / 2 if low < 0 else value) > 0.6
            text = "-" if np.isnan(value) else f"{value:.2f}"
            axes.text(j, i, text, ha="center", va="center", color="white" if dark else "black")
    return figure


def _loaded(given: Any, trust: bool) -> tuple[str, Reward]:
    """Return the name and the reward of an argument."""
    if isinstance(given, Reward):
        return " + ".join(given.terms), given
    if isinstance(given, RewardModel):
        return given.name, make_reward(given)
    if isinstance(given, Policy):
        raise TypeError(f"{type(given).__name__} is a policy, which is no reward to compare")
    if callable(given):
        name = getattr(given, "__name__", "function")
        return name, make_reward({"type": "function", "target": given})
    if str(given) == ENV:
        return ENV, make_reward({"type": "env"})
    return as_path(given).resolve().name, load_reward(given, trust=trust)


def _unique(names: list[str]) -> list[str]:
    return [
        f"{name} ({names[:i].count(name) + 1})" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]


def _transitions(
    on: Any, rewards: Sequence[Any], episodes: int, noise: Sequence[float], seed: int, trust: bool
) -> Demonstrations:
    """Return the demonstrations, or episodes of the policy of a run."""
    if isinstance(on, Demonstrations):
        return on
    paths = [each for each in rewards if isinstance(each, str | Path)] if on is None else [on]
    runs = [path for path in paths if RunFolder(path).config.is_file()]
    if runs:
        with code_of(runs[0], trust=trust):
            return collect_run(runs[0], episodes, noise=noise, seed=seed)
    if on is None:
        raise ValueError(
            "there are no transitions to compare rewards on: name a run or demonstrations, with "
            "--on or on=…"
        )
    return load_demonstrations(on)


def _check_fields(name: str, reward: Reward) -> None:
    needed = set(reward.fields) - {*KEYS, "annotations"}
    if needed:
        raise ValueError(
            f"{name} cannot be compared: it reads {', '.join(sorted(needed))}, which is not in "
            "demonstrations"
        )


def _reads_episodes(reward: Reward) -> bool:
    kinds = (isinstance(model, EpisodeRewardModel) for model in reward.models)
    return bool(reward.history) or any(kinds)


def _without_ends(rows: Batch) -> Batch:
    """Return transitions of which none ends an episode: EPIC is of rewards without ends."""
    never = np.zeros(len(rows.rew), bool)
    kept = Batch({key: rows[key] for key in ("obs", "act", "rew", "obs_next")})
    return kept.replace(terminated=never, truncated=never)


def _canonical(
    known: np.ndarray,
    score: Scores,
    rows: Batch,
    chosen: np.ndarray,
    drawn: np.ndarray,
    gamma: float,
) -> torch.Tensor:
    """Return canonically shaped rewards of the chosen rows.

    Args:
        known: Rewards of the chosen rows [N].
        score: Returns rewards of any transitions.
        rows: Transitions.
        chosen: Rows that rewards are returned of [N].
        drawn: Rows of the actions and of the next observations that means are over [2, M].
        gamma: Discount factor.
    """
    mean_t, mean_tp1 = (
        torch.as_tensor(_means(score, rows, rows[key], chosen, drawn))
        for key in ("obs", "obs_next")
    )
    rew = torch.as_tensor(known, dtype=torch.float64)
    return ops.canonical_reward(rew, mean_t, mean_tp1, mean_t.mean(), gamma)


def _means(
    score: Scores, rows: Batch, states: Any, chosen: np.ndarray, drawn: np.ndarray
) -> np.ndarray:
    """Return the mean reward at each chosen state over the drawn actions and next observations."""
    per_chunk = max(1, CHUNK // drawn.shape[1])
    found = []
    for start in range(0, len(chosen), per_chunk):
        at = chosen[start : start + per_chunk]
        act, after = np.tile(drawn, len(at))
        batch = rows[act].replace(
            obs=states[np.repeat(at, drawn.shape[1])], obs_next=rows.obs_next[after]
        )
        found.append(score(batch).reshape(len(at), -1).mean(1, dtype=np.float64))
    return np.concatenate(found)


def _regression(data: Demonstrations, seed: int) -> tuple[Scores, str]:
    """Fit a network to the environment's rewards of the transitions.

    Returns:
        The function, and a sentence on how well it fits a fifth of the transitions, held out.
    """
    rows = _without_ends(data.transitions())
    with seeded(seed):
        inputs = ("obs", "act", "obs_next")
        network = TransitionNetwork(Setting.of(data), inputs, (64, 64), activation="relu")
        tensors = rows.to_device(torch.device("cpu"))
        network.input.settle(tensors)
        mean, scale = tensors.rew.mean(), tensors.rew.std().clamp(min=1e-8)
        target = ((tensors.rew - mean) / scale).float()
        order = torch.randperm(len(target))
        held_out, fitted = order[: len(order) // 5], order[len(order) // 5 :]
        optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        for _ in range(FIT_STEPS):
            batch = fitted[torch.randint(len(fitted), (256,))]
            loss = functional.mse_loss(network(tensors[batch]), target[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    @torch.no_grad()
    def score(batch: Batch) -> np.ndarray:
        found: np.ndarray = (network(batch.to_device(torch.device("cpu"))) * scale + mean).numpy()
        return found

    truth, guess = rows.rew[held_out.numpy()], score(rows[held_out.numpy()])
    explained = 1 - np.square(truth - guess).mean() / max(truth.var(), 1e-12)
    note = (
        f"{ENV}: for other combinations than the recorded ones, a regression stands in, which "
        f"explains {max(explained, 0.0):.0%} of the variance of held-out rewards"
    )
    poor = f"; below {GOOD_FIT:.0%} its EPIC distances are rough" if explained < GOOD_FIT else ""
    return score, note + poor


def _matrix(values: Sequence[Any], measure: Callable[[Any, Any], float | None]) -> Matrix:
    return [[None if a is None or b is None else measure(a, b) for b in values] for a in values]

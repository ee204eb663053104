"""Rewards from ranked demonstrations, better than the best of which a policy can become.

https://arxiv.org/abs/1904.06387 (T-REX), https://arxiv.org/abs/1907.03976 (D-REX).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from guerdon.data.leaves import to_numpy
from guerdon.reward.base import Metrics, register_reward_model
from guerdon.reward.ranking import Pairs, RankingConfig, RankingReward
from guerdon.reward.trained import ImitationConfig, ImitationReward

if TYPE_CHECKING:
    from typing import Self

    from guerdon.data.batch import Batch
    from guerdon.data.demonstrations import Demonstrations


class SnippetConfig(RankingConfig, ImitationConfig):
    """Options of `trex` and `drex`."""

    inputs: list[Literal["obs", "act", "obs_next"]] = Field(default=["obs"], min_length=1)
    """What the reward is a function of; observations alone generalise furthest."""
    symlog: bool = True
    """Whether numbers of observations pass sign(x) log(1 + abs(x)) before they are normalised: bad
    demonstrations go far astray, and what is near 0 shall still be told apart."""
    update_per_collect: int = Field(default=1000, ge=1)
    """Gradient steps of the one fit, at most; 500 to 5,000."""
    num_snippets: int = Field(default=6000, ge=1)
    """Pairs of snippets that are cut from the demonstrations; 2,000 to 20,000."""
    min_snippet_length: int = Field(default=20, ge=1)
    """Fewest transitions of a snippet; both of a pair are equally long."""
    max_snippet_length: int = Field(default=50, ge=1)
    """Most transitions of a snippet; 40 to 100. One is never longer than the shorter of its two
    demonstrations."""
    progress_prior: bool = False
    """Whether the snippet of the better demonstration starts no earlier than that of the worse one,
    as in the paper. What happens late in an episode then looks good, whoever did it."""
    validation_share: float = Field(default=0.2, ge=0, lt=1)
    """The share of the demonstrations that is held out, to measure accuracy and to know when to
    stop; none of fewer than two."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.min_snippet_length > self.max_snippet_length:
            raise ValueError(
                f"min_snippet_length {self.min_snippet_length} is more than max_snippet_length "
                f"{self.max_snippet_length}"
            )
        return self


class TREXConfig(SnippetConfig):
    """Options of `trex`."""

    rank_by: Literal["return", "order", "random"] | list[float] = "return"
    """What ranks the demonstrations: their own ``return``, the ``order`` they are stored in (worst
    first), or a list with a number for each (the more the better). ``random`` shuffles them: a
    control, which has nothing to teach."""


@register_reward_model("trex")
class TREX(RankingReward, ImitationReward):
    """A reward whose sums rank snippets as their demonstrations are ranked; fitted once."""

    Config: ClassVar[type[SnippetConfig]] = TREXConfig

    def ranks(self, demonstrations: Demonstrations) -> np.ndarray:
        """How good each demonstration is: the more the better."""
        said = self.config.rank_by
        if said == "return":
            return demonstrations.returns
        if said == "order":
            return np.arange(len(demonstrations))
        if said == "random":
            return self.generator.permutation(len(demonstrations))
        if len(said) != len(demonstrations):
            raise ValueError(
                f"'rank_by' has {len(said)} numbers for {len(demonstrations)} demonstrations"
            )
        return np.asarray(said, float)

    def take_experts(self, rows: Batch) -> None:  # noqa: ARG002 - it has them as tensors
        """Cuts the pairs; some demonstrations are held out."""
        assert self.demonstrations is not None
        ranks = self.ranks(self.demonstrations)
        if len(np.unique(ranks)) < 2:
            raise ValueError(
                f"all {len(ranks)} demonstrations have the same rank: "
                f"{self.config.type or 'trex'} needs better and worse ones"
            )
        self.network.update(self.expert)
        held_out = choose_held_out(ranks, self.config.validation_share, self.generator)
        number = self.config.num_snippets
        self.pairs = self._cut(ranks, ~held_out, number)
        self.held_out = self._cut(ranks, held_out, max(number // 20, 1)) if held_out.any() else None

    def _cut(self, ranks: np.ndarray, which: np.ndarray, number: int) -> Pairs:
        """Pairs of snippets of some demonstrations."""
        assert self.demonstrations is not None
        config, generator = self.config, self.generator
        worse, better = np.flatnonzero(which)[draw_ranked(ranks[which], number, generator)]
        lengths = self.demonstrations.lengths
        shorter = np.minimum(lengths[worse], lengths[better])
        length, late, later = draw_snippets(
            shorter,
            config.min_snippet_length,
            config.max_snippet_length,
            config.progress_prior,
            generator,
        )
        begins = np.cumsum(lengths) - lengths
        first, second = begins[worse] + late, begins[better] + later
        swap = generator.random(number) < 0.5
        return Pairs(
            self.expert,
            np.where(swap, second, first),
            np.where(swap, first, second),
            length,
            np.where(swap, 0.0, 1.0),
        )

    def collect_data(self, data: Any) -> None:
        """Nothing: it learns from demonstrations alone."""

    def pretrain(self) -> Metrics | None:
        """Fits the networks, if that was not done."""
        if self.trained:
            return None
        self.need_experts()
        metrics = self.fit(self.config.update_per_collect)
        self.network.rescale(self.expert)
        return metrics

    def train(self) -> Metrics | None:
        """See `pretrain`."""
        return self.pretrain()


class DREXConfig(SnippetConfig):
    """Options of `drex`."""

    noise_levels: list[float] | None = None
    """How much noise each demonstration was acted with; where left out, its field ``noise`` says
    so, which ``guerdon collect --noise`` writes."""
    min_accuracy: float = Field(default=0.6, ge=0, le=1)
    """The least share of held-out pairs that has to be ranked rightly; 0.5 is chance."""


@register_reward_model("drex")
class DREX(TREX):
    """A reward whose sums are the less, the more noise somebody acted with."""

    Config = DREXConfig

    def ranks(self, demonstrations: Demonstrations) -> np.ndarray:
        """Minus the noise, after a look at whether it did any harm."""
        noise = self._noise(demonstrations)
        check_noise(noise, demonstrations.returns)
        return -noise

    def _noise(self, demonstrations: Demonstrations) -> np.ndarray:
        said = self.config.noise_levels
        if said is not None:
            if len(said) != len(demonstrations):
                raise ValueError(
                    f"'noise_levels' has {len(said)} numbers for {len(demonstrations)} "
                    "demonstrations"
                )
            return np.asarray(said, float)
        levels = []
        for number, episode in enumerate(demonstrations.episodes):
            if "noise" not in episode:
                raise ValueError(
                    "these demonstrations do not say how noisy each is: collect them with "
                    "'guerdon collect --noise', or give 'noise_levels'"
                )
            noise = np.asarray(to_numpy(episode.noise), float)
            if np.ptp(noise):
                raise ValueError(f"'noise' changes within demonstration {number}")
            levels.append(noise.flat[0])
        return np.array(levels)

    def fit(self, steps: int) -> Metrics:
        """Fits the networks; an error if they cannot tell noise apart in held-out episodes."""
        metrics = super().fit(steps)
        accuracy, least = metrics.get("validation_accuracy", 1.0), self.config.min_accuracy
        if accuracy < least:
            raise ValueError(
                f"noise does not rank these demonstrations: of held-out pairs {accuracy:.0%} were "
                f"ranked rightly, and 'min_accuracy' asks for {least:.0%}; collect more, or with "
                "levels further apart"
            )
        return metrics


def draw_ranked(ranks: np.ndarray, number: int, generator: np.random.Generator) -> np.ndarray:
    """Draws pairs of a worse and a better one [2, number], each such pair as likely as any."""
    order = np.argsort(ranks, kind="stable")
    above = np.searchsorted(ranks[order], ranks[order], "right")
    n_better = len(ranks) - above
    worse = generator.choice(len(ranks), size=number, p=n_better / n_better.sum())
    better = above[worse] + generator.integers(n_better[worse])
    return np.stack([order[worse], order[better]])


def draw_snippets(
    shorter: np.ndarray,
    min_length: int,
    max_length: int,
    progress_prior: bool,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws where the two snippets of pairs lie in their demonstrations.

    Both start in the same range, that of the shorter demonstration: if those of a longer one could
    start later, and longer ones were better, then to be late would be a reward.

    Args:
        shorter: Length of the shorter demonstration of each pair [P].
        min_length: Fewest transitions of a snippet, where there are so many.
        max_length: Most transitions.
        progress_prior: Whether the better one starts no earlier.
        generator: Draws.

    Returns:
        The length of both, where the worse one starts, and where the better one.
    """
    low, high = np.minimum(min_length, shorter), np.minimum(max_length, shorter)
    length = generator.integers(low, high + 1)
    room = shorter - length + 1
    worse = generator.integers(room)
    better = generator.integers(worse if progress_prior else 0, room)
    return length, worse, better


def choose_held_out(ranks: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    """Marks demonstrations to be held out, from the worst to the best.

    None are, where that would leave fewer than two ranks on either side.
    """
    held_out = np.zeros(len(ranks), bool)
    number = max(round(share * len(ranks)), 2) if share else 0  # one alone cannot be ranked
    for group in np.array_split(np.argsort(ranks, kind="stable"), max(number, 1)):
        held_out[generator.choice(group)] = number > 0
    enough = min(len(np.unique(ranks[held_out])), len(np.unique(ranks[~held_out]))) >= 2
    return held_out & enough


def check_noise(noise: np.ndarray, returns: np.ndarray) -> None:
    """Raises where more noise did no harm: the only use that is made of true rewards.

    From the least noise to the most, the mean return has to fall, and must not rise between, by
    more than two standard errors; of a single episode these are not known, and it may. Where all
    returns are the same, nothing is known and all is well.

    Args:
        noise: Of each episode.
        returns: Of each episode.
    """
    levels = np.unique(noise)
    if len(levels) < 2 or not np.ptp(returns):
        return
    groups = [returns[noise == level] for level in levels]
    several = [pair for pair in pairwise(groups) if min(map(len, pair)) > 1]
    rises = any(_gain(before, after) > 0 for before, after in several)
    if rises or _gain(groups[-1], groups[0]) <= 0:
        means = ", ".join(
            f"{group.mean():.4g} with {level:g}"
            for level, group in zip(levels, groups, strict=True)
        )
        raise ValueError(
            f"noise does not rank these demonstrations: their mean return is {means}; collect with "
            "other levels, or rank them yourself and use trex"
        )


def _gain(before: np.ndarray, after: np.ndarray) -> float:
    """How much a mean rises beyond two standard errors."""
    error = np.sqrt(sum(group.var() / max(len(group) - 1, 1) for group in (before, after)))
    return float(after.mean() - before.mean() - 2 * error)

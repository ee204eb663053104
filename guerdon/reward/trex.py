"""Rewards from ranked demonstrations, which a policy can outperform.

https://arxiv.org/abs/1904.06387 (T-REX), https://arxiv.org/abs/1907.03976 (D-REX).
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from guerdon.data.batch import Batch
from guerdon.data.demonstrations import Demonstrations
from guerdon.data.leaves import to_numpy
from guerdon.reward.base import Metrics, register_reward_model
from guerdon.reward.ranking import Pairs, RankingConfig, RankingReward
from guerdon.reward.trained import ImitationConfig, Inputs, PretrainedReward


class SnippetConfig(RankingConfig, ImitationConfig):
    """Options of `trex` and `drex`."""

    inputs: Inputs = Field(default=["obs"])
    """Inputs of the networks; observations alone generalise best."""
    symlog: bool = True
    """Whether to transform observations by sign(x) log(1 + abs(x)), against outliers."""
    update_per_collect: int = Field(default=1000, ge=1)
    """Maximum number of gradient steps of the only fit; usually 500 to 5,000."""
    num_snippets: int = Field(default=6000, ge=1)
    """Number of pairs of snippets; usually 2,000 to 20,000. If longer demonstrations are better,
    inputs that reveal the time (a clock, a counter, distance covered) get a high reward late in an
    episode: leave them out, or cut the demonstrations to one length."""
    min_snippet_length: int = Field(default=20, ge=1)
    """Minimum length of a snippet, usually 10 to 50; both of a pair have the same length."""
    max_snippet_length: int = Field(default=50, ge=1)
    """Maximum length of a snippet, up to the length of the shorter demonstration; usually 40 to
    100."""
    progress_prior: bool = False
    """Whether the better snippet starts no earlier than the worse one, as in the paper, which
    favours states late in an episode."""
    validation_share: float = Field(default=0.2, ge=0, lt=1)
    """Fraction of the demonstrations to hold out for accuracy and early stopping: at least two, or
    none if fewer than two ranks would remain."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.subsample > 1:
            raise ValueError(
                "trex and drex compare parts of whole episodes: leave 'subsample' out, or use "
                "another reward"
            )
        if self.min_snippet_length > self.max_snippet_length:
            raise ValueError(
                f"min_snippet_length {self.min_snippet_length} is more than max_snippet_length "
                f"{self.max_snippet_length}"
            )
        return self


class TREXConfig(SnippetConfig):
    """Options of `trex`."""

    rank_by: Literal["return", "order", "random"] | list[float] = "return"
    """Ranking of the demonstrations: by ``return``, by storage ``order`` (worst first), ``random``
    as a control, or by a list of numbers (higher is better)."""


@register_reward_model("trex")
class TREX(RankingReward, PretrainedReward):
    """A reward whose sums rank snippets like their demonstrations; fitted once."""

    Config: ClassVar[type[SnippetConfig]] = TREXConfig

    def ranks(self, demonstrations: Demonstrations) -> np.ndarray:
        """Return the rank of each demonstration; higher is better."""
        rank_by, number = self.config.rank_by, len(demonstrations)
        if isinstance(rank_by, list):
            return _one_each("rank_by", rank_by, number)
        if rank_by == "return":
            return demonstrations.returns
        return np.arange(number) if rank_by == "order" else self.generator.permutation(number)

    def take_demonstrations(self, rows: Batch) -> None:
        """Sample the pairs of snippets; some demonstrations are held out."""
        assert self.demonstrations is not None
        self.expert = self.tensors(rows)
        lengths, ranks = self.demonstrations.lengths, self.ranks(self.demonstrations)
        if len(np.unique(ranks)) < 2:
            raise ValueError(
                f"all {len(ranks)} demonstrations have the same rank: {self.name} needs better and "
                "worse ones"
            )
        self.network.update(self.expert)
        number = self.config.num_snippets
        held_out = choose_held_out(ranks, self.config.validation_share, self.generator)
        drawn = [self._draw(~held_out, ranks, lengths, number)]
        if held_out.any():
            drawn.append(self._draw(held_out, ranks, lengths, max(number // 20, 1)))
        first, second, length, label = map(np.concatenate, zip(*drawn, strict=True))
        is_held_out = np.arange(len(label)) >= number
        self.pairs = Pairs(self.expert, first, second, length, label, is_held_out)

    def _draw(
        self, which: np.ndarray, ranks: np.ndarray, lengths: np.ndarray, number: int
    ) -> tuple[np.ndarray, ...]:
        """Draw pairs of snippets of some demonstrations: first, second, length, label."""
        pairs = np.flatnonzero(which)[draw_ranked(ranks[which], number, self.generator)]
        length, starts = draw_snippets(lengths[pairs], self.config, self.generator)
        starts += (np.cumsum(lengths) - lengths)[pairs]
        swap = self.generator.random(number) < 0.5
        first, second = np.where(swap, starts[::-1], starts)
        return first, second, length, np.where(swap, 0.0, 1.0)


class DREXConfig(SnippetConfig):
    """Options of `drex`."""

    noise_levels: list[float] | None = None
    """Action noise of each demonstration; by default its field ``noise``, which
    ``guerdon collect --noise`` writes."""
    min_accuracy: float = Field(default=0.6, ge=0, le=1)
    """Minimum fraction of held-out pairs that are ranked correctly; 0.5 is chance."""


@register_reward_model("drex")
class DREX(TREX):
    """T-REX with demonstrations ranked by their noise; does not read returns."""

    Config = DREXConfig

    def ranks(self, demonstrations: Demonstrations) -> np.ndarray:
        """Return the negative noise of each demonstration."""
        if self.config.noise_levels is not None:
            return -_one_each("noise_levels", self.config.noise_levels, len(demonstrations))
        if "noise" not in demonstrations.episodes[0]:
            raise ValueError(
                "the noise of these demonstrations is unknown: collect them with "
                "'guerdon collect --noise', or give 'noise_levels'"
            )
        levels = [np.unique(to_numpy(episode.noise)) for episode in demonstrations.episodes]
        for number, found in enumerate(levels):
            if len(found) > 1:
                raise ValueError(f"'noise' changes within demonstration {number}")
        return -np.concatenate(levels).astype(float)

    def fit(self, steps: int) -> Metrics:
        """See `RankingReward`; raises an error if too few held-out pairs are ranked correctly."""
        metrics = super().fit(steps)
        accuracy, least = metrics.get("validation_accuracy", 1.0), self.config.min_accuracy
        if accuracy < least:
            raise ValueError(
                f"noise does not rank these demonstrations: {accuracy:.0%} of held-out pairs were "
                f"ranked correctly, and 'min_accuracy' requires {least:.0%}; collect more, or with "
                "levels further apart"
            )
        return metrics


def draw_ranked(ranks: np.ndarray, number: int, generator: np.random.Generator) -> np.ndarray:
    """Draw pairs of a worse and a better demonstration [2, number], uniformly."""
    order = np.argsort(ranks, kind="stable")
    above = np.searchsorted(ranks[order], ranks[order], "right")
    n_better = len(ranks) - above
    worse = generator.choice(len(ranks), size=number, p=n_better / n_better.sum())
    better = above[worse] + generator.integers(n_better[worse])
    return np.stack([order[worse], order[better]])


def draw_snippets(
    lengths: np.ndarray, config: SnippetConfig, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw both snippets of each pair, uniformly within demonstrations of these lengths [2, P].

    Returns the length of both [P], and the starts of the worse and of the better [2, P].
    """
    shorter, prior = lengths.min(0), config.progress_prior
    low = np.minimum(config.min_snippet_length, shorter)
    length = generator.integers(low, np.minimum(config.max_snippet_length, shorter) + 1)
    worse = generator.integers((shorter if prior else lengths[0]) - length + 1)
    better = generator.integers(worse if prior else 0, lengths[1] - length + 1)
    return length, np.stack([worse, better])


def choose_held_out(ranks: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    """Mark demonstrations to hold out, spread over the ranks.

    None are marked if this would leave fewer than two ranks on either side.
    """
    held_out = np.zeros(len(ranks), bool)
    number = max(round(share * len(ranks)), 2) if share else 0  # one alone cannot be ranked
    for group in np.array_split(np.argsort(ranks, kind="stable"), max(number, 1)):
        held_out[generator.choice(group)] = number > 0
    enough = min(len(np.unique(ranks[held_out])), len(np.unique(ranks[~held_out]))) >= 2
    return held_out & enough


def _one_each(option: str, values: Sequence[float], number: int) -> np.ndarray:
    if len(values) != number:
        raise ValueError(f"'{option}' has {len(values)} numbers for {number} demonstrations")
    return np.asarray(values, float)

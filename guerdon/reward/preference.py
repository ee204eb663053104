"""Rewards from preferences between segments of the policy's episodes.

https://arxiv.org/abs/1706.03741 (the method), https://arxiv.org/abs/2106.05091 (PEBBLE: off-policy,
with rewards of the replay buffer that follow the model).
"""

import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from guerdon import ops
from guerdon.config.schema import Section
from guerdon.config.validation import ReadIf
from guerdon.data.batch import Batch, flatten
from guerdon.data.leaves import to_numpy
from guerdon.data.preferences import SKIP, Preference, load_preferences, save_preferences
from guerdon.reward.base import Metrics, Setting, Stateful, register_reward_model
from guerdon.reward.ranking import Pairs, RankingConfig, RankingReward
from guerdon.reward.trained import Memory, TrainedConfig, TrainedReward, in_spaces

SegmentPairs = list[tuple[Batch, Batch]]
"""Pairs of segments [T, ...] of the same fields and the same length."""


PERFECT = {"beta": np.inf, "gamma": 1.0, "mistake": 0.0, "skip": 0.0, "equal": 0.0}
TYPES: dict[str, dict[str, float]] = {
    "perfect": {},
    "noisy": {"beta": 3.0, "mistake": 0.1},
    "myopic": {"gamma": 0.9},
    "skipping": {"skip": 0.25},
    "equal": {"equal": 0.25},
}
"""Options in which the teacher of each type differs from the perfect one."""


class TeacherConfig(Section):
    """Options of a synthetic teacher; the defaults depend on its type.

    They are those of B-Pref (https://arxiv.org/abs/2111.03026), independent of the reward's scale.
    """

    type: Literal["perfect", "noisy", "myopic", "skipping", "equal"] = "perfect"
    """Kind of errors: none, wrong labels, discounted early steps, no label if both segments are
    bad, or label 0.5 if they are similar."""
    beta: float | None = Field(default=None, gt=0)
    """Rationality: logit of the right label per standard deviation of returns; 1 to 10."""
    gamma: float | None = Field(default=None, gt=0, le=1)
    """Discount of steps by their distance to the end of the segment; 0.9 to 1."""
    mistake: float | None = Field(default=None, ge=0, le=0.5)
    """Probability of the opposite label; 0 to 0.2."""
    skip: float | None = Field(default=None, ge=0, le=1)
    """Quantile of all returns below which both segments have to be for no label; 0 to 0.5."""
    equal: float | None = Field(default=None, ge=0)
    """Difference of returns, in standard deviations, below which the label is 0.5; 0 to 1."""


class Teacher:
    """Compares segments by their true rewards."""

    def __init__(self, config: TeacherConfig) -> None:
        given = config.model_dump(exclude={"type"}, exclude_none=True)
        options = {**PERFECT, **TYPES[config.type], **given}
        self.name = config.type
        self.beta, self.gamma, self.mistake, self.skip, self.equal = (
            options[name] for name in PERFECT
        )

    def returns(self, rew: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Returns [P] of the first rows, so many [P], of true rewards [P, T]."""
        to_end = length[:, None] - 1 - np.arange(rew.shape[1])
        weight = np.where(to_end < 0, 0.0, self.gamma ** np.maximum(to_end, 0))
        return np.asarray((rew.astype(np.float64) * weight).sum(1))

    def label(
        self,
        first: np.ndarray,
        second: np.ndarray,
        all_returns: np.ndarray,
        generator: np.random.Generator,
    ) -> np.ndarray:
        """Labels [P] by returns of first and second segments: 0, 0.5 or 1; NaN if there is none."""
        difference = (second - first) / max(float(all_returns.std()), 1e-12)
        label = correct = 0.5 * (1 + np.sign(difference))
        if np.isfinite(self.beta):
            right = 1 / (1 + np.exp(-np.minimum(self.beta * np.abs(difference), 700)))
            label = np.where(generator.random(len(label)) < right, correct, 1 - correct)
        if self.mistake:
            label = np.where(generator.random(len(label)) < self.mistake, 1 - label, label)
        label = np.where(np.abs(difference) < self.equal, 0.5, label)
        if self.skip:
            bad = np.quantile(all_returns, self.skip)
            label = np.where(np.maximum(first, second) < bad, np.nan, label)
        return label


class PreferenceConfig(RankingConfig, TrainedConfig):
    """Options of `preference`."""

    comparisons: int = Field(default=200, ge=0)
    """Queries to the teacher in the whole run, each about a pair of segments; 100 to 2,000. 0 with
    the preferences of ``preferences_path`` alone."""
    initial_share: float = Field(default=0.2, gt=0, le=1)
    """Fraction of the queries in the first round, about the first data; 0.1 to 0.25."""
    rounds: int = Field(default=10, ge=0)
    """Number of later rounds, which share the other queries."""
    schedule: Literal["hyperbolic", "constant"] = "hyperbolic"
    """Share of later round k in the other queries: in proportion to 1 / k, or the same for all."""
    train_every: int | None = Field(default=1000, ge=1)
    """Transitions between two rounds; the rounds should end by half of the run."""
    queries: Literal["disagreement", "uniform"] = "disagreement"
    """Pairs to query: those that the networks disagree on most, or uniformly drawn ones."""
    candidates: int = Field(default=10, ge=1)
    """Pairs from which each query by disagreement is chosen; 5 to 20."""
    segment_length: int = Field(default=50, ge=1)
    """Transitions of a segment; 25 to 100. The last of an episode may be shorter, and is compared
    with the first part of the other; less than a quarter of a broken-off episode is dropped."""
    teacher: TeacherConfig = TeacherConfig()
    """Synthetic teacher, which compares segments by the environment's reward."""
    update_per_collect: int = Field(default=300, ge=1)
    """Maximum number of gradient steps of a round; 100 to 1,000."""
    buffer_size: int = Field(default=20_000, ge=1)
    """Maximum number of the policy's newest transitions that queries are about."""
    clear_buffer_per_iters: int | None = Field(default=None, ge=1)
    """Drop them whenever the number of policy updates is divisible by this; by default never."""
    preferences_path: str | None = None
    """File of preferences to start with; see `guerdon.data.preferences`."""
    record_path: str | None = None
    """File that all queries and answers of the run are appended to."""
    read_if: ClassVar[ReadIf] = (
        ("candidates", "queries", "disagreement"),
        ("initial_share", "rounds", True),
        ("schedule", "rounds", True),
    )


@register_reward_model("preference")
class PreferenceReward(RankingReward, TrainedReward):
    """A reward whose sums rank segments of the policy's episodes as a teacher does.

    Attributes:
        asked: Number of queries so far.
        round: Number of rounds so far.
        skipped: Number of queries without an answer.
        unlearned: Number of preferences since the last fit.
    """

    Config = PreferenceConfig
    saved = (*TrainedReward.saved, "cutter", "asked", "round", "skipped", "unlearned")

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        config = self.config
        self.collects = self.fields
        self.can_pretrain = config.preferences_path is not None
        self.memory = Memory(max(config.buffer_size // config.segment_length, 2))
        self.teacher = Teacher(config.teacher)
        self.asked = self.round = self.skipped = self.unlearned = 0
        self.cutter = self._new_cutter()
        self._schedule = query_schedule(
            config.comparisons, config.initial_share, config.rounds, config.schedule
        )
        if config.preferences_path is not None:
            self._load_preferences(config.preferences_path)

    # --- data

    def _new_cutter(self) -> "Cutter":
        length = self.config.segment_length
        return Cutter(length, shortest=-(-length // 4))

    def _load_preferences(self, path: str) -> None:
        labelled = [each for each in load_preferences(path) if each.label not in (SKIP, None)]
        if not labelled:
            raise ValueError(f"{path} has no pair with a label: 0, 0.5 or 1")
        pairs = [(self._read(each.first, path), self._read(each.second, path)) for each in labelled]
        label = np.array([each.label for each in labelled], float)
        number = number_to_hold_out(self.pairs.held_out, len(pairs), self.config.validation_share)
        self._add(pairs, label, hold_out(pairs, number, self.generator))

    def _read(self, segment: Batch, path: str) -> Batch:
        """The fields of a segment of a file."""
        if missing := [name for name in self.fields if name not in segment]:
            raise ValueError(f"the segments of {path} have no {missing[0]!r}: see 'inputs'")
        fields = Batch({name: segment[name] for name in self.fields})
        return in_spaces(fields, self.setting, f"the preferences in {path}")

    def _add(self, pairs: SegmentPairs, label: np.ndarray, held_out: np.ndarray) -> None:
        joined = Batch.cat([segment for pair in pairs for segment in pair])
        rows = in_spaces(joined, self.setting, "the segments").to_device(self.device)
        self.network.update(rows)
        length = np.array([len(first) for first, _ in pairs])
        first = 2 * (np.cumsum(length) - length)
        self.pairs = self.pairs.join(Pairs(rows, first, first + length, length, label, held_out))
        self.unlearned += len(pairs)

    def collect_data(self, batch: Batch) -> None:
        """Cut fresh transitions into segments."""
        self.new += int(np.count_nonzero(batch.mask))
        segments = self.cutter.add(batch, (*self.fields, "rew"))
        if segments is not None:
            drawn = self.generator.random(len(segments.length))
            self.memory.add(segments.replace(held_out=drawn < self.config.validation_share))

    @property
    def forgets(self) -> bool:
        """See `TrainedReward`: the newest segments overwrite the oldest anyway."""
        return False

    # --- learning

    def pretrain(self) -> Metrics | None:
        """Fit the networks to the preferences of ``preferences_path``."""
        return self._learn()

    def train(self) -> Metrics | None:
        """Ask the queries of a round, and fit the networks to all answers so far."""
        if self.new < self.train_every or len(self.memory) < 2:
            return None
        self.new = 0
        if self.round < len(self._schedule):
            if number := self._schedule[self.round]:
                self._ask(number)
            self.round += 1
        return self._learn()

    def _learn(self) -> Metrics | None:
        if not self.unlearned or self.pairs.held_out.all():
            return None
        self.unlearned = 0
        metrics = self.fit(self.config.update_per_collect)
        return metrics | {"comparisons": len(self.pairs), "skipped": self.skipped}

    # --- queries

    def _ask(self, number: int) -> None:
        """Let the teacher compare pairs of kept segments."""
        first, second = self._choose(number)
        kept, returns = self.memory.rows(), self.teacher.returns
        length = np.minimum(kept.length[first], kept.length[second])
        label = self.teacher.label(
            returns(kept.rew[first], length),
            returns(kept.rew[second], length),
            returns(kept.rew, kept.length),
            self.generator,
        )
        rows = Batch({name: kept[name] for name in self.fields})
        pairs = [(rows[a][:n], rows[b][:n]) for a, b, n in zip(first, second, length, strict=True)]
        if self.config.record_path is not None:
            self._record(pairs, label, self.config.record_path)
        answered = np.flatnonzero(~np.isnan(label))
        self.asked += number
        self.skipped += number - len(answered)
        if len(answered):
            held_out = kept.held_out[first][answered]
            self._add([pairs[each] for each in answered], label[answered], held_out)

    def _choose(self, number: int) -> np.ndarray:
        """Indices [2, number] of the segments to compare: of a pair, both are held out or none.

        Held-out pairs are drawn uniformly, so that they represent all data.
        """
        held_out = self.memory.rows().held_out
        if (~held_out).sum() < 2:  # too few to train on
            held_out[:] = False  # in the memory, so that they are never held out later
        kept, away = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        n_away = number_to_hold_out(self.pairs.held_out, number, self.config.validation_share)
        n_away = n_away if len(away) > 1 else 0
        n_kept = number - n_away
        by_disagreement = self.config.queries == "disagreement" and self.trained > 0
        pairs = self._draw(kept, n_kept * self.config.candidates if by_disagreement else n_kept)
        if by_disagreement and n_kept:
            pairs = pairs[:, np.argsort(-self._disagreement(*pairs), kind="stable")[:n_kept]]
        return np.concatenate([pairs, self._draw(away, n_away)], 1)

    def _draw(self, segments: np.ndarray, number: int) -> np.ndarray:
        """Pairs [2, number] of different segments."""
        if not number:
            return np.zeros((2, 0), np.int64)
        first = self.generator.integers(len(segments), size=number)
        further = self.generator.integers(1, len(segments), size=number)
        return segments[np.stack([first, (first + further) % len(segments)])]

    def _disagreement(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Standard deviation of the networks' probabilities that the second segment is better."""
        kept, size = self.memory.rows(), self.config.segment_length
        rows = self.tensors(kept.apply(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])))
        length = np.minimum(kept.length[first], kept.length[second])
        none = np.zeros(len(first), bool)
        pairs = Pairs(rows, first * size, second * size, length, none, none)
        logit = self.logits(pairs, np.arange(len(first)))
        return ops.preference_probability(logit).std(0, correction=0).numpy(force=True)

    def _record(self, pairs: SegmentPairs, label: np.ndarray, path: str) -> None:
        start, rater = _next_number(pathlib.Path(path)), f"synthetic {self.teacher.name}"
        answers = [SKIP if np.isnan(each) else float(each) for each in label]
        preferences = [
            Preference(f"{number:06d}", *pair, label=answer, rater=rater)
            for number, (pair, answer) in enumerate(zip(pairs, answers, strict=True), start)
        ]
        save_preferences(path, preferences)

    # --- state

    def training_state(self) -> dict[str, Any]:
        """See `RewardModel`."""
        pairs = {**vars(self.pairs), "rows": self.pairs.rows.to_dict()}
        return super().training_state() | {"pairs": pairs}

    def portable_state(self) -> dict[str, Any]:
        """See `RewardModel`: another run keeps the answers, and asks queries of its own."""
        none = dict.fromkeys(("asked", "round", "skipped", "unlearned"), 0)
        return super().portable_state() | none | {"cutter": self._new_cutter().training_state()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        super().load_training_state({name: state[name] for name in self.saved})
        rows = Batch(state["pairs"]["rows"]).to_device(self.device)
        self.pairs = Pairs(**{**state["pairs"], "rows": rows})


class Cutter(Stateful):
    """Cuts fresh episodes into segments of one length; the last of an episode may be shorter.

    A segment whose episode was broken off is dropped if it has fewer rows than `shortest`.
    """

    saved = ("open", "filled")

    def __init__(self, length: int, shortest: int = 1) -> None:
        self.length = length
        self.shortest = shortest
        self.open = Batch()  # rows of segments that are not complete [n_envs, length, ...]
        self.filled = np.zeros(0, np.int64)

    def add(self, batch: Batch, fields: Sequence[str]) -> Batch | None:
        """Take fields of fresh transitions; see `RewardModel.collect_data`.

        Returns:
            The segments that are complete now [N, length, ...], with ``length``: how many rows of
            each are valid. None if there are none.
        """
        rows = Batch({name: batch[name] for name in fields})
        mask, first, done = batch.mask, batch.first, batch.terminated | batch.truncated
        n_steps, n_envs = mask.shape
        if len(self.filled) != n_envs:
            self.filled = np.zeros(n_envs, np.int64)
            self.open = rows.apply(
                lambda leaf: np.zeros((n_envs, self.length, *leaf.shape[2:]), leaf.dtype)
            )
        closed = []
        for time in range(n_steps):
            envs = np.flatnonzero(mask[time])
            broken = envs[first[time, envs]]
            if len(broken):
                closed.append(self._close(broken[self.filled[broken] >= self.shortest]))
                self.filled[broken] = 0
            filled = self.filled[envs]
            self.open[envs, filled] = rows[time, envs]
            self.filled[envs] = filled + 1
            ends = envs[(filled + 1 == self.length) | done[time, envs]]
            if len(ends):
                closed.append(self._close(ends))
        segments = Batch.cat(closed)
        return segments if len(segments) else None

    def _close(self, envs: np.ndarray) -> Batch:
        segments: Batch = self.open[envs].replace(length=self.filled[envs])
        self.filled[envs] = 0
        return segments


def number_to_hold_out(held_out: np.ndarray, number: int, share: float) -> int:
    """How many of so many further pairs to hold out for a share of all; one is left to fit."""
    total = len(held_out) + number
    wanted = min(round(share * total), total - 1) - int(held_out.sum())
    return min(max(wanted, 0), number)


def hold_out(pairs: SegmentPairs, number: int, generator: np.random.Generator) -> np.ndarray:
    """Draw pairs to hold out that share no segment with any other pair.

    Segments count as the same if their first rows are: as many as the shortest has, since a pair
    may hold the first part of a segment that is whole in another. At most `number` are drawn.
    """
    shortest = min(len(first) for first, _ in pairs)
    ids: dict[bytes, int] = {}
    segments = np.array(
        [[ids.setdefault(_digest(each[:shortest]), len(ids)) for each in pair] for pair in pairs]
    )
    group = np.arange(len(ids))  # of each segment: the lowest id that pairs connect it with
    while np.ptp(group[segments], 1).any():
        np.minimum.at(group, segments, group[segments].min(1, keepdims=True))
    names, groups = np.unique(group[segments[:, 0]], return_inverse=True)
    held_out = np.zeros(len(pairs), bool)
    for each in generator.permutation(len(names)):
        if (held_out | (groups == each)).sum() <= number:
            held_out |= groups == each
    return held_out


def _digest(segment: Batch) -> bytes:
    leaves = b"".join(to_numpy(leaf).tobytes() for _, leaf in flatten(segment))
    return hashlib.sha256(leaves).digest()


def query_schedule(comparisons: int, initial_share: float, rounds: int, schedule: str) -> list[int]:
    """Number of queries in each round, the first one included; see `PreferenceConfig`."""
    initial = round(initial_share * comparisons) if rounds else comparisons
    weights = np.ones(rounds) if schedule == "constant" else 1 / np.arange(1, rounds + 1)
    ends = np.cumsum(weights) / max(weights.sum(), 1) * (comparisons - initial)
    return [initial, *np.diff(np.rint(ends).astype(int), prepend=0).tolist()]


def _next_number(path: pathlib.Path) -> int:
    """A number above those of all pairs whose segments lie beside a file of preferences."""
    stems = [file.stem for file in path.with_name(f"{path.stem}_segments").glob("*")]
    return max((int(stem) for stem in stems if stem.isdecimal()), default=-1) + 1

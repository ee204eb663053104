"""Rewards from preferences between segments of the policy's episodes.

https://arxiv.org/abs/1706.03741 (the method), https://arxiv.org/abs/2106.05091 (PEBBLE: off-policy;
rewards of the replay buffer are computed with the current model).
"""

import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from guerdon import ops
from guerdon.config.schema import Section
from guerdon.config.validation import ReadIf
from guerdon.data.batch import Batch, flatten
from guerdon.data.leaves import to_numpy
from guerdon.data.preferences import SKIP, Preference, load_preferences, save_preferences
from guerdon.data.spaces import in_spaces
from guerdon.reward.base import Metrics, Setting, Stateful, register_reward_model
from guerdon.reward.inputs import TransitionInput
from guerdon.reward.ranking import Pairs, RankingConfig, RankingReward
from guerdon.reward.trained import Memory, TrainedConfig, TrainedReward

_NEIGHBOR = 5  # as in PEBBLE
_VISITED = 1_000  # observations that novelty is compared with

SegmentPairs = list[tuple[Batch, Batch]]
"""Pairs of segments [T, ...] with the same fields and length."""


PERFECT = {"beta": np.inf, "gamma": 1.0, "mistake": 0.0, "skip": 0.0, "equal": 0.0}
TYPES: dict[str, dict[str, float]] = {
    "perfect": {},
    "noisy": {"beta": 3.0, "mistake": 0.1},
    "myopic": {"gamma": 0.9},
    "skipping": {"skip": 0.25},
    "equal": {"equal": 0.25},
}
"""Options in which each type of teacher differs from the perfect one."""


class TeacherConfig(Section):
    """Options of a synthetic teacher; the defaults depend on its type.

    Defaults are from B-Pref (https://arxiv.org/abs/2111.03026), independent of the reward's scale.
    """

    type: Literal["perfect", "noisy", "myopic", "skipping", "equal"] = "perfect"
    """Kind of errors: none, wrong labels, discounted early steps, no label if both segments are
    bad, or label 0.5 if they are similar."""
    beta: float | None = Field(default=None, gt=0)
    """Rationality: logit of the right label per standard deviation of returns; usually 1 to 10."""
    gamma: float | None = Field(default=None, gt=0, le=1)
    """Discount factor by distance to the end of the segment; usually 0.9 to 1."""
    mistake: float | None = Field(default=None, ge=0, le=0.5)
    """Probability of the opposite label; usually 0 to 0.2."""
    skip: float | None = Field(default=None, ge=0, le=1)
    """Quantile of all returns, usually 0 to 0.5; no label if both segments are below it."""
    equal: float | None = Field(default=None, ge=0)
    """Difference of returns, in standard deviations, below which the label is 0.5; usually 0 to
    1."""


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
        """Return returns [P] of the first `length` [P] true rewards [P, T]."""
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
        """Return labels [P] by returns of both segments: 0, 0.5 or 1; NaN for no label."""
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
    """Number of queries in the run, each for a pair of segments; usually 100 to 2,000. 0 uses only
    the preferences of ``preferences_path``."""
    initial_share: float = Field(default=0.2, gt=0, le=1)
    """Fraction of the queries in the first round; usually 0.1 to 0.25."""
    rounds: int = Field(default=10, ge=0)
    """Number of later rounds, which share the other queries; usually 5 to 60."""
    schedule: Literal["hyperbolic", "constant"] = "hyperbolic"
    """Share of round k in the other queries: proportional to 1 / k, or constant."""
    train_every: int | None = Field(default=1000, ge=1)
    """Transitions between rounds; the last round should be in the first half of the run."""
    queries: Literal["disagreement", "uniform"] = "disagreement"
    """Pairs to query: with the largest disagreement of the networks, or drawn uniformly."""
    candidates: int = Field(default=10, ge=1)
    """Number of candidate pairs per query with ``queries: disagreement``; usually 5 to 20."""
    segment_length: int = Field(default=50, ge=1)
    """Length of a segment; usually 25 to 100. The last segment of an episode may be shorter and is
    compared with the first part of another; of a broken episode, less than a quarter segment is
    dropped."""
    unsupervised_steps: int = Field(default=0, ge=0)
    """Transitions before the first query, in which the reward is the novelty of an observation
    instead, the log-distance to its 5th nearest neighbour, as in PEBBLE
    (https://arxiv.org/abs/2106.05091); usually a hundredth of the run. A replay buffer's
    transitions get the learned reward afterwards."""
    teacher: TeacherConfig = TeacherConfig()
    """Synthetic teacher, which compares segments by the environment reward."""
    update_per_collect: int = Field(default=300, ge=1)
    """Maximum number of gradient steps per round; usually 100 to 1,000."""
    buffer_size: int = Field(default=20_000, ge=1)
    """Maximum number of the policy's newest transitions for queries."""
    clear_buffer_per_iters: int | None = Field(default=None, ge=1)
    """Drop them every this many policy updates; null never drops them."""
    preferences_path: str | None = None
    """File of initial preferences; see `guerdon.data.preferences`."""
    record_path: str | None = None
    """File to which all queries and labels of the run are appended."""
    read_if: ClassVar[ReadIf] = (
        ("candidates", "queries", "disagreement"),
        ("initial_share", "rounds", True),
        ("schedule", "rounds", True),
    )


@register_reward_model("preference")
class PreferenceReward(RankingReward, TrainedReward):
    """A reward whose sums rank segments of the policy's episodes as the teacher does.

    Attributes:
        asked: Number of queries so far.
        round: Number of rounds so far.
        skipped: Number of queries without a label.
        unlearned: Number of labels since the last fit.
        collected: Number of transitions so far.
        visited: Sample of the observations of the first ``unsupervised_steps``.
    """

    Config = PreferenceConfig
    saved = (
        *TrainedReward.saved, "cutter", "asked", "round", "skipped", "unlearned", "collected",
        "visited", "states",
    )  # fmt: skip

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        config = self.config
        if config.unsupervised_steps:
            self.fields = tuple(dict.fromkeys((*self.fields, "obs")))
        self.collects = self.fields
        self.can_pretrain = config.preferences_path is not None
        self.memory = Memory(max(config.buffer_size // config.segment_length, 2))
        self.teacher = Teacher(config.teacher)
        self.asked = self.round = self.skipped = self.unlearned = self.collected = 0
        self.visited = Memory(_VISITED)
        self.states = TransitionInput(self.setting, ["obs"]) if config.unsupervised_steps else None
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
        """Return the fields of a segment from a file."""
        if missing := [name for name in self.fields if name not in segment]:
            raise ValueError(f"the segments of {path} have no {missing[0]!r}: see 'inputs'")
        fields = Batch({name: segment[name] for name in self.fields})
        return in_spaces(fields, *self.setting.spaces, f"the preferences in {path}")

    def _add(self, pairs: SegmentPairs, label: np.ndarray, held_out: np.ndarray) -> None:
        joined = Batch.cat([segment for pair in pairs for segment in pair])
        rows = in_spaces(joined, *self.setting.spaces, "the segments").to_device(self.device)
        self.network.update(rows)
        length = np.array([len(first) for first, _ in pairs])
        first = 2 * (np.cumsum(length) - length)
        self.pairs = self.pairs.join(Pairs(rows, first, first + length, length, label, held_out))
        self.unlearned += len(pairs)
        self.set_reference(
            self.pairs.rows, np.repeat(np.arange(len(self.pairs)), self.pairs.length * 2)
        )

    @property
    def explores(self) -> bool:
        """Whether the reward is the novelty of observations; never for a frozen model."""
        return not self.setting.frozen and self.collected < self.config.unsupervised_steps

    @property
    def fitted(self) -> bool:
        """See `RewardModel`; novelty is not what was fitted."""
        return super().fitted and not self.explores

    @torch.no_grad()
    def score(self, batch: Batch) -> Any:
        """Return the learned reward, or novelty at first."""
        if not self.explores:
            return super().score(batch)
        if len(self.visited) <= _NEIGHBOR:
            return 0.0
        assert self.states is not None
        known, obs = (self.states(rows) for rows in (self._visited(), self.tensors(batch)))
        distance = torch.cdist(obs.flatten(0, -2), known).kthvalue(_NEIGHBOR, -1).values
        return distance.log1p().view(obs.shape[:-1])

    def _visited(self) -> Batch:
        return self.visited.rows().to_device(self.device)

    def collect_data(self, batch: Batch) -> None:
        """Split new transitions into segments."""
        number = int(np.count_nonzero(batch.mask))
        self.new += number
        if self.explores and number:
            assert self.states is not None
            rows = Batch(obs=batch.obs)[np.asarray(batch.mask)]
            self.visited.add(rows, self.generator)
            self.states.update(rows.to_device(self.device))
        self.collected += number
        segments = self.cutter.add(batch, (*self.fields, "rew"))
        if segments is not None:
            drawn = self.generator.random(len(segments.length))
            self.memory.add(segments.replace(held_out=drawn < self.config.validation_share))

    @property
    def forgets(self) -> bool:
        """See `TrainedReward`; new segments overwrite old ones anyway."""
        return False

    # --- learning

    def pretrain(self) -> Metrics | None:
        """Fit the networks to the preferences of ``preferences_path``."""
        return self._learn()

    def train(self) -> Metrics | None:
        """Query the teacher for a round, and fit the networks to all labels so far."""
        if self.explores or self.new < self.train_every or len(self.memory) < 2:
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
        """Query the teacher for pairs of stored segments."""
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
        """Return indices [2, number] of segments to compare; both of a pair are held out, or none.

        Held-out pairs are drawn uniformly, so that they represent all data.
        """
        held_out = self.memory.rows().held_out
        if (~held_out).sum() < 2:  # too few for training
            held_out[:] = False  # in the memory, so that they stay in training
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
        """Draw pairs [2, number] of different segments."""
        if not number:
            return np.zeros((2, 0), np.int64)
        first = self.generator.integers(len(segments), size=number)
        further = self.generator.integers(1, len(segments), size=number)
        return segments[np.stack([first, (first + further) % len(segments)])]

    def _disagreement(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the standard deviation of the networks' preference probabilities."""
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
        save_preferences(path, preferences, self.setting.note)

    # --- state

    def training_state(self) -> dict[str, Any]:
        """See `RewardModel`."""
        pairs = {**vars(self.pairs), "rows": self.pairs.rows.to_dict()}
        return super().training_state() | {"pairs": pairs}

    def portable_state(self) -> dict[str, Any]:
        """See `RewardModel`; another run keeps the labels, and makes its own queries."""
        none = dict.fromkeys(("asked", "round", "skipped", "unlearned"), 0)
        own = {"collected": self.config.unsupervised_steps, "visited": Memory(1).training_state()}
        cutter = {"cutter": self._new_cutter().training_state()}
        return super().portable_state() | none | own | cutter

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        super().load_training_state({name: state[name] for name in self.saved if name in state})
        rows = Batch(state["pairs"]["rows"]).to_device(self.device)
        self.pairs = Pairs(**{**state["pairs"], "rows": rows})


class Cutter(Stateful):
    """Splits new episodes into segments of one length; the last of an episode may be shorter.

    A segment of a broken episode is dropped if it has fewer rows than `shortest`.
    """

    saved = ("open", "filled")

    def __init__(self, length: int, shortest: int = 1) -> None:
        self.length = length
        self.shortest = shortest
        self.open = Batch()  # rows of incomplete segments [n_envs, length, ...]
        self.filled = np.zeros(0, np.int64)

    def add(self, batch: Batch, fields: Sequence[str]) -> Batch | None:
        """Add fields of new transitions; see `RewardModel.collect_data`.

        Returns:
            The completed segments [N, length, ...], with their number of valid rows as ``length``;
            None if there are none.
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
    """Return how many of `number` new pairs to hold out for a share of all; one is always kept."""
    total = len(held_out) + number
    wanted = min(round(share * total), total - 1) - int(held_out.sum())
    return min(max(wanted, 0), number)


def hold_out(pairs: SegmentPairs, number: int, generator: np.random.Generator) -> np.ndarray:
    """Draw pairs to hold out that share no segment with any other pair.

    Segments count as equal if their first rows are: as many as the shortest has, since a pair may
    have only the first part of a segment. At most `number` pairs are drawn.
    """
    shortest = min(len(first) for first, _ in pairs)
    ids: dict[bytes, int] = {}
    segments = np.array(
        [[ids.setdefault(_digest(each[:shortest]), len(ids)) for each in pair] for pair in pairs]
    )
    group = np.arange(len(ids))  # lowest id that is connected to each segment by pairs
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
    """Return the number of queries of each round, including the first; see `PreferenceConfig`."""
    initial = round(initial_share * comparisons) if rounds else comparisons
    weights = np.ones(rounds) if schedule == "constant" else 1 / np.arange(1, rounds + 1)
    ends = np.cumsum(weights) / max(weights.sum(), 1) * (comparisons - initial)
    return [initial, *np.diff(np.rint(ends).astype(int), prepend=0).tolist()]


def _next_number(path: pathlib.Path) -> int:
    """Return a number above those of all stored pairs of a file of preferences."""
    stems = [file.stem for file in path.with_name(f"{path.stem}_segments").glob("*")]
    return max((int(stem) for stem in stems if stem.isdecimal()), default=-1) + 1

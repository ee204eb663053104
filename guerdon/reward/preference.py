"""Rewards from preferences between segments of the policy's episodes.

https://arxiv.org/abs/1706.03741 (the method), https://arxiv.org/abs/2106.05091 (PEBBLE: off-policy,
with rewards of the replay buffer that follow the model).
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from guerdon import ops
from guerdon.data.batch import Batch
from guerdon.data.preferences import SKIP, Preference, load_preferences, save_preferences
from guerdon.data.spaces import as_rows, check_rows
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.ranking import Pairs, RankingConfig, RankingReward
from guerdon.reward.segments import Cutter, SegmentPairs, hold_out, number_to_hold_out
from guerdon.reward.teachers import Teacher, TeacherConfig
from guerdon.reward.transition_memory import Memory

if TYPE_CHECKING:
    from collections.abc import Mapping


class PreferenceConfig(RankingConfig):
    """Options of `preference`."""

    comparisons: int = Field(default=200, ge=0)
    """Queries to the teacher in the whole run, each about a pair of segments; 100 to 2,000. With 0
    there are only the preferences of ``preferences_path``."""
    initial_share: float = Field(default=0.2, gt=0, le=1)
    """Fraction of the queries in the first round, about the first data; 0.1 to 0.25."""
    rounds: int = Field(default=10, ge=0)
    """Number of later rounds, which share the other queries."""
    schedule: Literal["hyperbolic", "constant"] = "hyperbolic"
    """Queries of later rounds: ``hyperbolic`` gives round k a share in proportion to 1 / k,
    ``constant`` gives all the same."""
    train_every: int | None = Field(default=1000, ge=1)
    """Transitions between two rounds; the rounds should end by half of the run."""
    queries: Literal["disagreement", "uniform"] = "disagreement"
    """Pairs to query: those that the networks disagree on most (in the first round, any), or
    uniformly drawn ones."""
    candidates: int = Field(default=10, ge=1)
    """Pairs from which each query by disagreement is chosen; 5 to 20."""
    segment_length: int = Field(default=50, ge=1)
    """Transitions of a segment; 25 to 100. The last of an episode may be shorter, and is then
    compared with the first part of the other. If an episode is broken off, as at checkpoints, a
    segment of less than a quarter of this is dropped."""
    teacher: TeacherConfig = TeacherConfig()
    """Synthetic teacher, which compares segments by the environment's reward."""
    update_per_collect: int = Field(default=300, ge=1)
    """Maximum number of gradient steps of a round; 100 to 1,000."""
    buffer_size: int = Field(default=20_000, ge=1)
    """Maximum number of the policy's newest transitions that queries are about."""
    clear_buffer_per_iters: int | None = Field(default=None, ge=1)
    """Drop them whenever the number of policy updates is divisible by this; by default never."""
    preferences_path: str | None = None
    """File of preferences to start with, for example of people; see `guerdon.data.preferences`."""
    record_path: str | None = None
    """File that all queries and answers of the run are appended to."""


@register_reward_model("preference")
class PreferenceReward(RankingReward):
    """A reward whose sums rank segments of the policy's episodes as a teacher does.

    Attributes:
        asked: Number of queries so far.
        round: Number of rounds so far.
    """

    Config = PreferenceConfig

    def __init__(self, config: Any, setting: Setting | None = None) -> None:
        super().__init__(config, setting)
        config = self.config
        self.collects = self.fields
        self.can_pretrain = config.preferences_path is not None
        self.memory = Memory(max(config.buffer_size // config.segment_length, 2))
        self.teacher = Teacher(config.teacher)
        self.asked = self.round = self._skipped = 0
        self._unlearned = 0  # preferences since the last fit
        self._cutter = self._new_cutter()
        self._schedule = query_schedule(
            config.comparisons, config.initial_share, config.rounds, config.schedule
        )
        if config.preferences_path is not None:
            self._load_preferences(config.preferences_path)

    # --- data

    def _new_cutter(self) -> Cutter:
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
        """The fields of a segment of a file, checked."""
        for name in self.fields:
            if name not in segment:
                raise ValueError(f"the segments of {path} have no {name!r}: see 'inputs'")
            what = f"{name} of the preferences in {path}"
            check_rows(self._space(name), segment[name], what, "same_kind")
        return self._inputs(segment)

    def _inputs(self, rows: Batch) -> Batch:
        return Batch({name: rows[name] for name in self.fields})

    def _space(self, name: str) -> Any:
        return self.setting.action_space if name == "act" else self.setting.observation_space

    def _add(self, pairs: SegmentPairs, label: np.ndarray, held_out: np.ndarray) -> None:
        joined = Batch.cat([segment for pair in pairs for segment in pair])
        in_space = {name: as_rows(self._space(name), part) for name, part in joined.items()}
        rows = Batch(in_space).to_device(self.device)
        self.network.update(rows)
        length = np.array([len(first) for first, _ in pairs])
        first = 2 * (np.cumsum(length) - length)
        self.pairs = self.pairs.join(Pairs(rows, first, first + length, length, label, held_out))
        self._unlearned += len(pairs)

    def collect_data(self, batch: Batch) -> None:
        """Cut fresh transitions into segments."""
        self._new += int(np.count_nonzero(batch.mask))
        segments = self._cutter.add(batch, (*self.fields, "rew"))
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
        if self._new < self.train_every or len(self.memory) < 2:
            return None
        self._new = 0
        if self.round < len(self._schedule):
            self._ask(self._schedule[self.round])
            self.round += 1
        return self._learn()

    def _learn(self) -> Metrics | None:
        if not self._unlearned or self.pairs.held_out.all():
            return None
        self._unlearned = 0
        metrics = self.fit(self.config.update_per_collect)
        return metrics | {"comparisons": len(self.pairs), "skipped": self._skipped}

    # --- queries

    def _ask(self, number: int) -> None:
        """Let the teacher compare pairs of kept segments."""
        if not number:
            return
        first, second = self._choose(number)
        kept, returns = self.memory.rows(), self.teacher.returns
        length = np.minimum(kept.length[first], kept.length[second])
        label = self.teacher.label(
            returns(kept.rew[first], length),
            returns(kept.rew[second], length),
            returns(kept.rew, kept.length),
            self.generator,
        )
        rows = self._inputs(kept)
        pairs = [(rows[a][:n], rows[b][:n]) for a, b, n in zip(first, second, length, strict=True)]
        if self.config.record_path is not None:
            self._record(pairs, label, self.config.record_path)
        answered = np.flatnonzero(~np.isnan(label))
        self.asked += number
        self._skipped += number - len(answered)
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
        return super().training_state() | {
            "pairs": {**vars(self.pairs), "rows": self.pairs.rows.to_dict()},
            "cutter": self._cutter.training_state(),
            "counts": [self.asked, self.round, self._skipped, self._unlearned],
        }

    def portable_state(self) -> dict[str, Any]:
        """See `RewardModel`: another run keeps the answers, and asks queries of its own."""
        fresh = {"cutter": self._new_cutter().training_state(), "counts": [0, 0, 0, 0]}
        return super().portable_state() | fresh

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        super().load_training_state(state)
        rows = Batch(state["pairs"]["rows"]).to_device(self.device)
        self.pairs = Pairs(**{**state["pairs"], "rows": rows})
        self._cutter.load_training_state(state["cutter"])
        self.asked, self.round, self._skipped, self._unlearned = state["counts"]


def query_schedule(comparisons: int, initial_share: float, rounds: int, schedule: str) -> list[int]:
    """Number of queries in each round, the first one included.

    Args:
        comparisons: All of them.
        initial_share: Fraction of the first round; all, if it is the only one.
        rounds: Number of later rounds.
        schedule: ``constant``, or ``hyperbolic``: round k gets a share in proportion to 1 / k.
    """
    initial = round(initial_share * comparisons) if rounds else comparisons
    weights = np.ones(rounds) if schedule == "constant" else 1 / np.arange(1, rounds + 1)
    ends = np.cumsum(weights) / max(weights.sum(), 1) * (comparisons - initial)
    return [initial, *np.diff(np.rint(ends).astype(int), prepend=0).tolist()]


def _next_number(path: pathlib.Path) -> int:
    """A number above those of all pairs whose segments lie beside a file of preferences."""
    stems = [file.stem for file in path.with_name(f"{path.stem}_segments").glob("*")]
    return max((int(stem) for stem in stems if stem.isdecimal()), default=-1) + 1

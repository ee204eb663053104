"""Rewards from comparisons of what the policy does.

https://arxiv.org/abs/1706.03741 (the method), https://arxiv.org/abs/2106.05091 (PEBBLE: with a
replay buffer, whose rewards follow the model).
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field

from guerdon import ops
from guerdon.data.batch import Batch
from guerdon.data.preferences import SKIP, Preference, load_preferences, save_preferences
from guerdon.data.spaces import check_rows
from guerdon.reward import items
from guerdon.reward.base import Metrics, Setting, register_reward_model
from guerdon.reward.history import in_columns, over
from guerdon.reward.inputs import tensors
from guerdon.reward.memory import Memory
from guerdon.reward.ranking import Pairs, RankingConfig, RankingReward
from guerdon.reward.segments import Comparisons, Cutter, hold_out
from guerdon.reward.teachers import Teacher, TeacherConfig

if TYPE_CHECKING:
    from collections.abc import Mapping


class PreferenceConfig(RankingConfig):
    """Options of `preference`."""

    comparisons: int = Field(default=200, ge=0)
    """Pairs that the teacher is asked about in the whole run; 100 to 2,000. With 0 there are only
    those of ``preferences_path``."""
    initial_share: float = Field(default=0.2, gt=0, le=1)
    """The share of them that is asked at once, about the first data; 0.1 to 0.25."""
    rounds: int = Field(default=10, ge=0)
    """Later rounds of questions, which share the rest."""
    schedule: Literal["hyperbolic", "constant"] = "hyperbolic"
    """Whether later rounds have fewer questions, or all as many."""
    train_every: int | None = Field(default=1000, ge=1)
    """Transitions between two rounds; the rounds shall be over by half of the run."""
    queries: Literal["disagreement", "uniform"] = "disagreement"
    """Which pairs are asked about: those that the networks disagree on most, or any. Before the
    networks were fitted for the first time: any."""
    candidates: int = Field(default=10, ge=1)
    """Pairs that are looked at for each that is asked about, by disagreement; 5 to 20."""
    segment_length: int = Field(default=50, ge=1)
    """Transitions of a segment; 25 to 100. The last of an episode may be shorter, and is then
    compared with the first part of the other. Where an episode is broken off, as whenever a run is
    saved, less than a quarter is dropped."""
    teacher: TeacherConfig = TeacherConfig()
    """The synthetic teacher, who knows the true reward."""
    update_per_collect: int = Field(default=300, ge=1)
    """Gradient steps of a round, at most; 100 to 1,000."""
    buffer_size: int = Field(default=20_000, ge=1)
    """Transitions that questions are about: the newest ones."""
    clear_buffer_per_iters: int | None = Field(default=None, ge=1)
    """It forgets them, too, whenever the number of the policy's updates can be divided by this, and
    none waits to be asked about."""
    preferences_path: str | None = None
    """A file of judgements to begin with, of people say; see `guerdon.data.preferences`."""
    record_path: str | None = None
    """A file that all questions and answers of the run are added to; what it holds stays."""


@register_reward_model("preference")
class PreferenceReward(RankingReward):
    """A reward whose sums rank segments of the policy's episodes as a teacher does.

    Attributes:
        comparisons: All judgements so far.
        asked: How many questions were put.
        round: How many rounds of questions there were.
    """

    Config = PreferenceConfig

    def __init__(self, config: Any, device: str = "cpu", tb_logger: Any = None) -> None:
        super().__init__(config, device, tb_logger)
        length = self.config.segment_length
        self.memory = Memory(max(self.config.buffer_size // length, 2))
        self.teacher = Teacher(self.config.teacher)
        self.comparisons = Comparisons()
        self.asked, self.round = 0, 0
        self._cutter = Cutter(length, shortest=-(-length // 4))
        self._schedule = query_schedule(
            self.config.comparisons,
            self.config.initial_share,
            self.config.rounds,
            self.config.schedule,
        )
        self._skipped = 0
        self._unlearned = 0

    # --- data

    def setup(self, setting: Setting) -> None:
        """Makes the networks, and reads the judgements there are."""
        super().setup(setting)
        if self.config.preferences_path is not None:
            self._take_judgements(setting, self.config.preferences_path)

    def _take_judgements(self, setting: Setting, path: str) -> None:
        judged = [each for each in load_preferences(path) if each.label not in (SKIP, None)]
        if not judged:
            raise ValueError(f"{path} has no pair that somebody could judge")
        pairs = [(self._kept(each.first, path), self._kept(each.second, path)) for each in judged]
        for name in self.fields:
            space = setting.action_space if name == "act" else setting.observation_space
            for segment in (segment for pair in pairs for segment in pair):
                kind = "same_kind" if name == "act" else "safe"
                check_rows(space, segment[name], f"{name} of the preferences in {path}", kind)
        label = np.array([each.label for each in judged], float)
        number = self.comparisons.still_to_hold_out(len(pairs), self.config.validation_share)
        self._add(pairs, label, hold_out(pairs, number, self.generator))

    def _kept(self, segment: Batch, path: str) -> Batch:
        missing = [name for name in self.fields if name not in segment]
        if missing:
            raise ValueError(f"the segments of {path} have no {missing[0]!r}: see 'inputs'")
        return Batch({name: segment[name] for name in self.fields})

    def collect_data(self, data: Any) -> None:
        """Cuts a rollout, or a list of one environment's transitions, into segments."""
        given = data if isinstance(data, Batch) else items.to_batch(data)
        self.prepare(given)
        data = given if given is data else in_columns(given, self.fields)
        mask = np.asarray(data.mask)
        rows = Batch({name: data[name] for name in (*self.fields, "rew")})
        self._remember(self._cutter.add(rows, mask, over(data)))
        self._new += int(mask.sum())

    def break_off(self, env_ids: np.ndarray | None = None) -> None:
        """Closes the segments of episodes that do not go on."""
        self._remember(self._cutter.break_off(env_ids))

    def _remember(self, segments: Batch | None) -> None:
        if segments is not None:
            drawn = self.generator.random(len(segments.length))
            self.memory.add(segments.replace(held_out=drawn < self.config.validation_share))

    def clear_data(self, iter: int) -> None:  # noqa: A002 - the documented name
        """Forgets segments, if it was told when; the newest take the oldest ones' place anyway."""
        if self.config.clear_buffer_per_iters is not None:
            super().clear_data(iter)

    # --- learning

    @property
    def pretrains(self) -> bool:
        """Whether there are judgements before the policy acts."""
        return self.config.preferences_path is not None

    def pretrain(self) -> Metrics | None:
        """Fits the networks to the judgements of ``preferences_path``."""
        return self._learn()

    def train(self) -> Metrics | None:
        """Asks the questions of a round, and fits the networks to all answers so far."""
        if self._new < self.waits_for or len(self.memory) < 2:
            return None
        self._new = 0
        if self.round < len(self._schedule):
            self._ask(self._schedule[self.round])
            self.round += 1
        return self._learn()

    def _learn(self) -> Metrics | None:
        if not self._unlearned or self.comparisons.held_out.all():
            return None
        self._unlearned = 0
        self.pairs = self.comparisons.pairs(False, self.device)
        held_out = self.comparisons.pairs(True, self.device)
        self.held_out = held_out if len(held_out) else None
        metrics = self.fit(self.config.update_per_collect)
        self.network.rescale(self.pairs.rows)
        return metrics | {"comparisons": len(self.comparisons), "skipped": self._skipped}

    def _add(
        self, pairs: list[tuple[Batch, Batch]], label: np.ndarray, held_out: np.ndarray
    ) -> None:
        rows = self.comparisons.add(pairs, label, held_out)
        self.network.update(self.tensors(rows))
        self._unlearned += len(pairs)

    # --- questions

    def _ask(self, number: int) -> None:
        """Has the teacher compare pairs of remembered segments."""
        if not number:
            return
        first, second = self._choose(number)
        held = self.memory.rows()
        length = np.minimum(held.length[first], held.length[second])
        returns = self.teacher.returns
        label = self.teacher.label(
            returns(held.rew[first], length),
            returns(held.rew[second], length),
            returns(held.rew, held.length),
            self.generator,
        )
        pairs = [
            (self._segment(held, a, rows), self._segment(held, b, rows))
            for a, b, rows in zip(first, second, length, strict=True)
        ]
        self._record(pairs, label)
        self.asked += number
        answered = ~np.isnan(label)
        self._skipped += number - int(answered.sum())
        if answered.any():
            chosen = [pair for pair, told in zip(pairs, answered, strict=True) if told]
            self._add(chosen, label[answered], held.held_out[first][answered])

    def _segment(self, held: Batch, number: int, length: int) -> Batch:
        segment: Batch = Batch({name: held[name] for name in self.fields})[number][:length]
        return segment

    def _choose(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the segments to compare: those of a pair are both held out, or none is.

        Held-out pairs are any, and not those in doubt: they shall stand for all.
        """
        held_out = self.memory.rows().held_out
        if (~held_out).sum() < 2:  # too few to set any aside
            held_out[:] = False
        kept, away = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        n_away = self.comparisons.still_to_hold_out(number, self.config.validation_share)
        n_away = n_away if len(away) > 1 else 0
        n_kept = number - n_away
        by_disagreement = self.config.queries == "disagreement" and self.trained > 0
        pairs = self._draw(kept, n_kept * self.config.candidates if by_disagreement else n_kept)
        if by_disagreement and n_kept:
            pairs = pairs[:, np.argsort(-self._disagreement(*pairs), kind="stable")[:n_kept]]
        first, second = np.concatenate([pairs, self._draw(away, n_away)], 1)
        return first, second

    def _draw(self, segments: np.ndarray, number: int) -> np.ndarray:
        """Pairs [2, number] of different ones of these segments."""
        if not number:
            return np.zeros((2, 0), np.int64)
        first = self.generator.integers(len(segments), size=number)
        further = self.generator.integers(1, len(segments), size=number)
        return segments[np.stack([first, (first + further) % len(segments)])]

    @torch.no_grad()
    def _disagreement(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The spread of the networks' probabilities that the second segment is better."""
        held, size = self.memory.rows(), self.config.segment_length
        flat = Batch({name: held[name] for name in self.fields}).apply(_flat)
        length = np.minimum(held.length[first], held.length[second])
        rows = tensors(flat, self.device)
        pairs = Pairs(rows, first * size, second * size, length, np.zeros(len(first)))
        spread = ops.preference_probability(self.logits(pairs)).std(0, correction=0)
        return spread.numpy(force=True)

    def _record(self, pairs: list[tuple[Batch, Batch]], label: np.ndarray) -> None:
        if self.config.record_path is None:
            return
        rater = f"synthetic {self.teacher.name}"
        said = [SKIP if np.isnan(each) else float(each) for each in label]
        first = _first_free(pathlib.Path(self.config.record_path))
        save_preferences(
            self.config.record_path,
            [
                Preference(f"{first + i:06d}", *pair, label=told, rater=rater)
                for i, (pair, told) in enumerate(zip(pairs, said, strict=True))
            ],
        )

    # --- files

    def state_dict(self) -> dict[str, Any]:
        """See `RewardModel`."""
        state = super().state_dict()
        if not state:
            return state
        return state | {
            "comparisons": self.comparisons.state_dict(),
            "cutter": self._cutter.state_dict(),
            "counts": [self.asked, self.round, self._skipped, self._unlearned],
        }

    def portable(self, state: dict[str, Any]) -> dict[str, Any]:
        """See `RewardModel`: who begins with it asks anew, and keeps the answers."""
        own = ("counts", "cutter")
        return {key: part for key, part in super().portable(state).items() if key not in own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `RewardModel`."""
        super().load_state_dict(state)
        if not state:
            return
        self.comparisons.load_state_dict(state["comparisons"])
        if "counts" in state:  # not of another run
            self._cutter.load_state_dict(state["cutter"])
            self.asked, self.round, self._skipped, self._unlearned = state["counts"]


def query_schedule(comparisons: int, initial_share: float, rounds: int, schedule: str) -> list[int]:
    """How many questions each round has, the first one included.

    Args:
        comparisons: All of them.
        initial_share: The share of the first round; all, if it is the only one.
        rounds: How many come after.
        schedule: ``constant``, or ``hyperbolic``: round k gets a share in proportion to 1 / k.
    """
    initial = round(initial_share * comparisons) if rounds else comparisons
    weights = np.ones(rounds) if schedule == "constant" else 1 / np.arange(1, rounds + 1)
    ends = np.cumsum(weights) / max(weights.sum(), 1) * (comparisons - initial)
    return [initial, *np.diff(np.rint(ends).astype(int), prepend=0).tolist()]


def _first_free(path: pathlib.Path) -> int:
    """A number above those of all pairs whose segments lie beside a file of judgements."""
    stems = [file.stem for file in path.with_name(f"{path.stem}_segments").glob("*.npz")]
    return max((int(stem) for stem in stems if stem.isdecimal()), default=-1) + 1


def _flat(leaf: Any) -> Any:
    return leaf.reshape(-1, *leaf.shape[2:])

"""Alarms about a learned reward that may be exploited; the true return is never an input.

After every evaluation, rules look at logged series: learned return, how far the policy's
transitions are from the fitted data (`guerdon.reward.ood`), disagreement of members, and prediction
errors of novelty bonuses. What a rule finds at several evaluations in a row is an alarm. All limits
are constants here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from guerdon.data.batch import Batch
from guerdon.reward import Reward
from guerdon.reward.novelty import NoveltyReward
from guerdon.reward.ood import BEYOND, Reference

EVALUATIONS = 3
"""Number of the newest evaluations that a rule looks at, mostly at their median."""
HELD = 4
"""Number of evaluations in a row at which a rule has to find the same, for an alarm."""
PAID = 0.3
"""Share of transitions that are out of distribution and well paid, for an alarm."""
SHIFT = 1.0
"""Shift of well-paid transitions, in standard deviations of the fitted data, for an alarm."""
FALL = 0.3
"""Fall of the in-distribution share, while the learned return rises, for an alarm."""
DISAGREEMENT = 0.9
"""Share of fitted transitions with less disagreement of the members, for an alarm."""
NOVELTY = 0.05
"""Error of a novelty bonus, relative to its highest one, from which novelty does not wear off."""
LEAST = 10
"""Minimum number of well-paid transitions for a statement about them."""
SHOWN = 8
"""Number of transitions to look at."""
LEARNED = "reward/eval_return"
Line = Sequence[tuple[int, float]]
"""Steps and values of a metric, in order."""


class Alarm(NamedTuple):
    """An alarm about a term of the reward."""

    term: str
    rule: str
    text: str


def alarms(series: Mapping[str, Line]) -> list[Alarm]:
    """Return the alarms that hold after the newest evaluation.

    Args:
        series: The metrics ``reward/eval_return`` and ``reward/<term>/`` with ``ood_share``,
            ``ood_paid``, ``shift``, ``disagreement`` or ``novelty``.
    """
    steps = [step for step, _ in series.get(LEARNED, ())][-HELD:]
    if len(steps) < HELD:
        return []
    *earlier, newest = (
        findings({name: [each for each in line if each[0] <= end] for name, line in series.items()})
        for end in steps
    )
    lasting = set.intersection(*({alarm[:2] for alarm in each} for each in earlier))
    return [alarm for alarm in newest if alarm[:2] in lasting]


def findings(series: Mapping[str, Line]) -> list[Alarm]:
    """Return what the rules find after the newest evaluation; see `alarms`."""
    found = []
    for name, line in series.items():
        term, _, kind = name.removeprefix("reward/").rpartition("/")
        if kind in _RULES and (text := _RULES[kind](series[LEARNED], line)):
            found.append(Alarm(term, kind, f"{term}: {text}"))
    return found


def _median(learned: Line, line: Line, limit: float) -> float | None:
    """Return the median of the newest evaluations, if it is at least the limit."""
    steps = [step for step, _ in learned[-EVALUATIONS:]]
    newest = line[-EVALUATIONS:]
    if len(steps) < EVALUATIONS or [step for step, _ in newest] != steps:
        return None
    median = float(np.median([value for _, value in newest]))
    return median if median >= limit else None


def _paid_alarm(learned: Line, line: Line) -> str | None:
    if (share := _median(learned, line, PAID)) is None:
        return None
    return (
        f"{share:.0%} of the policy's transitions are unlike the data that the reward was fitted "
        "to, but paid like it"
    )


def _shift_alarm(learned: Line, line: Line) -> str | None:
    if (shift := _median(learned, line, SHIFT)) is None:
        return None
    return (
        f"the policy's well-paid transitions are shifted by {shift:.1f} standard deviations of the "
        "data that the reward was fitted to"
    )


def _fall_alarm(learned: Line, line: Line) -> str | None:
    at = dict(learned)
    paired = [(step, at[step], value) for step, value in line if step in at]
    if len(paired) <= EVALUATIONS:
        return None
    now = paired[-EVALUATIONS:]
    step, before, best = min(paired[:-EVALUATIONS], key=lambda each: each[2])
    if any(value - best < FALL or ret <= before for _, ret, value in now):
        return None
    return (
        f"since step {step:,} the learned return rose from {before:.3g} to {now[-1][1]:.3g}, while "
        f"the share of transitions like the fitted data fell from {1 - best:.0%} to "
        f"{1 - line[-1][1]:.0%}"
    )


def _disagreement_alarm(learned: Line, line: Line) -> str | None:
    if (share := _median(learned, line, DISAGREEMENT)) is None:
        return None
    return (
        "the members of the reward disagree more about the policy's transitions than about "
        f"{share:.0%} of the fitted ones"
    )


def _novelty_alarm(learned: Line, line: Line) -> str | None:  # noqa: ARG001 - as all rules
    errors = [value for _, value in line]
    newest = errors[-len(errors) // 4 :]
    if len(errors) < 4 * EVALUATIONS or not 0 < NOVELTY * max(errors) <= min(newest):
        return None
    return (
        f"novelty does not wear off: its error is still {newest[-1] / max(errors):.0%} of the "
        "highest one; the policy may watch something unpredictable"
    )


_RULES = {
    "ood_paid": _paid_alarm,
    "ood_share": _fall_alarm,
    "shift": _shift_alarm,
    "disagreement": _disagreement_alarm,
    "novelty": _novelty_alarm,
}


class Familiarity:
    """How far the transitions of an evaluation are from the data of one term; see `Reward`.

    Attributes:
        looked_at: The transitions that are best paid, or else farthest.
    """

    def __init__(self) -> None:
        self._scores: list[np.ndarray] = []
        self._paid: list[np.ndarray] = []
        self._spread: list[np.ndarray] = []
        self._sum: Any = 0.0  # of the vectors of well-paid transitions
        self.looked_at = Batch()

    def add(self, found: Mapping[str, np.ndarray], rows: Batch) -> None:
        """Add transitions [N, ...] with what `Reward.familiarity` says of them."""
        counts = ~np.isnan(found["score"])
        if not counts.any():
            return
        rows, found = rows[counts], {key: part[counts] for key, part in found.items()}
        score, paid = found["score"], found["well_paid"]
        self._scores.append(score)
        self._paid.append(paid)
        self._sum = self._sum + found["vector"][paid].sum(0, dtype=np.float64)
        if "spread" in found:
            self._spread.append(found["spread"])
        self._look_at(rows.replace(score=score, rew=found["rew"]))

    def _look_at(self, rows: Batch) -> None:
        best = Batch.cat([self.looked_at, rows]) if self.looked_at else rows
        self.looked_at = best[np.lexsort((-best.score, -best.rew))[:SHOWN]]

    def merge(self, other: "Familiarity") -> None:
        """Add the transitions of another one."""
        for name in ("_scores", "_paid", "_spread"):
            getattr(self, name).extend(getattr(other, name))
        self._sum = self._sum + other._sum
        if other.looked_at:
            self._look_at(other.looked_at)

    def metrics(self, reference: Reference) -> dict[str, float]:
        """Return the metrics of the term."""
        if not self._scores:
            return {}
        scores, paid = np.concatenate(self._scores), np.concatenate(self._paid)
        beyond = scores >= BEYOND
        metrics = {
            "ood_mean": float(scores.mean()),
            "ood_share": float(beyond.mean()),
            "ood_paid": float((beyond & paid).mean()),
        }
        if paid.sum() >= LEAST:
            metrics["shift"] = reference.shift(self._sum / paid.sum())
        if self._spread:
            metrics["disagreement"] = float(np.concatenate(self._spread).mean())
        return metrics


@dataclass
class History:
    """The series that the rules look at, and the alarms that hold.

    Args:
        novelty: Names of terms that are novelty bonuses.
    """

    novelty: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.series: dict[str, list[tuple[int, float]]] = {}
        self.holding: list[Alarm] = []

    @classmethod
    def of(cls, reward: Reward) -> "History":
        """Return an empty history for a reward."""
        terms = reward.terms.items() if reward.ood != "off" else ()
        return cls([name for name, (model, _) in terms if isinstance(model, NoveltyReward)])

    def add(self, step: int, metrics: Mapping[str, Any]) -> list[Alarm] | None:
        """Add logged metrics; return new alarms after an evaluation, otherwise None."""
        names = {f"reward/{term}/loss": f"reward/{term}/novelty" for term in self.novelty}
        for name, value in metrics.items():
            kind = name.rpartition("/")[2]
            if name == LEARNED or name in names or (kind in _RULES and kind != "novelty"):
                line = self.series.setdefault(names.get(name, name), [])
                if line and line[-1][0] == step:  # an evaluation with other episodes
                    line.pop()
                line.append((step, float(value)))
        if LEARNED not in metrics:
            return None
        known = {alarm[:2] for alarm in self.holding}
        self.holding = alarms(self.series)
        return [alarm for alarm in self.holding if alarm[:2] not in known]

    def training_state(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        series = {name: [list(each) for each in line] for name, line in self.series.items()}
        return {"series": series, "holding": [list(alarm) for alarm in self.holding]}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore `training_state`."""
        self.series = {
            name: [(int(step), float(value)) for step, value in line]
            for name, line in state["series"].items()
        }
        self.holding = [Alarm(*map(str, alarm)) for alarm in state["holding"]]

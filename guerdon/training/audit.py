"""Whether a model of success is right about what a policy does: it is not asked of the learner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from guerdon.collect.collector import SUCCESS

if TYPE_CHECKING:
    from guerdon.reward.seen import Judged

CHEATED = 0.2
"""The share of episodes that are wrongly taken for successes from which a policy is a cheat."""


@dataclass
class Audit:
    """What a model said of episodes beside what is true.

    An episode is judged at the frame at which it ends for the model: at its first success where
    that is an end, else at the last one.
    """

    claimed: list[bool] = field(default_factory=list)
    """Whether the model took an episode for a success, of all episodes."""
    checked: list[bool] = field(default_factory=list)
    """The same of episodes of which the environment tells what they show."""
    confirmed: list[bool] = field(default_factory=list)
    """Whether it did, and the environment says so of the very frame at which it did; of these."""
    once: list[bool] = field(default_factory=list)
    """Whether the environment says so of any frame; of these."""
    given_away: int = 0
    """How many of these the environment itself terminated at a success."""
    frames: np.ndarray = field(default_factory=lambda: np.zeros((2, 2), np.int64))
    """How many frames by what is true (row) and what the model says (column)."""

    def add(self, judged: Judged, told: np.ndarray, terminated: bool = False) -> None:
        """Takes one episode.

        Args:
            judged: What the model says of its frames.
            told: What they truly show [T]; see `told_success`.
            terminated: Whether the environment terminated it.
        """
        claimed = bool(judged.held[judged.end])
        self.claimed.append(claimed)
        if np.isnan(told).any():
            return
        success = told > 0
        self.checked.append(claimed)
        self.confirmed.append(claimed and bool(success[judged.end]))
        self.once.append(bool(success.any()))
        self.given_away += terminated and bool(success[-1])
        lived = slice(0, judged.end + 1)
        np.add.at(self.frames, (success[lived].astype(int), judged.passes[lived].astype(int)), 1)

    @property
    def false_claims(self) -> float:
        """The share of episodes that the model took for successes at a frame that shows none."""
        return float(np.mean(np.greater(self.checked, self.confirmed))) if self.checked else 0.0

    def metrics(self) -> dict[str, float]:
        """What can be logged about it."""
        if not self.claimed:
            return {}
        said = {"reward/success_rate": float(np.mean(self.claimed))}
        if not self.checked:
            return said
        (true_negative, false_positive), (false_negative, true_positive) = self.frames.tolist()
        rates = {
            "reward/false_positive_rate": (false_positive, true_negative + false_positive),
            "reward/false_negative_rate": (false_negative, true_positive + false_negative),
        }
        return {
            **said,
            "eval/success_at_verdict": float(np.mean(self.confirmed)),
            "eval/success_once": float(np.mean(self.once)),
            **{name: wrong / of for name, (wrong, of) in rates.items() if of},
        }

    def warnings(self, refitted: bool = False) -> list[str]:
        """A sentence each, if the policy cheats the model or the environment gives success away.

        Args:
            refitted: Whether the model is refitted beside the policy.
        """
        said = []
        if self.false_claims >= CHEATED:
            remedy = "wait for the next refits" if refitted else (
                "refit it beside the policy with 'reward.cotrain=true'"
            )  # fmt: skip
            said.append(
                f"the policy cheats its reward: the model sees success in "
                f"{np.mean(self.checked):.0%} of episodes, but {np.mean(self.confirmed):.0%} are; "
                f"{remedy}, or collect such frames as failures and fit it again"
            )
        if self.checked and not any(self.checked) and np.mean(self.once) >= CHEATED:
            said.append(
                f"the model sees no success, but {np.mean(self.once):.0%} of episodes have one: "
                "collect more of these and fit it again, or lower 'reward.threshold' or "
                "'reward.hold'"
            )
        if self.given_away:
            said.append(
                "the environment ends episodes at success, which tells the learner what the model "
                "alone should: let it run on (env.kwargs.terminate=false, where it has that)"
            )
        return said


def told_success(info: dict[str, Any], n_rows: int) -> np.ndarray:
    """Whether the frames of a step show a success: 1 or 0, and NaN where nobody tells.

    Args:
        info: Of the step, in Gymnasium's layout.
        n_rows: Rows of the step.
    """
    told: np.ndarray = np.full(n_rows, np.nan, np.float32)
    for name in SUCCESS:
        if name in info:
            new = np.isnan(told) & np.broadcast_to(info.get(f"_{name}", True), n_rows)
            told[new] = np.broadcast_to(info[name], n_rows)[new]
    return told

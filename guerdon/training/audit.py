"""Whether a model of success is right about what a policy does: it is not asked of the learner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from guerdon.reward.classifier import Judged

CHEATED = 0.2
"""The share of episodes that are wrongly taken for successes from which a policy is a cheat."""


@dataclass
class Audit:
    """What a model said of episodes beside what is true; they end for it at its first success."""

    claimed: list[bool] = field(default_factory=list)
    """Whether the model took an episode for a success."""
    confirmed: list[bool] = field(default_factory=list)
    """Whether it did, and the environment says so of the very frame at which it did."""
    once: list[bool] = field(default_factory=list)
    """Whether the environment says so of any frame."""
    frames: np.ndarray = field(default_factory=lambda: np.zeros((2, 2), np.int64))
    """How many frames by what is true (row) and what the model says (column)."""

    def add(self, judged: Judged, told: np.ndarray) -> None:
        """Takes one episode, if it is known of all its frames what they show.

        Args:
            judged: What the model says of its frames.
            told: What they truly show [T]; see `told_success`.
        """
        if np.isnan(told).any():
            return
        success = told > 0
        claimed = bool(judged.held.any())
        end = int(np.argmax(judged.held)) if claimed else len(success) - 1
        self.claimed.append(claimed)
        self.confirmed.append(claimed and bool(success[end]))
        self.once.append(bool(success.any()))
        lived = slice(0, end + 1)
        np.add.at(self.frames, (success[lived].astype(int), judged.passes[lived].astype(int)), 1)

    @property
    def false_claims(self) -> float:
        """The share of episodes that the model took for successes at a frame that shows none."""
        return float(np.mean(np.greater(self.claimed, self.confirmed))) if self.claimed else 0.0

    def metrics(self) -> dict[str, float]:
        """What can be logged about it."""
        if not self.claimed:
            return {}
        (true_negative, false_positive), (false_negative, true_positive) = self.frames.tolist()
        rates = {
            "reward/false_positive_rate": (false_positive, true_negative + false_positive),
            "reward/false_negative_rate": (false_negative, true_positive + false_negative),
        }
        return {
            "reward/success_rate": float(np.mean(self.claimed)),
            "eval/success_at_verdict": float(np.mean(self.confirmed)),
            "eval/success_once": float(np.mean(self.once)),
            **{name: wrong / of for name, (wrong, of) in rates.items() if of},
        }

    def warning(self) -> str | None:
        """A sentence, if the policy cheats the model."""
        if self.false_claims < CHEATED:
            return None
        return (
            f"the policy cheats its reward: the model sees success in "
            f"{np.mean(self.claimed):.0%} of episodes, but {np.mean(self.confirmed):.0%} are; "
            "refit it beside the policy with 'reward.cotrain=true', or collect such frames as "
            "failures and fit it again"
        )


def told_success(info: dict[str, Any], n_rows: int) -> np.ndarray:
    """Whether the frames of a step show a success: 1 or 0, and NaN where nobody tells.

    Args:
        info: Of the step, in Gymnasium's layout.
        n_rows: Rows of the step.
    """
    told: np.ndarray = np.full(n_rows, np.nan, np.float32)
    if "success" in info:
        known = np.broadcast_to(info.get("_success", True), n_rows)
        told[known] = np.broadcast_to(info["success"], n_rows)[known]
    return told

"""Compares predicted success with true success, which is not used for training."""

from dataclasses import dataclass, field

import numpy as np

FALSE_CLAIMS = 0.2
"""Share of episodes with false predicted success at which to warn."""


@dataclass
class Audit:
    """Predicted and true success of episodes."""

    claimed: list[bool] = field(default_factory=list)
    """Predicted success of all episodes."""
    checked: list[bool] = field(default_factory=list)
    """Predicted success of episodes for which the environment reports true success."""
    confirmed: list[bool] = field(default_factory=list)
    """Of these: whether success is predicted and true at the same frame."""
    once: list[bool] = field(default_factory=list)
    """Of these: true success at any frame."""
    given_away: int = 0
    """Of these: the number that the environment terminated at a success."""
    frames: np.ndarray = field(default_factory=lambda: np.zeros((2, 2), np.int64))
    """Number of frames by true (row) and predicted (column) success."""

    def add(
        self,
        predicted: np.ndarray,
        paid: np.ndarray,
        after_success: np.ndarray,
        success: np.ndarray,
        terminated: bool = False,
    ) -> None:
        """Add one episode: columns of `SuccessModel.annotate` [T], and its true success [T].

        It is evaluated at the last frame that is not after a predicted success.
        """
        n_read = np.count_nonzero(~after_success)
        claimed = bool(paid[n_read - 1])
        self.claimed.append(claimed)
        if np.isnan(success).any():
            return
        true = success > 0
        self.checked.append(claimed)
        self.confirmed.append(claimed and bool(true[n_read - 1]))
        self.once.append(bool(true.any()))
        self.given_away += terminated and bool(true[-1])
        np.add.at(self.frames, (true[:n_read].astype(int), predicted[:n_read].astype(int)), 1)

    def merge(self, other: "Audit") -> None:
        """Add the episodes of another audit."""
        for name in ("claimed", "checked", "confirmed", "once"):
            getattr(self, name).extend(getattr(other, name))
        self.given_away += other.given_away
        self.frames = self.frames + other.frames

    @property
    def false_claims(self) -> float:
        """Share of episodes whose predicted success is false."""
        return float(np.mean(np.greater(self.checked, self.confirmed))) if self.checked else 0.0

    def metrics(self) -> dict[str, float]:
        """Metrics for the log."""
        if not self.claimed:
            return {}
        metrics = {"reward/success_rate": float(np.mean(self.claimed))}
        if not self.checked:
            return metrics
        metrics["eval/success_at_prediction"] = float(np.mean(self.confirmed))
        metrics["eval/success_once"] = float(np.mean(self.once))
        (true_negative, false_positive), (false_negative, true_positive) = self.frames.tolist()
        for name, wrong, right in (
            ("positive", false_positive, true_negative),
            ("negative", false_negative, true_positive),
        ):
            if wrong + right:
                metrics[f"reward/false_{name}_rate"] = wrong / (wrong + right)
        return metrics

    def warnings(self, refitted: bool = False) -> list[str]:
        """Return warnings; `refitted`: whether the classifier is refitted during training."""
        found = []
        if self.false_claims >= FALSE_CLAIMS:
            remedy = "wait for the next refits" if refitted else (
                "refit the classifier during training with 'reward.cotrain=true'"
            )  # fmt: skip
            found.append(
                f"the policy cheats its reward: predicted success {np.mean(self.checked):.0%}, "
                f"true success {np.mean(self.confirmed):.0%}; {remedy}, or collect such frames as "
                "failures and fit it again"
            )
        if self.checked and not any(self.checked) and np.mean(self.once) >= FALSE_CLAIMS:
            found.append(
                f"no success is predicted, but {np.mean(self.once):.0%} of episodes have one: "
                "collect more of these and fit the classifier again, or lower 'reward.threshold' "
                "or 'reward.hold'"
            )
        if self.given_away:
            found.append(
                "the environment ends episodes at success, which reveals it to the learner: let "
                "them continue (env.kwargs.terminate=false, where there is that option)"
            )
        return found

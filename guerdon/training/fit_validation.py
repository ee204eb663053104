"""What a classifier is worth on episodes that it has not learned from, at their own base rate."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from guerdon.ops import classification as measure
from guerdon.training.run_folder import finite

GOOD_PR_AUC = 0.9
GOOD_PRECISION = 0.8
GOOD_RECALL = 0.5
FEW_FRAMES = 50
FEW_EPISODES = 5


@dataclass(frozen=True)
class Validation:
    """Numbers over all frames of the validation episodes; NaN where there is nothing to count."""

    pr_auc: float
    """Area under precision over recall."""
    precision: float
    """Share of true successes among the frames that pass the threshold."""
    recall: float
    """Share of true successes that pass."""
    false_positive_rate: float
    """Share of frames without success that pass."""
    episode_false_positive_rate: float
    """Share of episodes without success of which a frame passes."""
    calibration_error: float
    """Mean distance between probability and frequency."""
    calibration_error_before: float
    """The same without the temperature."""
    loss: float
    """Mean cross entropy, with the temperature."""
    base_rate: float
    """Share of frames with success."""
    frames: int
    """How many frames."""
    positives: int
    """How many frames with success."""
    episodes: int
    """How many episodes."""
    positive_episodes: int
    """How many episodes with success."""
    threshold: float
    """The probability from which a frame passes."""
    temperature: float
    """What logits are divided by."""

    def numbers(self) -> dict[str, Any]:
        """All of them for JSON; None for NaN."""
        return {name: finite(value) for name, value in asdict(self).items()}

    @property
    def rank(self) -> tuple[float, float]:
        """The larger, the better: by PR-AUC, then by loss."""
        return self.pr_auc, -self.loss


def validate(
    logits: np.ndarray, labels: np.ndarray, episodes: np.ndarray, target_fpr: float
) -> Validation:
    """Chooses temperature and threshold, and measures with them.

    The threshold is 0.5, or as much higher as it takes to meet the target.

    Args:
        logits: [members, N].
        labels: bool [N].
        episodes: [N], which episode a frame belongs to.
        target_fpr: The share of frames without success that may pass.
    """
    temperature = measure.fit_temperature(logits, labels)
    # In the dtype that networks score in: a threshold between two numbers has to stay there.
    scores = measure.ensemble_probability(logits, temperature).astype(np.float32)
    threshold = measure.threshold_for(scores, labels, target_fpr)
    return Validation(
        pr_auc=measure.pr_auc(measure.ensemble_probability(logits, temperature), labels),
        precision=measure.precision(scores, labels, threshold),
        recall=measure.recall(scores, labels, threshold),
        false_positive_rate=measure.false_positive_rate(scores, labels, threshold),
        episode_false_positive_rate=measure.episode_false_positive_rate(
            scores >= threshold, labels, episodes
        ),
        calibration_error=measure.expected_calibration_error(scores, labels),
        calibration_error_before=measure.expected_calibration_error(
            measure.ensemble_probability(logits), labels
        ),
        loss=measure.negative_log_likelihood(logits, labels, temperature),
        base_rate=float(labels.mean()),
        frames=len(labels),
        positives=int(labels.sum()),
        episodes=len(np.unique(episodes)),
        positive_episodes=len(np.unique(episodes[labels])),
        threshold=threshold,
        temperature=temperature,
    )


def warnings_of(found: Validation) -> list[str]:
    """What a user should know before using a classifier, a sentence each.

    Args:
        found: How it was validated.
    """
    said = []
    if math.isnan(found.episode_false_positive_rate):
        said.append(
            "validation has no failed episode: nothing can be said of false positives of "
            "episodes; collect failures, too"
        )
    if found.positives < FEW_FRAMES or found.positive_episodes < FEW_EPISODES:
        said.append(
            f"validation has only {found.positives} frames with success, from "
            f"{found.positive_episodes} episodes: these numbers are rough; collect more successes"
        )
    if found.pr_auc < GOOD_PR_AUC:
        said.append(
            f"PR-AUC is {found.pr_auc:.3f}, below {GOOD_PR_AUC}: see whether labels belong to the "
            "frames they are on and whether the cameras show success, then collect more or fit "
            "longer"
        )
    if found.recall < GOOD_RECALL:
        said.append(
            f"only {found.recall:.0%} of the frames with success pass the threshold "
            f"{found.threshold:.3g}: collect more data or raise reward.target_fpr"
        )
    if found.precision < GOOD_PRECISION:
        said.append(
            f"only {found.precision:.0%} of the frames that pass the threshold "
            f"{found.threshold:.3g} show success: collect more failures or lower reward.target_fpr"
        )
    return said

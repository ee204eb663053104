"""Synthetic teachers: they compare segments by the environment's reward, with options for errors.

The options are those of B-Pref, https://arxiv.org/abs/2111.03026, made independent of the scale of
rewards.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

PERFECT = {"beta": np.inf, "gamma": 1.0, "mistake": 0.0, "skip": 0.0, "equal": 0.0}
TYPES: dict[str, dict[str, float]] = {
    "perfect": {},
    "noisy": {"beta": 3.0, "mistake": 0.1},
    "myopic": {"gamma": 0.9},
    "skipping": {"skip": 0.25},
    "equal": {"equal": 0.25},
}
"""Options in which the teacher of each type differs from the perfect one."""


class TeacherConfig(BaseModel):
    """Options of a synthetic teacher; the defaults depend on its type."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    type: Literal["perfect", "noisy", "myopic", "skipping", "equal"] = "perfect"
    """Kind of errors: none, wrong labels, discounted early steps, no label if both segments are
    bad, or label 0.5 if they are similar."""
    beta: float | None = Field(default=None, gt=0)
    """Rationality: the logit of naming the better segment if returns differ by one standard
    deviation (of all segments' returns); 1 to 10."""
    gamma: float | None = Field(default=None, gt=0, le=1)
    """Discount of steps by their distance to the end of the segment; 0.9 to 1."""
    mistake: float | None = Field(default=None, ge=0, le=0.5)
    """Probability of the opposite label; 0 to 0.2."""
    skip: float | None = Field(default=None, ge=0, le=1)
    """Quantile of all returns below which both segments are bad, so that there is no label; 0 to
    0.5."""
    equal: float | None = Field(default=None, ge=0)
    """Difference of returns, in standard deviations, below which the label is 0.5; 0 to 1."""


class Teacher:
    """Compares segments by their true rewards.

    Args:
        config: Its options.
    """

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
        found: np.ndarray = (rew.astype(np.float64) * weight).sum(1)
        return found

    def label(
        self,
        first: np.ndarray,
        second: np.ndarray,
        all_returns: np.ndarray,
        generator: np.random.Generator,
    ) -> np.ndarray:
        """Labels [P]: 0, 0.5 or 1; NaN if there is none.

        Args:
            first: Returns of the first segments [P].
            second: Returns of the second segments [P].
            all_returns: Returns of all segments [N].
            generator: Source of randomness.
        """
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

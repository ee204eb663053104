"""Synthetic teachers: they compare segments by true rewards, as well as their options let them.

The options are those of B-Pref, https://arxiv.org/abs/2111.03026, made independent of the scale of
rewards.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

TYPES: dict[str, dict[str, float]] = {
    "perfect": {},
    "noisy": {"beta": 3.0, "mistake": 0.1},
    "myopic": {"gamma": 0.9},
    "skipping": {"skip": 0.25},
    "equal": {"equal": 0.25},
}
"""The options that make a teacher of each kind; all others are those of the perfect one."""
PERFECT = {"beta": np.inf, "gamma": 1.0, "mistake": 0.0, "skip": 0.0, "equal": 0.0}


class TeacherConfig(BaseModel):
    """Options of a synthetic teacher; what is left out comes from its type."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    type: Literal["perfect", "noisy", "myopic", "skipping", "equal"] = "perfect"
    """Its weakness: none, wrong answers, a view of the latest steps alone, no answer where both are
    bad, or no preference where they are alike."""
    beta: float | None = Field(default=None, gt=0)
    """How surely it names the better one: the logit of that for returns which lie one spread (of
    all segments' returns) apart; 1 to 10."""
    gamma: float | None = Field(default=None, gt=0, le=1)
    """The discount of steps by how long before the segment's last they are; 0.9 to 1."""
    mistake: float | None = Field(default=None, ge=0, le=0.5)
    """How often it says the opposite; 0 to 0.2."""
    skip: float | None = Field(default=None, ge=0, le=1)
    """It does not answer where both are among this share of the worst segments; 0 to 0.5."""
    equal: float | None = Field(default=None, ge=0)
    """It has no preference where returns differ by less than so many spreads; 0 to 1."""


class Teacher:
    """Compares segments by their true rewards.

    Args:
        config: Its options.
    """

    def __init__(self, config: TeacherConfig) -> None:
        said = config.model_dump(exclude={"type"}, exclude_none=True)
        options = {**PERFECT, **TYPES[config.type], **said}
        self.name = config.type
        self.beta, self.gamma = options["beta"], options["gamma"]
        self.mistake, self.skip, self.equal = (
            options[name] for name in ("mistake", "skip", "equal")
        )

    def returns(self, rew: np.ndarray, length: np.ndarray) -> np.ndarray:
        """What it makes of true rewards [P, T], of which so many [P] count: the first ones."""
        before_last = length[:, None] - 1 - np.arange(rew.shape[1])
        weight = np.where(before_last < 0, 0.0, self.gamma ** np.maximum(before_last, 0))
        found: np.ndarray = (rew.astype(np.float64) * weight).sum(1)
        return found

    def label(
        self,
        first: np.ndarray,
        second: np.ndarray,
        all_returns: np.ndarray,
        generator: np.random.Generator,
    ) -> np.ndarray:
        """Labels [P]: 0, 0.5, 1, and NaN where it does not answer.

        Args:
            first: Returns of the first segments [P].
            second: Returns of the second segments [P].
            all_returns: Returns of all segments [N], which tell it what is bad and what is alike.
            generator: Draws.
        """
        spread = max(float(all_returns.std()), 1e-12)
        difference = (second - first) / spread
        sure = np.where(difference > 0, 1.0, np.where(difference < 0, 0.0, 0.5))
        label = sure
        if np.isfinite(self.beta):
            right = 1 / (1 + np.exp(-np.minimum(self.beta * np.abs(difference), 700)))
            label = np.where(generator.random(len(sure)) < right, sure, 1 - sure)
        if self.mistake:
            label = np.where(generator.random(len(sure)) < self.mistake, 1 - label, label)
        label = np.where(np.abs(difference) < self.equal, 0.5, label)
        if self.skip:
            bad = np.quantile(all_returns, self.skip)
            label = np.where(np.maximum(first, second) < bad, np.nan, label)
        return label

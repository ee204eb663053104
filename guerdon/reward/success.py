"""Predicted success over time: an episode ends at the first success that is held for k frames."""

import numpy as np


class SuccessMemory:
    """State of the running episodes of environments.

    Attributes:
        run: Successes in a row, up to the newest annotated frame [n_envs].
        ended: Whether a held success has ended the episode [n_envs].
        claims: Claims of success so far in the episode [n_envs].
        online_run: `run` as of the newest step [n_envs], for models that end episodes online.
        scores: Probabilities, claims and mask [n_envs] of the steps that are not annotated yet.
    """

    def __init__(self, n_envs: int) -> None:
        self.run = np.zeros(n_envs, np.int64)
        self.ended = np.zeros(n_envs, bool)
        self.claims = np.zeros(n_envs, np.int64)
        self.online_run = np.zeros(n_envs, np.int64)
        self.scores: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def take_scores(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return probabilities and claims [T, n_envs] of rows that were scored step by step.

        None if some of the transitions, which `mask` tells, were not.
        """
        scores, self.scores = self.scores, []
        if not scores or len(scores) != len(mask):
            return None
        probability, claimed, real = map(np.stack, zip(*scores, strict=True))
        return (probability, claimed) if (mask <= real).all() else None

    def follow(
        self,
        success: np.ndarray,
        claimed: np.ndarray,
        mask: np.ndarray,
        first: np.ndarray,
        hold: int,
        ends: bool = True,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find held successes in rows [T, n_envs].

        Args:
            success: Which frames are a success.
            claimed: Which are a success, or are rejected as one by refitting.
            mask: Which rows are transitions.
            first: Which of them begin an episode.
            hold: Number of successes in a row that are a held success.
            ends: Whether a held success ends its episode; if not, no row is after one.

        Returns:
            Where a success is held, which rows come after the first of their episode, and which
            claims before that are among the first `hold` of their episode.
        """
        held, after, early = (np.zeros(mask.shape, bool) for _ in range(3))
        for t, real in enumerate(mask):
            new = first[t]
            self.run[new], self.ended[new], self.claims[new] = 0, False, 0
            self.run = np.where(real, np.where(success[t], self.run + 1, 0), self.run)
            held[t] = real & (self.run >= hold)
            after[t] = real & self.ended
            self.ended |= held[t] & ends
            claims = claimed[t] & real & ~after[t]
            early[t] = claims & (self.claims < hold)
            self.claims += claims
        return held, after, early

"""Held successes, and the memory of running episodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from guerdon.reward.success_classifier import SuccessMemory


def column(*values):
    return np.array(values, bool)[:, None]


def follow(success, mask=None, first=None, hold=1, memory=None, ends=True):
    """Where successes are held, and the rows after them."""
    mask = np.ones_like(success) if mask is None else mask
    first = np.zeros_like(success) if first is None else first & mask
    memory = memory or SuccessMemory(success.shape[1])
    return memory.follow(success, success, mask, first, hold, ends)[:2]


def test_success_is_held_after_so_many_frames_in_a_row():
    held, after = follow(column(1, 0, 1, 1, 1, 0, 1), hold=2)
    np.testing.assert_array_equal(held[:, 0], [0, 0, 0, 1, 1, 0, 0])
    np.testing.assert_array_equal(after[:, 0], [0, 0, 0, 0, 1, 1, 1])


def test_memory_restarts_at_the_first_row_of_an_episode():
    held, after = follow(column(1, 1, 1, 0), first=column(0, 0, 1, 0), hold=2)
    np.testing.assert_array_equal(held[:, 0], [0, 1, 0, 0])
    assert not after.any()


def test_masked_rows_change_nothing():
    held, after = follow(column(1, 1, 1), column(1, 0, 1), column(0, 1, 0), hold=2)
    np.testing.assert_array_equal(held[:, 0], [0, 0, 1])
    assert not after.any()


def test_no_row_is_after_a_success_that_does_not_end_the_episode():
    held, after = follow(column(1, 1, 0, 1), ends=False)
    np.testing.assert_array_equal(held[:, 0], [1, 1, 0, 1])
    assert not after.any()


def test_environments_restart_on_their_own():
    memory = SuccessMemory(2)
    follow(np.ones((1, 2), bool), memory=memory)
    follow(np.ones((1, 2), bool), first=np.array([[False, True]]), memory=memory, hold=2)
    np.testing.assert_array_equal(memory.ended, [True, False])
    np.testing.assert_array_equal(memory.run, [2, 1])


def test_early_claims_are_counted_by_episode_and_before_a_held_success():
    memory = SuccessMemory(1)
    claimed = column(1, 0, 1, 1, 1, 1, 1)
    success, first = column(0, 0, 0, 0, 1, 0, 0), column(0, 0, 0, 1, 0, 0, 0)
    held, after, early = memory.follow(success, claimed, np.ones_like(first), first, 1)
    np.testing.assert_array_equal(held[:, 0], [0, 0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(after[:, 0], [0, 0, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(early[:, 0], [1, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(memory.claims, [2])


flags = arrays.arrays(bool, (12, 2))


@given(flags, flags, flags, st.integers(1, 3), st.integers(0, 12))
def test_two_halves_are_the_same_as_the_whole(success, mask, first, hold, cut):
    whole = np.stack(follow(success, mask, first, hold))
    memory = SuccessMemory(2)
    parts = [
        np.stack(follow(success[rows], mask[rows], first[rows], hold, memory))
        for rows in (slice(0, cut), slice(cut, None))
    ]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("hold", [1, 3])
@given(success=flags)
def test_all_rows_after_the_first_held_success_are_after_it(hold, success):
    held, after = follow(success, hold=hold)
    for env in range(2):
        first = np.flatnonzero(held[:, env] & ~after[:, env])
        assert len(first) == int(held[:, env].any())
        if len(first):
            assert after[first[0] + 1 :, env].all()


def scored(*real):
    memory = SuccessMemory(2)
    for t, row in enumerate(real):
        claimed = np.array([t == 1, False])
        memory.scores.append((np.full(2, t, np.float32), claimed, np.array(row, bool)))
    return memory


def test_scores_of_steps_are_taken_once():
    memory = scored((1, 1), (1, 0))
    probability, claimed = memory.take_scores(np.array([[True, True], [True, False]]))
    np.testing.assert_array_equal(probability, [[0, 0], [1, 1]])
    np.testing.assert_array_equal(claimed, [[False, False], [True, False]])
    assert memory.take_scores(np.ones((2, 2), bool)) is None


@pytest.mark.parametrize("mask", [np.ones((2, 2), bool), np.ones((1, 2), bool)])
def test_scores_that_do_not_fit_the_rows_are_not_used(mask):
    assert scored((1, 1), (1, 0)).take_scores(mask) is None

"""When a model of success ends an episode."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from guerdon.reward.verdicts import Standing, follow, still_open


def column(*values):
    return np.array(values, bool)[:, None]


def everywhere(rows):
    return np.ones_like(rows)


def test_a_success_is_held_after_so_many_frames_in_a_row():
    passes = column(1, 0, 1, 1, 1, 0, 1)
    held, past = follow(Standing.fresh(1), passes, everywhere(passes), column(*[0] * 7), hold=2)
    np.testing.assert_array_equal(held[:, 0], [0, 0, 0, 1, 1, 0, 0])
    np.testing.assert_array_equal(past[:, 0], [0, 0, 0, 0, 1, 1, 1])


def test_the_next_episode_begins_with_nothing():
    passes = column(1, 1, 1, 0)
    over = column(0, 1, 0, 0)
    held, past = follow(Standing.fresh(1), passes, everywhere(passes), over, hold=2)
    np.testing.assert_array_equal(held[:, 0], [0, 1, 0, 0])
    assert not past.any()


def test_rows_that_are_no_frames_change_nothing():
    passes, mask = column(1, 1, 1), column(1, 0, 1)
    held, past = follow(Standing.fresh(1), passes, mask, column(0, 1, 0), hold=2)
    np.testing.assert_array_equal(held[:, 0], [0, 0, 1])
    assert not past.any()


def test_a_success_that_is_an_end_has_nothing_after_it():
    passes = column(1, 1, 0, 1)
    held, past = follow(
        Standing.fresh(1), passes, everywhere(passes), column(0, 0, 0, 0), is_end=True
    )
    np.testing.assert_array_equal(held[:, 0], [1, 1, 0, 1])
    assert not past.any()


def test_an_environment_that_is_broken_off_begins_anew():
    standing = Standing.fresh(2)
    follow(standing, np.ones((1, 2), bool), np.ones((1, 2), bool), np.zeros((1, 2), bool))
    standing.begin(np.array([1]))
    np.testing.assert_array_equal(standing.decided, [True, False])
    np.testing.assert_array_equal(standing.run, [1, 0])


flags = arrays.arrays(bool, (12, 2))


@given(flags, flags, flags, st.integers(1, 3), st.integers(0, 12))
def test_it_is_the_same_in_one_piece_and_in_two(passes, mask, over, hold, cut):
    whole = np.stack(follow(Standing.fresh(2), passes, mask, over, hold))
    standing = Standing.fresh(2)
    parts = [
        np.stack(follow(standing, passes[rows], mask[rows], over[rows], hold))
        for rows in (slice(0, cut), slice(cut, None))
    ]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


@given(flags, flags, flags, st.integers(1, 3), st.integers(0, 11))
def test_what_is_known_to_come_after_a_success_does(passes, mask, over, hold, cut):
    standing = Standing.fresh(2)
    follow(standing, passes[:cut], mask[:cut], over[:cut], hold)
    open_rows = still_open(standing, mask[cut:], over[cut:])
    _, past = follow(standing, passes[cut:], mask[cut:], over[cut:], hold)
    np.testing.assert_array_equal(past & open_rows, past & open_rows & mask[cut:])
    assert past[mask[cut:] & ~open_rows].all()


@pytest.mark.parametrize("hold", [1, 3])
@given(passes=flags)
def test_without_ends_only_the_first_success_counts(hold, passes):
    mask = np.ones_like(passes)
    held, past = follow(Standing.fresh(2), passes, mask, np.zeros_like(passes), hold)
    for env in range(2):
        first = np.flatnonzero(held[:, env] & ~past[:, env])
        assert len(first) == int(held[:, env].any())
        if len(first):
            assert past[first[0] + 1 :, env].all()

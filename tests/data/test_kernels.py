"""Bookkeeping and walks over rows, on rings small enough to be drawn on paper."""

import numpy as np
import pytest

from guerdon.data import kernels
from guerdon.data.kernels import FIRST, LAST, TERMINATED, TRUNCATED, VALID

# Two environments of four slots; row = 4 * env + slot. Environment 0 has written six rows, so that
# slots 2, 3, 0, 1 follow in time, and an episode ends in slot 0. Environment 1 has written three.

WRITTEN = np.array([6, 3])


def flags_of(**rows):
    flags = np.full(8, VALID, np.uint8)
    flags[0] |= TERMINATED | LAST
    flags[[1, 4]] |= FIRST
    flags[7] = 0
    for name, flag in rows.items():
        flags[int(name.removeprefix("row"))] = flag
    return flags


def after(rows, flags=None, steps=1):
    flags = flags_of() if flags is None else flags
    return kernels.walk(np.array(rows), steps, WRITTEN, flags, True)[-1].tolist()


def before(rows, flags=None, steps=1):
    flags = flags_of() if flags is None else flags
    return kernels.walk(np.array(rows), steps, WRITTEN, flags, False)[-1].tolist()


def ends(rows, forward, flags=None):
    flags = flags_of() if flags is None else flags
    return kernels.episode_ends(np.array(rows), WRITTEN, flags, forward).tolist()


def test_drawing_rows_that_were_written():
    chances = np.array([0.0, 1.5, 3.5, 4.0, 6.9]) / 7  # environment 0 holds four rows, 1 three
    assert kernels.draw(chances, WRITTEN, 4).tolist() == [0, 1, 3, 4, 6]


def test_the_rows_that_are_written_next():
    assert kernels.following(np.array([0, 3, 6, 7]), 4).tolist() == [1, 0, 7, 4]


def test_the_rows_before():
    assert before([2, 3, 0, 1]) == [2, 2, 3, 1]
    assert before([4, 5, 6]) == [4, 4, 5]


def test_the_rows_after():
    assert after([2, 3, 0, 1]) == [3, 0, 0, 1]
    assert after([4, 5, 6]) == [5, 6, 6]


@pytest.mark.parametrize("flag", [VALID | LAST, VALID | LAST | TRUNCATED])
def test_nothing_follows_a_cut(flag):
    flags = flags_of(row5=flag, row6=VALID | FIRST)
    assert before([5, 6], flags) == [4, 6]
    assert after([4, 5], flags) == [5, 5]


def test_the_first_and_last_rows_of_episodes():
    assert ends([2, 3, 0, 1, 4, 5, 6], forward=False) == [2, 2, 2, 1, 4, 4, 4]
    assert ends([2, 3, 0, 1, 4, 5, 6], forward=True) == [0, 0, 0, 1, 6, 6, 6]


@pytest.mark.parametrize("flag", [VALID | LAST, 0], ids=["cut", "no transition"])
def test_an_episode_goes_no_further_than_a_break(flag):
    flags = flags_of(row5=flag, row6=VALID | FIRST if flag else VALID)
    assert ends([4, 6], forward=True, flags=flags) == [5 if flag else 4, 6]
    assert ends([4, 6], forward=False, flags=flags) == [4, 6]


def test_rows_that_are_no_transitions_are_not_walked_to():
    flags = flags_of(row5=0)
    assert before([6], flags) == [6]
    assert after([4], flags) == [4]


def test_a_ring_that_is_full_for_the_first_time_starts_in_slot_0():
    flags = np.full(3, VALID, np.uint8)
    rows = np.arange(3)

    def walked(count, forward):
        return kernels.walk(rows, 1, np.array([count]), flags, forward)[1].tolist()

    assert walked(3, forward=False) == [0, 0, 1]
    assert walked(3, forward=True) == [1, 2, 2]
    assert walked(4, forward=False) == [2, 1, 1]
    assert walked(4, forward=True) == [0, 2, 0]
    assert kernels.episode_ends(rows, np.array([4]), flags, False).tolist() == [1, 1, 1]
    assert kernels.episode_ends(rows, np.array([4]), flags, True).tolist() == [0, 0, 0]


def test_a_ring_of_one_slot():
    rows, flags = np.zeros(1, int), np.full(1, VALID, np.uint8)
    for forward in (True, False):
        assert kernels.walk(rows, 2, np.array([5]), flags, forward).tolist() == [[0], [0], [0]]


def test_several_steps_repeat_the_last_row():
    back = kernels.walk(np.array([0, 1, 6]), 3, WRITTEN, flags_of(), False)
    assert back.T.tolist() == [[0, 3, 2, 2], [1, 1, 1, 1], [6, 5, 4, 4]]
    forward = kernels.walk(np.array([2, 1, 5]), 3, WRITTEN, flags_of(), True)
    assert forward.T.tolist() == [[2, 3, 0, 0], [1, 1, 1, 1], [5, 6, 6, 6]]
    assert kernels.walk(np.array([0, 7]), 0, WRITTEN, flags_of(), True).tolist() == [[0, 7]]


# --- writing: rows are first invalid, then written (not here), then valid


class Book:
    """The bookkeeping of a buffer of two environments of two slots, with six final observations."""

    def __init__(self):
        self.written = np.zeros(2, np.int64)
        self.flags = np.zeros(4, np.uint8)
        self.final = np.zeros(4, np.int32)
        self.count = np.zeros(1, np.int64)
        self.free = np.array([2, 5, 4, 0, 0, 0, 0])  # rows 0 to 3 belong to the newest rows

    def reserve(self, envs, terminated, truncated):
        self.envs = np.array(envs)
        self.ends = np.array(terminated), np.array(truncated)
        book = self.written, self.flags, self.final, self.count
        self.plan, self.regular = kernels.reserve(self.envs, *self.ends, *book, self.free)

    def add(self, envs, terminated, truncated):
        self.reserve(envs, terminated, truncated)
        book = self.written, self.flags, self.final, self.count
        kernels.publish(self.plan, *book, True)
        return *self.plan[:2].tolist(), (self.plan[2] & FIRST != 0).tolist()


def test_a_ring_is_filled_and_overwritten():
    book = Book()
    assert book.add([0, 1], [False] * 2, [False] * 2) == ([0, 2], [0, 1], [True, True])
    assert book.regular  # slot 0 of both
    assert book.final.tolist() == [1, 0, 2, 0]
    # The newest observation of an environment is now in its second place; row 0 is followed.
    assert book.add([0], [False], [False]) == ([1], [2], [False])
    assert not book.regular
    assert book.final.tolist() == [0, 3, 2, 0]
    assert book.add([1, 0], [True, False], [False, False]) == ([3, 0], [4, 0], [False, False])
    assert not book.regular
    assert book.final.tolist() == [1, 0, 0, 5]
    assert book.flags.tolist() == [VALID, VALID, VALID | FIRST, VALID | TERMINATED | LAST]
    assert (book.count.tolist(), book.written.tolist()) == ([4], [3, 2])
    assert book.free[:2].tolist() == [1, 5]


def test_a_step_is_regular_if_slots_and_final_observations_are():
    no, yes = [False] * 2, [True] * 2
    for calls, regular in [
        ([([0, 1], no)], True),
        ([([1, 0], no)], False),
        ([([0], [False]), ([0, 1], no)], False),
        ([([0, 1], no), ([0, 1], [True, False])], False),
        ([([0, 1], yes)], True),  # rows 4 and 5 of the table
    ]:
        book = Book()
        for envs, ends in calls:
            book.add(envs, ends, [False] * len(envs))
        assert book.regular == regular, calls


def test_the_final_observation_of_an_overwritten_end_is_free_again():
    book = Book()
    for env in (0, 0, 1, 1):
        book.add([env], [False], [env == 0])
    assert book.free[0] == 0
    used = book.final[0] - 1
    assert book.add([0], [True], [False]) == ([0], [used], [True])
    assert book.flags[0] == VALID | FIRST | TERMINATED | LAST
    assert sorted(book.final[:2].tolist()) == [5, 6]


def test_a_reserved_row_is_invalid_and_the_one_before_keeps_its_next_observation():
    book = Book()
    for _ in range(2):
        book.add([0], [False], [False])
    book.reserve([0], [False], [False])
    assert book.flags.tolist() == [0, VALID, 0, 0]
    assert (book.final[1], book.plan[1].tolist()) == (3, [0])  # another place than this one
    assert (book.count[0], book.written[0]) == (1, 2)

"""Trees and walks over rows, on rings small enough to be drawn on paper."""

import numpy as np
import pytest

from guerdon.data import kernels
from guerdon.data.kernels import LAST, TERMINATED, TRUNCATED, VALID

# --- rows in time
#
# Four slots of two environments; row = 2 * slot + env. Environment 0 has written six rows, so that
# slots 2, 3, 0, 1 follow in time, and an episode ends in slot 0. Environment 1 has written three.

WRITTEN = np.array([6, 3])


def flags_of(**rows):
    flags = np.full(8, VALID, np.uint8)
    flags[0] |= TERMINATED | LAST
    flags[7] = 0
    for name, flag in rows.items():
        flags[int(name.removeprefix("row"))] = flag
    return flags


def walk(kernel, rows, flags=None):
    return kernel(np.array(rows), WRITTEN, flags_of() if flags is None else flags).tolist()


def test_previous_rows():
    assert walk(kernels.previous_rows, [4, 6, 0, 2]) == [4, 4, 6, 2]
    assert walk(kernels.previous_rows, [1, 3, 5]) == [1, 1, 3]


def test_next_rows():
    assert walk(kernels.next_rows, [4, 6, 0, 2]) == [6, 0, 0, 2]
    assert walk(kernels.next_rows, [1, 3, 5]) == [3, 5, 5]


@pytest.mark.parametrize("flag", [VALID | LAST, VALID | LAST | TRUNCATED])
def test_nothing_follows_a_cut(flag):
    flags = flags_of(row3=flag)
    assert walk(kernels.previous_rows, [3, 5], flags) == [1, 5]
    assert walk(kernels.next_rows, [1, 3], flags) == [3, 3]


def test_the_first_and_last_rows_of_episodes():
    assert walk(kernels.first_rows, [4, 6, 0, 2, 1, 3, 5]) == [4, 4, 4, 2, 1, 1, 1]
    assert walk(kernels.last_rows, [4, 6, 0, 2, 1, 3, 5]) == [0, 0, 0, 2, 5, 5, 5]


@pytest.mark.parametrize("flag", [VALID | LAST, 0], ids=["cut", "no transition"])
def test_an_episode_goes_no_further_than_a_break(flag):
    flags = flags_of(row3=flag)
    assert walk(kernels.last_rows, [1, 5], flags) == [3 if flag else 1, 5]
    assert walk(kernels.first_rows, [1, 5], flags) == [1, 5]


def test_rows_that_are_no_transitions_are_not_walked_to():
    flags = flags_of(row3=0)
    assert walk(kernels.previous_rows, [5], flags) == [5]
    assert walk(kernels.next_rows, [1], flags) == [1]


def test_a_ring_that_is_full_for_the_first_time_starts_in_slot_0():
    flags = np.full(3, VALID, np.uint8)
    rows = np.arange(3)
    assert kernels.previous_rows(rows, np.array([3]), flags).tolist() == [0, 0, 1]
    assert kernels.next_rows(rows, np.array([3]), flags).tolist() == [1, 2, 2]
    assert kernels.previous_rows(rows, np.array([4]), flags).tolist() == [2, 1, 1]
    assert kernels.next_rows(rows, np.array([4]), flags).tolist() == [0, 2, 0]
    assert kernels.first_rows(rows, np.array([4]), flags).tolist() == [1, 1, 1]
    assert kernels.last_rows(rows, np.array([4]), flags).tolist() == [0, 0, 0]


def test_a_ring_of_one_slot():
    rows, flags = np.zeros(1, int), np.full(1, VALID, np.uint8)
    assert kernels.previous_rows(rows, np.array([5]), flags).tolist() == [0]
    assert kernels.next_rows(rows, np.array([5]), flags).tolist() == [0]


def test_stacks_repeat_the_first_row():
    stacks = kernels.stacks(np.array([0, 2, 5]), 4, WRITTEN, flags_of())
    assert stacks.tolist() == [[4, 4, 6, 0], [2, 2, 2, 2], [1, 1, 3, 5]]
    assert kernels.stacks(np.array([0, 2]), 1, WRITTEN, flags_of()).tolist() == [[0], [2]]


def test_has_history():
    rows = np.array([4, 6, 0, 2, 1, 3, 5])
    expected = {1: "1111111", 2: "0110011", 3: "0010001", 4: "0000000"}
    for frames, bits in expected.items():
        found = kernels.has_history(rows, frames, WRITTEN, flags_of())
        assert found.tolist() == [bit == "1" for bit in bits], frames


def test_segments_repeat_the_last_row():
    rows, mask = kernels.segments(np.array([4, 2, 3]), 4, WRITTEN, flags_of())
    assert rows.T.tolist() == [[4, 6, 0, 0], [2, 2, 2, 2], [3, 5, 5, 5]]
    assert mask.T.astype(int).tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]


def test_segments_of_one_row_are_all_real():
    rows, mask = kernels.segments(np.array([0, 7]), 1, WRITTEN, flags_of())
    assert rows.tolist() == [[0, 7]]
    assert mask.all()


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_next_observations(shape):
    def values(numbers):
        return np.multiply.outer(np.array(numbers, np.float32), np.ones(shape, np.float32))

    source, table = values([0, 10, 20, 30, 40, 50, 60, 70]), values([-1, -2, -3, -4, -5])
    # Row 0 ends an episode, and rows 2 and 5 are the newest: their next ones lie in the table.
    link = np.array([5, 0, 3, 0, 0, 2, 0, 0], np.int32)
    rows = np.array([4, 6, 0, 2, 3, 5])
    out = np.empty((6, *shape), np.float32)
    kernels.gather_next(rows, link, 2, source, table, out)
    assert out.tolist() == values([60, 0, -5, -3, 50, -2]).tolist()

"""Trees and walks over rows, on rings small enough to be drawn on paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.data import kernels
from guerdon.data.kernels import LAST, TERMINATED, TRUNCATED, VALID

# --- sum trees


def tree_of(priorities):
    """The tree over these leaves, made by `tree_set`."""
    tree = np.zeros(2 << (len(priorities) - 1).bit_length())
    kernels.tree_set(tree, np.arange(len(priorities)), np.asarray(priorities, float))
    return tree


def find(tree, *masses):
    return kernels.tree_find(tree, np.array(masses, float)).tolist()


def test_setting_leaves_sets_the_sums_above():
    tree = np.zeros(8)
    kernels.tree_set(tree, np.array([3, 0, 2]), np.array([4.0, 1.0, 2.0]))
    assert tree.tolist() == [0, 7, 1, 6, 1, 0, 2, 4]
    kernels.tree_set(tree, np.array([3]), np.array([0.5]))
    assert tree.tolist() == [0, 3.5, 1, 2.5, 1, 0, 2, 0.5]


def test_the_last_of_several_values_for_a_leaf_counts():
    tree = np.zeros(4)
    kernels.tree_set(tree, np.array([1, 0, 1]), np.array([5.0, 1.0, 3.0]))
    assert tree.tolist() == [0, 4, 1, 3]


def test_a_tree_of_one_leaf():
    tree = tree_of([3.0])
    assert tree.tolist() == [0, 3]
    assert find(tree, 0, 2.9, 3) == [0, 0, 0]


def test_find():
    # Leaves 0, 2 and 3 cover [0, 1), [1, 3) and [3, 7).
    tree = tree_of([1, 0, 2, 4])
    assert find(tree, 0, 0.99, 1, 2.99, 3, 6.99) == [0, 0, 2, 2, 3, 3]


def test_find_a_mass_that_rounding_left_at_the_total():
    assert find(tree_of([1, 2, 0, 0, 0]), 3, 3.5) == [1, 1]
    assert find(tree_of([0, 0, 0, 0, 7, 0]), 0, 7) == [4, 4]


def test_large_leaves_leave_nothing_behind():
    tree = tree_of([1e-8, 1e8])
    kernels.tree_set(tree, np.array([1]), np.array([0.0]))
    assert tree[1] == 1e-8


def test_update_sets_powers_of_sizes_where_rows_are_valid():
    tree = tree_of([7, 7, 7, 7])
    flags = np.array([VALID, VALID, 0, VALID | LAST], np.uint8)
    rows, weights = np.array([0, 2, 3]), np.array([-4.0, 9.0, 0.0])
    largest = kernels.tree_update(tree, flags, rows, weights, 0.5)
    assert largest == pytest.approx(2)
    # A weight of 0 is one of 1e-8, whose square root is 1e-4.
    assert tree.tolist() == pytest.approx([0, 9.0001, 9, 1e-4, 2, 7, 0, 1e-4])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_update_with_what_is_no_number_changes_nothing(bad):
    tree = tree_of([1, 2])
    flags = np.full(2, VALID, np.uint8)
    assert kernels.tree_update(tree, flags, np.arange(2), np.array([5.0, bad]), 1.0) == -1
    assert tree.tolist() == [0, 3, 1, 2]


def test_update_of_rows_that_are_gone_reports_no_size():
    tree = tree_of([1, 2])
    flags = np.zeros(2, np.uint8)
    assert kernels.tree_update(tree, flags, np.arange(2), np.array([5.0, 6.0]), 1.0) == 0
    assert tree.tolist() == [0, 0, 0, 0]


def test_newest_rows_get_a_value_if_they_are_valid():
    # Two slots, three environments, which have written 3, 2 and 1 rows.
    tree = tree_of([1, 1, 1, 1, 1, 1])
    flags = np.array([VALID, VALID, 0, VALID, VALID, VALID], np.uint8)
    kernels.tree_set_newest(tree, np.arange(3), np.array([3, 2, 1]), flags, 5.0)
    assert tree[8:14].tolist() == [5, 1, 0, 1, 5, 1]
    assert tree[1] == 13


WHOLE = st.lists(st.integers(0, 1000), min_size=1, max_size=40).filter(any)


@given(WHOLE, st.data())
def test_find_is_a_search_in_the_running_sum(priorities, data):
    total = sum(priorities)
    # Quarters, so that every sum is exact and a mass may fall on an edge.
    quarters = st.integers(0, 4 * total - 1)
    masses = np.array(data.draw(st.lists(quarters, min_size=1, max_size=20))) / 4
    found = kernels.tree_find(tree_of(priorities), masses)
    assert found.tolist() == np.searchsorted(np.cumsum(priorities), masses, "right").tolist()


SIZES = st.floats(1e-12, 1e12) | st.just(0.0)


@given(st.lists(SIZES, min_size=1, max_size=40), st.data())
def test_sums_are_sums_after_any_changes(priorities, data):
    tree = tree_of(priorities)
    priorities = np.array(priorities)
    row = st.integers(0, len(priorities) - 1)
    for i, value in data.draw(st.lists(st.tuples(row, SIZES), max_size=10)):
        kernels.tree_set(tree, np.array([i]), np.array([value]))
        priorities[i] = value
    leaves = len(tree) // 2
    assert tree[leaves : leaves + len(priorities)].tolist() == priorities.tolist()
    assert tree[1] == pytest.approx(np.sum(priorities))
    for node in range(1, leaves):
        assert tree[node] == tree[2 * node] + tree[2 * node + 1]


@given(st.lists(SIZES, min_size=1, max_size=40).filter(any), st.lists(st.floats(0, 1)))
def test_what_has_no_priority_is_never_found(priorities, shares):
    tree = tree_of(priorities)
    found = kernels.tree_find(tree, np.array([0.0, 1.0, *shares]) * tree[1])
    assert all(priorities[row] > 0 for row in found)


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

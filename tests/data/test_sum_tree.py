"""The sum tree, by hand and against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.data import sum_tree
from guerdon.data.kernels import LAST, VALID


def tree_of(priorities):
    """The tree over these leaves, made by `set_leaves`."""
    tree = np.zeros(2 << (len(priorities) - 1).bit_length())
    sum_tree.set_leaves(tree, np.arange(len(priorities)), np.asarray(priorities, float))
    return tree


def find(tree, *masses):
    return sum_tree.find(tree, np.array(masses, float)).tolist()


def test_setting_leaves_sets_the_sums_above():
    tree = np.zeros(8)
    sum_tree.set_leaves(tree, np.array([3, 0, 2]), np.array([4.0, 1.0, 2.0]))
    assert tree.tolist() == [0, 7, 1, 6, 1, 0, 2, 4]
    sum_tree.set_leaves(tree, np.array([3]), np.array([0.5]))
    assert tree.tolist() == [0, 3.5, 1, 2.5, 1, 0, 2, 0.5]


def test_the_last_of_several_values_for_a_leaf_counts():
    tree = np.zeros(4)
    sum_tree.set_leaves(tree, np.array([1, 0, 1]), np.array([5.0, 1.0, 3.0]))
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
    sum_tree.set_leaves(tree, np.array([1]), np.array([0.0]))
    assert tree[1] == 1e-8


def test_update_sets_powers_of_sizes_where_rows_are_valid():
    tree = tree_of([7, 7, 7, 7])
    flags = np.array([VALID, VALID, 0, VALID | LAST], np.uint8)
    rows, weights = np.array([0, 2, 3]), np.array([-4.0, 9.0, 0.0])
    largest = sum_tree.update(tree, flags, rows, weights, 0.5)
    assert largest == pytest.approx(2)
    # A weight of 0 is one of 1e-8, whose square root is 1e-4.
    assert tree.tolist() == pytest.approx([0, 9.0001, 9, 1e-4, 2, 7, 0, 1e-4])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_update_with_what_is_no_number_changes_nothing(bad):
    tree = tree_of([1, 2])
    flags = np.full(2, VALID, np.uint8)
    assert sum_tree.update(tree, flags, np.arange(2), np.array([5.0, bad]), 1.0) == -1
    assert tree.tolist() == [0, 3, 1, 2]


def test_update_of_rows_that_are_gone_reports_no_size():
    tree = tree_of([1, 2])
    flags = np.zeros(2, np.uint8)
    assert sum_tree.update(tree, flags, np.arange(2), np.array([5.0, 6.0]), 1.0) == 0
    assert tree.tolist() == [0, 0, 0, 0]


def test_newest_rows_get_a_value_if_they_are_valid():
    # Two slots, three environments, which have written 3, 2 and 1 rows.
    tree = tree_of([1, 1, 1, 1, 1, 1])
    flags = np.array([VALID, VALID, 0, VALID, VALID, VALID], np.uint8)
    sum_tree.set_newest(tree, np.arange(3), np.array([3, 2, 1]), flags, 5.0)
    assert tree[8:14].tolist() == [5, 1, 0, 1, 5, 1]
    assert tree[1] == 13


WHOLE = st.lists(st.integers(0, 1000), min_size=1, max_size=40).filter(any)


@given(WHOLE, st.data())
def test_find_is_a_search_in_the_running_sum(priorities, data):
    total = sum(priorities)
    # Quarters, so that every sum is exact and a mass may fall on an edge.
    quarters = st.integers(0, 4 * total - 1)
    masses = np.array(data.draw(st.lists(quarters, min_size=1, max_size=20))) / 4
    found = sum_tree.find(tree_of(priorities), masses)
    assert found.tolist() == np.searchsorted(np.cumsum(priorities), masses, "right").tolist()


SIZES = st.floats(1e-12, 1e12) | st.just(0.0)


@given(st.lists(SIZES, min_size=1, max_size=40), st.data())
def test_sums_are_sums_after_any_changes(priorities, data):
    tree = tree_of(priorities)
    priorities = np.array(priorities)
    row = st.integers(0, len(priorities) - 1)
    for i, value in data.draw(st.lists(st.tuples(row, SIZES), max_size=10)):
        sum_tree.set_leaves(tree, np.array([i]), np.array([value]))
        priorities[i] = value
    leaves = len(tree) // 2
    assert tree[leaves : leaves + len(priorities)].tolist() == priorities.tolist()
    assert tree[1] == pytest.approx(np.sum(priorities))
    for node in range(1, leaves):
        assert tree[node] == tree[2 * node] + tree[2 * node + 1]


@given(st.lists(SIZES, min_size=1, max_size=40).filter(any), st.lists(st.floats(0, 1)))
def test_what_has_no_priority_is_never_found(priorities, shares):
    tree = tree_of(priorities)
    found = sum_tree.find(tree, np.array([0.0, 1.0, *shares]) * tree[1])
    assert all(priorities[row] > 0 for row in found)

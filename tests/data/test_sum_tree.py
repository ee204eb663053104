"""The sum tree, by hand and against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.data import sum_tree


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


def test_setting_all_leaves():
    tree = tree_of([7, 7, 7, 7])
    sum_tree.set_all(tree, np.array([1.0, 0.0, 2.0]))
    assert tree.tolist() == [0, 3, 1, 2, 1, 0, 2, 0]
    tree = tree_of([3.0])
    sum_tree.set_all(tree, np.array([5.0]))
    assert tree.tolist() == [0, 5]


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
    again = np.full_like(tree, 9.0)
    sum_tree.set_all(again, priorities)
    assert again[1:].tolist() == tree[1:].tolist()
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

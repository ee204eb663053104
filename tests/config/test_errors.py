"""Nearest names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.config.errors import edit_distance, either, nearest, suggestion


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "abc", 0),
        ("abc", "abd", 1),
        ("abc", "ab", 1),
        ("abc", "xabc", 1),
        ("abc", "acb", 1),
        ("kitten", "sitting", 3),
    ],
)
def test_the_edit_distance_is_that_of_hand_counting(left, right, distance):
    assert edit_distance(left, right) == distance


@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_the_edit_distance_is_symmetric_and_zero_only_for_equals(left, right):
    assert edit_distance(left, right) == edit_distance(right, left)
    assert (edit_distance(left, right) == 0) == (left == right)


def test_equally_near_names_are_all_offered():
    assert nearest("rn", ["run", "seed", "ran"]) == ["ran", "run"]


def test_a_part_of_a_name_is_near():
    known = ["cartpole_dqn", "cartpole_ppo", "pendulum_sac"]
    assert nearest("cartpole", known) == ["cartpole_dqn", "cartpole_ppo"]


def test_where_nothing_is_near_all_names_are_shown():
    assert suggestion("zzzzzz", ["ppo", "dqn"]) == "choose from dqn, ppo"
    assert suggestion("zzzzzz", []) == "there is none"


def test_names_are_joined_as_a_sentence_has_it():
    assert either(["a"]) == "'a'"
    assert either(["a", "b", "c"]) == "'a', 'b' or 'c'"
